"""`grad` and related functions: derivatives of Python functions of tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from gptrs.capture import execute
from gptrs.capture.jitting.dynamic_axes import refused
from gptrs.capture.jitting.pytree import (
    AS_GIVEN,
    TUPLE,
    Refusal,
    Structure,
    flatten,
    path_of,
    rebuild,
)
from gptrs.capture.region import CapturedBody, capture_body
from gptrs.capture.tensor import Tensor
from gptrs.differentiation import (
    attention as attention,  # registers the rules of each family
)
from gptrs.differentiation import composites as composites
from gptrs.differentiation import contraction as contraction
from gptrs.differentiation import control_flow as control_flow
from gptrs.differentiation import custom as custom
from gptrs.differentiation import elementwise as elementwise
from gptrs.differentiation import indexing as indexing
from gptrs.differentiation import layout as layout
from gptrs.differentiation import reduction as reduction
from gptrs.differentiation import windows as windows
from gptrs.differentiation.forward import push
from gptrs.differentiation.nesting import as_tensors, leaves_like, nested
from gptrs.differentiation.reverse import Linearized
from gptrs.differentiation.rules import filled, zeros
from gptrs.errors import UsageError
from gptrs.ir.program import Function, Region

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Arguments = int | str | Sequence[int | str]
"""One or several arguments of a function, by position or keyword."""


def grad(
    function: Callable[Parameters, object], argnums: Arguments = 0, has_aux: bool = False
) -> Callable[Parameters, Any]:
    """Return a function of the same arguments that returns the gradient of `function`.

    Like `value_and_grad` without the value; with `has_aux` it returns the gradient and the
    auxiliary result.
    """
    both = value_and_grad(function, argnums, has_aux)

    @functools.wraps(function)
    def gradient(*args: Parameters.args, **kwargs: Parameters.kwargs) -> object:
        value, found = both(*args, **kwargs)
        return (found, cast("tuple[object, object]", value)[1]) if has_aux else found

    return gradient


def value_and_grad(
    function: Callable[Parameters, object], argnums: Arguments = 0, has_aux: bool = False
) -> Callable[Parameters, tuple[Any, Any]]:
    """Return a function of the same arguments that returns the result of `function` and its
    gradient.

    `function` returns a float tensor of rank 0, or with `has_aux` a pair of it and anything else.
    The gradient is nested like the argument that `argnums` names, by position or keyword; for
    several arguments it is a tuple. Every tensor in them must be of a float type; static values are
    passed through. Other arguments and closed-over tensors are constants.

    The function is captured as by `gptrs.jit`, so it must not read the value of a tensor. Compile
    the result with `gptrs.jit` if it is called more than once. UsageError for arguments that are
    not floats, for a result of another type, or for an op without a derivative, such as `while`.
    """

    @functools.wraps(function)
    def value_and_gradient(
        *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> tuple[object, object]:
        asked = _Asked("grad", function, argnums, args, kwargs)
        captured = asked.capture()
        returned = captured.linearized.results
        value = rebuild(captured.outputs, iter(returned))
        loss = _loss(value, has_aux, asked.name)
        # By index, not identity: the auxiliary result may hold the same tensor.
        seed = [filled(1, loss), *[None] * (len(returned) - 1)]
        return value, asked.nested(captured.pull(seed))

    return value_and_gradient


def vjp(function: Callable[..., Result], *args: object) -> tuple[Result, Callable[[Any], Any]]:
    """Return `function(*args)`, and a function that multiplies vectors with its Jacobian.

    The latter takes cotangents nested like the result and returns a tuple with one tree per
    argument, nested like it. None means zero in cotangents, and stands for tensors that are not
    floats. It is linear and may be called more than once. UsageError as for `value_and_grad`.
    """
    asked = _Asked("vjp", function, range(len(args)), args, {}, integers=True)
    captured = asked.capture()

    def pullback(cotangents: object) -> object:
        results = captured.linearized.results
        given = leaves_like("cotangents", captured.outputs, results, cotangents)
        return asked.nested(captured.pull(given))

    return cast("Result", rebuild(captured.outputs, iter(captured.linearized.results))), pullback


def jvp(
    function: Callable[..., Result], primals: Sequence[object], tangents: Sequence[object]
) -> tuple[Result, Any]:
    """Return `function(*primals)`, and its derivative along `tangents`, nested like the result.

    The tangents are nested like the primals; None means zero, and is required for tensors that are
    not floats. Unlike reverse mode, this supports `while`. UsageError for tangents that do not fit,
    or for an op without a derivative.
    """
    asked = _Asked("jvp", function, range(len(primals)), primals, {}, integers=True)
    given = asked.directions("tangents", tangents)
    captured = asked.capture()
    # Closed-over tensors are constants: their direction is zero.
    rest = [None] * (len(captured.inputs) - captured.count)
    results, found = push(captured.region, captured.functions, captured.inputs, [*given, *rest])
    pairs = zip(results, found, strict=True)
    # None inside means zero; users get tensors, so that results have one nesting.
    whole = [zeros(x) if each is None and x.dtype.is_float else each for x, each in pairs]
    value = cast("Result", rebuild(captured.outputs, iter(results)))
    return value, nested(captured.outputs, iter(whole))


def hessian_vector(
    function: Callable[..., object], primals: Sequence[object], vectors: Sequence[object]
) -> tuple[Any, ...]:
    """Return the product of the Hessian of a loss with vectors, one tree for each argument.

    The loss is `function(*primals)`, a float tensor of rank 0; `vectors` are nested like the
    primals, whose tensors are floats. Computed as the derivative of the gradient along the vectors:
    it costs about as much as two gradients, and the Hessian is never formed.
    """
    return jvp(grad(function, range(len(primals))), primals, vectors)[1]


class _Linear:
    """A captured function with its derivative: the program that ran, and the nesting of its
    results."""

    def __init__(self, body: CapturedBody, outputs: Structure, leaves: Sequence[Tensor]) -> None:
        self.outputs = outputs
        self.region: Region = body.region(body.outside)
        self.functions: dict[str, Function] = {each.name: each for each in body.functions}
        self.inputs = [*leaves, *map(Tensor, body.outside)]
        self.count = len(leaves)

    # A forward derivative needs no linearization, which keeps intermediate values.
    @functools.cached_property
    def linearized(self) -> Linearized:
        """Return the program on the arguments, in reverse mode."""
        floats = [leaf.dtype.is_float for leaf in self.inputs[: self.count]]
        wanted = [*floats, *[False] * (len(self.inputs) - self.count)]
        return Linearized(self.region, self.functions, self.inputs, wanted)

    def pull(self, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the cotangents of the arguments: zeros for floats without influence."""
        found = self.linearized.pull(cotangents)[: self.count]
        return [
            zeros(leaf) if each is None and leaf.dtype.is_float else each
            for leaf, each in zip(self.inputs, found, strict=False)
        ]


class _Asked:
    """A call of a function, and the arguments it is differentiated with respect to."""

    def __init__(
        self,
        what: str,
        function: Callable[..., object],
        argnums: Arguments,
        args: Sequence[object],
        kwargs: dict[str, Any],
        integers: bool = False,
    ) -> None:
        self.what = what
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self._function = function
        self._several = not isinstance(argnums, int | str)
        listed = [argnums] if isinstance(argnums, int | str) else list(argnums)
        self._args = [as_tensors(each) for each in args]
        self._kwargs = {key: as_tensors(each) for key, each in kwargs.items()}
        self._chosen = [self._argument(each) for each in listed]
        # -1 and the last position, or a position and its name, are the same argument.
        if len(set(self._chosen)) < len(self._chosen):
            raise UsageError(f"`argnums` of `{what}` names an argument twice: {listed}")
        self.leaves: list[Tensor] = []
        self._structures = [self._flat(each, integers) for each in self._chosen]

    def _argument(self, wanted: int | str) -> int | str:
        """Return the position of an argument in the call, else its keyword."""
        known = list(inspect.signature(self._function).parameters)
        position = known.index(wanted) if isinstance(wanted, str) and wanted in known else wanted
        if wanted in self._kwargs:
            return wanted
        if isinstance(position, int) and -len(self._args) <= position < len(self._args):
            return position % len(self._args)
        by_name = known[int(position)] if position in range(len(known)) else None
        if by_name in self._kwargs:
            return by_name
        given = f"{len(self._args)} by position, and {list(self._kwargs) or 'none'} by keyword"
        raise UsageError(
            f"`{self.what}` differentiates by argument `{wanted}` of `{self.name}`,"
            f" which this call does not pass: {given}"
        )

    def _flat(self, where: int | str, integers: bool) -> Structure:
        tree = self._value(where)
        label = where if isinstance(where, str) else self._label(where)
        before = len(self.leaves)
        try:
            # In the order of the argument's own keys: the gradient is nested like it.
            structure = flatten(tree, self.leaves, AS_GIVEN)
        except Refusal as refusal:
            raise refused(refusal, f"`{self.what}` cannot differentiate by", tree, label) from None
        for leaf in self.leaves[before:]:
            if not integers and not leaf.dtype.is_float:
                path = path_of(leaf, tree, label) or label
                raise UsageError(
                    f"`{self.what}` differentiates by floats, got `{leaf.type}` as `{path}`",
                    hint="cast it, pass it as another argument, or leave it out of `argnums`",
                )
        if not integers and len(self.leaves) == before:
            raise UsageError(
                f"`{self.what}` differentiates by tensors, and `{label}` holds none",
                hint="wrap numbers with `gptrs.tensor`",
            )
        return structure

    def _label(self, position: int) -> str:
        known = list(inspect.signature(self._function).parameters)
        return known[position] if position < len(known) else f"argument {position}"

    def _value(self, where: int | str) -> object:
        return self._kwargs[where] if isinstance(where, str) else self._args[where]

    def capture(self) -> _Linear:
        """Capture the function with placeholders for the differentiated tensors."""
        outputs: list[Structure] = []

        def body(*tensors: Tensor) -> Sequence[Tensor]:
            rest = iter(tensors)
            args, kwargs = list(self._args), dict(self._kwargs)
            for where, structure in zip(self._chosen, self._structures, strict=True):
                tree = rebuild(structure, rest)
                if isinstance(where, str):
                    kwargs[where] = tree
                else:
                    args[where] = tree
            returned = self._function(*args, **kwargs)
            results: list[Tensor] = []
            try:
                outputs.append(flatten(returned, results, AS_GIVEN))
            except Refusal as refusal:
                what = f"`{self.name}` cannot return"
                raise refused(refusal, what, returned, "result") from None
            return results

        with execute.capturing():
            captured = capture_body(self.name, body, [leaf.type for leaf in self.leaves])
        return _Linear(captured, outputs[0], self.leaves)

    def directions(self, what: str, trees: Sequence[object]) -> list[Tensor | None]:
        """Return a tensor or None for each differentiated tensor; UsageError for another
        nesting."""
        whole = (TUPLE, None, *self._structures)
        return leaves_like(what, whole, self.leaves, tuple(trees))

    def nested(self, found: Sequence[Tensor | None]) -> object:
        """Return one tensor for each differentiated tensor, nested like the arguments."""
        rest = iter(found)
        trees = [nested(structure, rest) for structure in self._structures]
        return tuple(trees) if self._several else trees[0]


def _loss(value: object, has_aux: bool, name: str) -> Tensor:
    loss = value
    if has_aux:
        pair = cast("tuple[object, ...]", value)
        if type(value) is not tuple or len(pair) != 2:
            raise UsageError(f"`{name}` with `has_aux` must return a pair: the loss, and the rest")
        loss = pair[0]
    if not isinstance(loss, Tensor) or loss.rank or not loss.dtype.is_float:
        found = f"`{loss.type}`" if isinstance(loss, Tensor) else f"a `{type(loss).__name__}`"
        raise UsageError(
            f"`grad` needs a float tensor of rank 0 from `{name}`, got {found}",
            hint="take the mean or the sum, return other values with `has_aux=True`, or use"
            " `gptrs.vjp`",
        )
    return loss
