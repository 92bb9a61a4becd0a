"""Functions with their own derivative, and functions that are recomputed for their derivative."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

from gptrs.capture import primitives as p
from gptrs.capture.jitting.pytree import AS_GIVEN, Structure, flatten, rebuild
from gptrs.capture.region import as_function, capture_body
from gptrs.capture.tensor import Tensor, apply_many
from gptrs.differentiation.composites import OF_KIND, body_of
from gptrs.differentiation.nesting import leaves_like, nested
from gptrs.differentiation.reverse import Linearized
from gptrs.differentiation.rules import Cotangents, Rule, Step, run_region, zeros
from gptrs.errors import UsageError
from gptrs.ir.attributes import FunctionName
from gptrs.ir.ops.custom_call import Composite

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _composite(kind: str, function: Callable[..., object], args: tuple[object, ...]) -> object:
    """Call `function` as a composite `kind`.

    Its operands are the tensors of the arguments, then the closed-over tensors.
    """
    leaves: list[Tensor] = []
    structure = flatten(args, leaves, AS_GIVEN)
    outputs: list[Structure] = []

    def body(*tensors: Tensor) -> Sequence[Tensor]:
        given = cast("tuple[object, ...]", rebuild(structure, iter(tensors)))
        results: list[Tensor] = []
        outputs.append(flatten(function(*given), results, AS_GIVEN))
        return results

    captured = capture_body(kind, body, [leaf.type for leaf in leaves])
    operands = [*leaves, *map(Tensor, captured.outside)]
    made = as_function(captured)
    names = " ".join(f"x{number}" for number in range(len(operands)))
    op = Composite(kind, FunctionName(made.name), names)
    results = apply_many(op, *operands, functions=[*captured.functions, made])
    return rebuild(outputs[0], iter(results))


# Functions whose values are recomputed rather than kept.


def remat(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return `function` with intermediate values recomputed for its derivative instead of kept.

    Also known as gradient checkpointing (`jax.remat`, `torch.utils.checkpoint`). It saves the
    memory of intermediate values at the cost of a second run; apply it to the blocks of a model.
    Arguments and results are as for `gptrs.jit`; tensors are passed by position. Without a
    derivative it behaves like the function itself.
    """
    name = str(getattr(function, "__name__", type(function).__name__))

    @functools.wraps(function)
    def whole(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        bound = functools.partial(function, **kwargs)
        return cast("Result", _composite(f"remat.v1/{_word(name)}", bound, args))

    return whole


def _rematerialized(step: Step[Any]) -> tuple[Sequence[Tensor], object]:
    return run_region(body_of(step.op, step.functions), step.functions, step.operands), None


def _recomputed(step: Step[Composite], cotangents: Cotangents) -> Cotangents:
    """Differentiate the body within a branch that is always taken.

    The optimizer cannot know that, so it does not merge these expressions with the forward ones,
    which would keep their values alive.
    """
    region, count = body_of(step.op, step.functions), len(step.operands)
    given = [each for each in cotangents if each is not None]

    def backward(*tensors: Tensor) -> Sequence[Tensor]:
        inputs, rest = tensors[:count], iter(tensors[count:])
        own = [None if each is None else next(rest) for each in cotangents]
        pulled = Linearized(region, step.functions, inputs, step.wanted).pull(own)
        found = zip(inputs, pulled, step.wanted, strict=True)
        return [zeros(x) if each is None else each for x, each, wanted in found if wanted]

    def nothing(*tensors: Tensor) -> Sequence[Tensor]:
        pairs = zip(tensors[:count], step.wanted, strict=True)
        return [zeros(x) for x, wanted in pairs if wanted]

    # A sum over no elements is 0, so this is true for empty cotangents, too.
    some = p.reduce(given[0], "sum", range(given[0].rank))
    always = p.bit_or(p.compare(some, some, "eq"), p.compare(some, some, "ne"))
    results = iter(p.cond(always, backward, nothing, *step.operands, *given))
    return [next(results) if wanted else None for wanted in step.wanted]


OF_KIND["remat.v1"] = Rule(_recomputed, _rematerialized, linear=False)


# Derivatives defined by users.


class _Known(NamedTuple):
    """A function with its own derivative, and the nesting of its arguments and results."""

    function: CustomVjp[Any, Any]
    arguments: Structure
    tensors: int
    """Number of tensors in the arguments; closed-over tensors follow."""


_KNOWN: dict[str, _Known] = {}
_numbers: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


class CustomVjp(Generic[Parameters, Result]):
    """A function with its own derivative: decorate it, then define the derivative with `defvjp`.

    It is called with positional arguments; arguments and results are as for `gptrs.jit`.
    """

    def __init__(self, function: Callable[Parameters, Result]) -> None:
        functools.update_wrapper(self, function)
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self._function = function
        self._kinds: dict[Structure, str] = {}
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Define the derivative.

        `forward(*args)` returns the result of the function, and any tree that `backward` needs.
        `backward(kept, cotangents)` gets this tree, and the cotangents nested as the result, None
        for tensors that are not floats; it returns a tuple of one tree per argument, nested like
        it. None means zero there, and is required for tensors that are not floats. `backward` must
        be linear in the cotangents: `gptrs.jvp` transposes it.
        """
        self.forward, self.backward = forward, backward

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Call the function; UsageError without a derivative, or for keyword arguments."""
        if kwargs:
            raise UsageError(f"`{self.name}` with `custom_vjp` takes arguments by position only")
        if self.forward is None:
            raise UsageError(
                f"`{self.name}` has no derivative yet",
                hint=f"call `{self.name}.defvjp(forward, backward)` after its definition",
            )
        leaves: list[Tensor] = []
        structure = flatten(args, leaves, AS_GIVEN)
        kind = self._kinds.get(structure)
        if kind is None:
            name = _word(self.name)
            kind = f"custom_vjp.v1/{name}-{next(_numbers[name])}"
            self._kinds[structure] = kind
            _KNOWN[kind] = _Known(self, structure, len(leaves))
        return cast("Result", _composite(kind, self._function, args))


def custom_vjp(function: Callable[Parameters, Result]) -> CustomVjp[Parameters, Result]:
    """Decorator: a function whose derivative `defvjp` gives, see `CustomVjp`."""
    return CustomVjp(function)


def _custom_forward(step: Step[Any]) -> tuple[Sequence[Tensor], object]:
    known = _KNOWN[step.op.kind]
    name, forward = known.function.name, known.function.forward
    if any(step.wanted[known.tensors :]):
        raise UsageError(
            f"`{name}` with `custom_vjp` closes over a tensor that is differentiated",
            hint="pass it as an argument",
        )
    given = cast("tuple[object, ...]", rebuild(known.arguments, iter(step.operands)))
    assert forward is not None
    pair = cast("tuple[object, ...]", forward(*given))
    if type(pair) is not tuple or len(pair) != 2:
        raise UsageError(f"`forward` of `{name}` must return a pair: the result, and what to keep")
    results: list[Tensor] = []
    outputs = flatten(pair[0], results, AS_GIVEN)
    wanted = [str(value.type) for value in body_of(step.op, step.functions).results]
    if [str(each.type) for each in results] != wanted:
        raise UsageError(
            f"`forward` of `{name}` must return what `{name}` does, tensors ({', '.join(wanted)}),"
            f" got ({', '.join(str(each.type) for each in results)})"
        )
    return results, (outputs, pair[1])


def _custom_backward(step: Step[Composite], cotangents: Cotangents) -> Cotangents:
    known = _KNOWN[step.op.kind]
    outputs, kept = step.kept
    given = [
        zeros(result) if each is None and result.dtype.is_float else each
        for result, each in zip(step.results, cotangents, strict=True)
    ]
    backward = known.function.backward
    assert backward is not None
    found = backward(kept, nested(outputs, iter(given)))
    what = f"cotangents that `backward` of `{known.function.name}` returns"
    own = leaves_like(what, known.arguments, step.operands[: known.tensors], found)
    return [*own, *[None] * (len(step.operands) - known.tensors)]


OF_KIND["custom_vjp.v1"] = Rule(_custom_backward, _custom_forward)


def _word(name: str) -> str:
    """Return a name in a form valid in the kind of a composite."""
    return "".join(char if char.isalnum() and char.isascii() else "_" for char in name)
