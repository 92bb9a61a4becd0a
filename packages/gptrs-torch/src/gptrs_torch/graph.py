"""A torch graph as a compiled function on torch tensors, one program for all sizes."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast

import numpy as np
import sympy
import torch
from torch import fx

from gptrs import use_backend
from gptrs.api import GptrsError, UsageError
from gptrs.api.backends import Backend
from gptrs.api.importers import share_array, take_array
from gptrs.api.models import Params, Tensor, jit
from gptrs.api.programs import Program
from gptrs_torch.archive import array_of, laid_out, parts_of, result_order, tensor_of
from gptrs_torch.conversion import (
    CHECKS,
    NUMERIC,
    SIZES,
    Complex,
    Conversion,
    NotConvertedError,
    asks_for_sizes,
    constants_of,
)
from gptrs_torch.program_check import expression_of
from gptrs_torch.weights import TensorSource, Watch, WeightWatch

# Outputs that are views of inputs or of other outputs: torch makes them itself.


def view_outputs(outputs: Sequence[object]) -> dict[fx.Node, list[fx.Node]]:
    """Return the outputs that are views, each with the nodes that compute it, in order.

    These nodes read inputs, and outputs that are no views.
    """
    bases = {node for node in outputs if isinstance(node, fx.Node) and not _is_view(node)}
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in outputs:
        if isinstance(node, fx.Node) and _is_view(node):
            nodes: dict[fx.Node, None] = {}
            if _gather(node, bases, nodes):
                found[node] = list(nodes)
    return found


def evaluated_node(node: fx.Node, known: Mapping[object, object]) -> object:
    """Let torch compute a node, from the values `known`."""

    def value(argument: fx.Node) -> Any:
        return known[argument]

    args = fx.map_arg(node.args, value)
    kwargs = fx.map_arg(node.kwargs, value)
    return cast("Any", node.target)(*cast("Any", args), **cast("Any", kwargs))


def _gather(node: fx.Node, bases: set[fx.Node], nodes: dict[fx.Node, None]) -> bool:
    """Append the nodes that a node depends on to `nodes`; False if one of them is no view."""
    if node.op == "placeholder" or node in bases or node in nodes:
        return True
    if not (_is_view(node) or _is_number(node)):
        return False
    if not all(_gather(each, bases, nodes) for each in node.all_input_nodes):
        return False
    nodes[node] = None
    return True


def _is_view(node: fx.Node) -> bool:
    """Return whether a node returns one or several views of its first argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and _is_view(source)
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    # An alias that is written is a mutation, which torch would not repeat.
    return alias is not None and not alias.is_write


def _is_number(node: fx.Node) -> bool:
    held = cast("object", node.meta.get("val"))
    known = node.target in NUMERIC or node.target in SIZES
    return node.op == "call_function" and known and isinstance(held, (int, torch.SymInt))


Sizes: TypeAlias = tuple[tuple[sympy.Expr, sympy.Expr], ...]
_UNTRACKED: Final = (
    "the weights were made under `torch.inference_mode()`, where torch does not count changes: "
    "each call reads them again, which takes longer; make or load the model outside of it"
)
MAX_STEPS: Final = 16
"""Number of patterns of equal free sizes that are kept."""
MAX_PINNED: Final = 64
"""Number of calls, by sizes and numbers, that are repeated without a lookup."""


Pinned: TypeAlias = Callable[[Sequence[np.ndarray]], "list[np.ndarray] | None"]


class JittedGraph(Protocol):
    """The jitted conversion of a graph."""

    def __call__(self, tensors: tuple[Tensor, ...], numbers: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return the outputs that are tensors."""
        ...

    def lower(self, tensors: tuple[Tensor, ...], numbers: tuple[int, ...]) -> Program:
        """Return the program that computes them."""
        ...

    def pin(self, tensors: tuple[Tensor, ...], numbers: tuple[int, ...]) -> Pinned | None:
        """Return the step for these sizes as a function of arrays."""
        ...


class GraphFunction:
    """A graph module, called with the values of its placeholders; returns its outputs.

    Placeholders at the positions in `static` are weights: the same tensors in each call, used
    without a copy. If `watch` reports a change, they are read again. With `aliases`, outputs that
    are views of inputs or of other outputs share memory with them, as AOTAutograd expects: it makes
    its own views by their strides and offsets.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        backend: Backend,
        static: Collection[int] = (),
        *,
        watch: Watch = WeightWatch,
        aliases: bool = True,
    ) -> None:
        self._module = module
        self.backend = backend
        self._watch_of = watch
        self._inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._sizes = _size_sources(self._inputs)
        self._static = [i for i in sorted(static) if _is_tensor(self._inputs[i])]
        fixed = set(self._static)
        self._tensors = [
            i for i, node in enumerate(self._inputs) if _is_tensor(node) and i not in fixed
        ]
        self._numbers = [
            i
            for i, node in enumerate(self._inputs)
            if node.users and not _is_tensor(node) and not _follows(_size_of(node), self._sizes)
        ]
        self._outputs: list[object] = list(_output_of(module))
        self._views = view_outputs(self._outputs) if aliases else {}
        self._orders = {
            node: order
            for node in self._outputs
            if isinstance(node, fx.Node)
            and _is_tensor(node)
            and node not in self._views
            and (order := result_order(node.meta["val"])) is not None
        }
        self._checks = [node for node in module.graph.nodes if node.target in CHECKS]
        self._is_computed = bool(self._checks) or any(
            isinstance(each, fx.Node) and each not in self._views for each in self._outputs
        )
        self._is_plain = not (self._orders or self._views) and all(
            isinstance(each, fx.Node) and _is_tensor(each) and not _is_complex(each)
            for each in self._outputs
        )
        self._watch: WeightWatch | None = None
        self._steps: dict[tuple[Sizes, bool], JittedGraph] = {}
        self._pinned: dict[Hashable, Pinned] = {}
        self._is_static = False
        self._is_merged = False

    def __call__(self, *values: object) -> list[object]:
        """Return the outputs for inputs in order.

        Raises NotConvertedError, before anything runs, for an operator that is left to torch;
        UsageError for inputs that the graph refuses, such as classes that `one_hot` lacks.
        """
        made = (self._repeated(values) or self._computed(values)) if self._is_computed else []
        if self._checks:
            made = self._checked(made)
        if self._is_plain:
            return [tensor_of(_row_major(array)) for array in made]
        results = iter(made)
        found = [self._result(each, values, results) for each in self._outputs]
        return self._with_views(found, values) if self._views else found

    def _checked(self, made: list[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs without the truths of CHECKS, the last; UsageError for a false one."""
        first = len(made) - len(self._checks)
        for node, truth in zip(self._checks, made[first:], strict=True):
            if not truth:
                told = str(node.args[1]) if len(node.args) > 1 else "an element is 0"
                raise UsageError(f"the program refuses these inputs: {told}")
        return made[:first]

    def _with_views(self, found: list[object], values: Sequence[object]) -> list[object]:
        """Insert the views, which torch makes from their bases, among the outputs."""
        known: dict[object, object] = dict(zip(self._inputs, values, strict=True))
        known.update((k, v) for k, v in zip(self._outputs, found, strict=True) if v is not None)
        for nodes in self._views.values():
            for node in nodes:
                if node not in known:
                    known[node] = evaluated_node(node, known)
        return [
            known[node] if node in self._views else value
            for node, value in zip(self._outputs, found, strict=True)
        ]

    def _repeated(self, values: Sequence[object]) -> list[np.ndarray] | None:
        """Return the outputs of a call like an earlier one; None if it is new."""
        if not self._pinned:
            return None
        arrays = [_given(values[i]) for i in self._tensors]
        pinned = self._pinned.get(self._signature([array.shape for array in arrays], values))
        if pinned is None or self._changed([cast("torch.Tensor", values[i]) for i in self._static]):
            return None
        return pinned(arrays)

    def _signature(self, shapes: Sequence[tuple[int, ...]], values: Sequence[object]) -> Hashable:
        return *shapes, *[values[i] for i in self._numbers]

    def _computed(self, values: Sequence[object]) -> list[np.ndarray]:
        """Return the outputs by a cached or new step, which is pinned for calls like this."""
        with use_backend(self.backend):  # the only step of a graph without weights
            step, tensors, numbers = self._prepared(values)
            try:
                made = step(tensors, numbers)
            except GptrsError as error:
                return list(map(take_array, self._otherwise(error, values)))
            pinned = step.pin(tensors, numbers)
            # Cleared, not evicted one by one: a model with so many sizes gains little from pins.
            if len(self._pinned) == MAX_PINNED:
                self._pinned.clear()
            if pinned is not None:
                shapes = [tensor.type.shape for tensor in tensors]
                self._pinned[self._signature(shapes, values)] = pinned
            return list(map(take_array, made))

    def _otherwise(self, error: GptrsError, values: Sequence[object]) -> tuple[Tensor, ...]:
        """Return the outputs by a program for these sizes only, or for sizes that are equal alike.

        Raises `error` if neither can help.
        """
        asked = asks_for_sizes(error)
        if (
            self._is_static
            or not self._sizes
            or not (asked or isinstance(error, NotConvertedError))
        ):
            raise error
        before = self._is_merged
        merged = not (asked or before) and bool(self._equal(values))
        # First a program for all sizes that are equal alike, which may serve more calls than one
        # for these sizes alone.
        for self._is_merged, self._is_static in [(True, False)] * merged + [(before, True)]:
            self._steps.clear()
            step, tensors, numbers = self._prepared(values)
            try:
                return step(tensors, numbers)
            except NotConvertedError:
                continue
        self._is_merged, self._is_static = before, False
        self._steps.clear()
        raise error

    def program(self, *values: object) -> Program:
        """Return the program for inputs like these, before optimization; without CHECKS."""
        with use_backend(self.backend):
            step, tensors, numbers = self._prepared(values, checks=False)
            return step.lower(tensors, numbers)

    def _prepared(
        self, values: Sequence[object], *, checks: bool = True
    ) -> tuple[JittedGraph, tuple[Tensor, ...], tuple[int, ...]]:
        weights = [cast("torch.Tensor", values[i]) for i in self._static]
        equal = self._equal(values) if self._is_merged else ()
        if not self._steps or self._changed(weights):
            self._steps.clear()
            weights = self._tracked(weights)
            # Before the weights are read: a write in between is noticed by the next call.
            self._watch = self._watch_of(weights)
        step = self._steps.get((equal, checks))
        if step is None:
            if len(self._steps) == MAX_STEPS:
                self._steps.clear()
            step = self._steps[equal, checks] = self._bound(weights, equal, checks=checks)
        given = tuple([share_array(_given(values[i])) for i in self._tensors])
        return step, given, tuple([cast("int", values[i]) for i in self._numbers])

    def _changed(self, weights: list[torch.Tensor]) -> bool:
        return self._watch is None or self._watch.differ(weights)

    def _tracked(self, weights: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the weights with changes that torch counts.

        The others, made under `torch.inference_mode()`, become inputs.
        """
        pairs = list(zip(self._static, weights, strict=True))
        untracked = [i for i, weight in pairs if weight.is_inference()]
        if untracked:
            warnings.warn(_UNTRACKED, stacklevel=2)
            self._static = [i for i in self._static if i not in untracked]
            self._tensors = sorted([*self._tensors, *untracked])
        return [weight for i, weight in pairs if i not in untracked]

    def _equal(self, values: Sequence[object]) -> Sizes:
        """Return the free sizes that equal an earlier one in this call, with that one."""
        first: dict[int, sympy.Expr] = {}
        found: list[tuple[sympy.Expr, sympy.Expr]] = []
        for symbol, (position, axis) in self._sizes.items():
            size = cast("torch.Tensor", values[position]).shape[axis]
            earlier = first.setdefault(size, symbol)
            if earlier is not symbol:
                found.append((symbol, earlier))
        return tuple(found)

    def _bound(self, weights: list[torch.Tensor], equal: Sizes, *, checks: bool) -> JittedGraph:
        """Return the step that computes with the present contents of these weights.

        With `checks`, the truths of CHECKS follow its outputs.

        `equal` sizes become one: torch has a symbol for each, since nothing compares them.
        """
        # Pins of an earlier step compute with the weights that it had.
        self._pinned.clear()
        named = {self._inputs[i].name: w for i, w in zip(self._static, weights, strict=True)}
        source = TensorSource({**named, **constants_of(self._module)})
        params = Params(source, backend=self.backend, dtype=None, origin="the graph")

        def torch_graph(
            tensors: tuple[Tensor, ...], numbers: tuple[int, ...]
        ) -> tuple[Tensor, ...]:
            conversion = Conversion(self._module, lambda name: params.tensor(name, floating=False))
            for i, given in zip(self._tensors, tensors, strict=True):
                conversion.bind(self._inputs[i], given)
            for i, number in zip(self._numbers, numbers, strict=True):
                conversion.bind(self._inputs[i], number)
            for i in self._static:
                name = self._inputs[i].name
                conversion.bind(self._inputs[i], params.tensor(name, floating=False))
            found = self._tensor_outputs(conversion.run())
            return (*found, *conversion.conditions()) if checks else found

        if self._is_static or not self._sizes:
            return cast("JittedGraph", jit(torch_graph))
        axes = tuple(self._axes(self._inputs[i], dict(equal)) for i in self._tensors)
        return cast("JittedGraph", jit(torch_graph, dynamic={"tensors": axes}))

    def _tensor_outputs(self, values: Sequence[object]) -> tuple[Tensor, ...]:
        """Return the outputs that are tensors, in the types of torch."""
        found: list[Tensor] = []
        for node, value in zip(self._outputs, values, strict=True):
            if node in self._views:
                continue
            if isinstance(value, (Tensor, Complex)):
                made = value.stacked() if isinstance(value, Complex) else value
                _require_rank(node, made)
                found.append(made)
            elif isinstance(node, fx.Node) and _is_tensor(node):
                raise NotConvertedError(node, "does not give a tensor")
        return tuple(found)

    def _axes(self, node: fx.Node, same: Mapping[sympy.Expr, sympy.Expr]) -> tuple[str | None, ...]:
        held = cast("torch.Tensor", node.meta["val"])
        sizes = [*map(expression_of, held.shape), *[None] * held.is_complex()]
        return tuple(None if size is None else _axis_name(same.get(size, size)) for size in sizes)

    def _result(self, node: object, values: Sequence[object], made: Any) -> object:
        if not isinstance(node, fx.Node):
            return node
        if node in self._views:
            return None
        if _is_tensor(node):
            found = tensor_of(_row_major(next(made)), of_parts=_is_complex(node))
            return laid_out(found, self._orders.get(node))
        held = cast("object", node.meta.get("val"))
        expression = expression_of(held)
        return held if expression is None else self._number(expression, values)

    def _number(self, expression: sympy.Expr, values: Sequence[object]) -> int:
        """Return a size among the outputs, computed from those of the inputs."""
        known: dict[sympy.Expr, int] = {}
        for symbol, (position, axis) in self._sizes.items():
            known[symbol] = cast("torch.Tensor", values[position]).shape[axis]
        for position in self._numbers:
            known[_size_of(self._inputs[position])] = cast("int", values[position])
        return int(cast("Any", expression).subs(known))


def _require_rank(node: object, made: Tensor) -> None:
    """Refuse a result with an axis more or less than torch traced: a size was not known to be 1."""
    if not (isinstance(node, fx.Node) and _is_tensor(node)):
        return
    held = cast("torch.Tensor", node.meta["val"])
    if made.rank != held.ndim + held.is_complex():
        raise NotConvertedError(node, f"has {held.ndim} axes in torch, and {made.rank} here")


def _given(value: object) -> np.ndarray:
    """Return an input as programs take it."""
    return array_of(parts_of(cast("torch.Tensor", value)))


def _row_major(array: np.ndarray) -> np.ndarray:
    """Return an array in row-major order: ref gives transposed views."""
    return array if array.flags.c_contiguous else array.copy()


def _is_complex(node: fx.Node) -> bool:
    return _is_tensor(node) and bool(node.meta["val"].is_complex())


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _size_of(node: fx.Node) -> sympy.Expr:
    """Return the expression of an input that is a number; a new symbol if it is no free size."""
    return expression_of(node.meta.get("val")) or sympy.Symbol(node.name)


def _follows(size: sympy.Expr, sizes: Mapping[sympy.Expr, object]) -> bool:
    """Return whether a size is one of these, or is made of them by sums and products."""
    symbols = cast("set[sympy.Expr]", size.free_symbols)
    return size in sizes or (symbols <= sizes.keys() and bool(cast("Any", size).is_polynomial()))


def _size_sources(inputs: Sequence[fx.Node]) -> dict[sympy.Expr, tuple[int, int]]:
    """Return for each free size the position of an input, and its axis of that size."""
    found: dict[sympy.Expr, tuple[int, int]] = {}
    for position, node in enumerate(inputs):
        if _is_tensor(node):
            for axis, size in enumerate(cast("torch.Tensor", node.meta["val"]).shape):
                expression = expression_of(size)
                if expression is not None:
                    found.setdefault(expression, (position, axis))
    return found


def _axis_name(size: sympy.Expr) -> str:
    """Return the name of a size for `jit` (letters and digits), also for an expression."""
    text = str(size)
    # In hex, so that different expressions never get one name.
    return text if text.isidentifier() else "size_" + text.encode().hex()


def _output_of(module: fx.GraphModule) -> Sequence[object]:
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    found = cast("object", output.args[0])
    several = isinstance(found, (tuple, list))
    return cast("Sequence[object]", found) if several else (found,)
