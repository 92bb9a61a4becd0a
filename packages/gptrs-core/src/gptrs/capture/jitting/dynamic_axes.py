"""The `dynamic` axes of a jitted function: their names, and the sizes that a call gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import cast

from gptrs.capture.jitting.call_signature import CallShape
from gptrs.capture.jitting.pytree import LEAF, Static, Structure, count_tensors
from gptrs.capture.jitting.pytree_nodes import PytreeNode, Refusal, SequenceNode
from gptrs.errors import UsageError
from gptrs.ir.symbolic_dim import symbol
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass

Axes = tuple[str | None, ...]
"""A name for each axis of a tensor, None for one whose size is part of the signature.

`"B+1"` is an axis of one more element than `B`; some tensor must have `B` alone.
"""
AxesTree = object
"""`Axes` for all tensors of an argument; or a tree of them, nested as the argument is."""

_NAME = re.compile(r"([A-Za-z_]\w*)(?:([+-]\d{1,9}))?", re.ASCII)
_SYMBOL = re.compile(r"\?(\d+)")


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """An axis of a tensor of a call that has a name."""

    tensor: int
    axis: int
    name: str
    more: int
    """The size less that of `name`."""
    place: str
    """The tensor in Python notation, for errors."""

    def __str__(self) -> str:
        return f"axis {self.axis} of `{self.place}`"


@dataclass(frozen=True, slots=True)
class AxisPlan:
    """The named axes of all calls of one structure."""

    function: str
    names: tuple[str, ...]
    """The name of each symbol, by its number."""
    alone: tuple[DynamicDim, ...]
    """For each symbol the first axis of its size."""
    dims: tuple[DynamicDim, ...]
    axes: Mapping[int, tuple[int, ...]]
    """The named axes of each tensor with `Axes`."""
    ranks: Mapping[int, tuple[int, str]]
    """For each tensor with `Axes` the rank that they have, and its place."""
    made: dict[tuple[object, ...], TensorType] = field(
        default_factory=dict[tuple[object, ...], TensorType]
    )
    """Types with symbols, by tensor and by what sizes do not decide."""

    def sizes(self, types: Sequence[TensorType]) -> tuple[int, ...]:
        """Return the size of each symbol in a call with these types.

        UsageError if a tensor has another rank than its axes, and where equal names have other
        sizes.
        """
        for tensor, (rank, place) in self.ranks.items():
            if types[tensor].rank != rank:
                raise UsageError(
                    f"`dynamic` of `{self.function}` names {rank} axes of `{place}`, which is a"
                    f" `{types[tensor]}`"
                )
        sizes = tuple([types[dim.tensor].shape[dim.axis] for dim in self.alone])
        numbers = dict(zip(self.names, sizes, strict=True))
        for dim in self.dims:
            found = types[dim.tensor].shape[dim.axis]
            if found != numbers[dim.name] + dim.more:
                raise self._unequal(dim, found, numbers[dim.name])
        return sizes

    def symbolic(self, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Return the types with a symbol in the place of each named dim."""
        found = list(types)
        for tensor in self.ranks:
            shape: list[int | None] = list(types[tensor].shape)
            for axis in self.axes[tensor]:
                shape[axis] = None
            key = (tensor, types[tensor].dtype, *shape)
            known = self.made.get(key)
            if known is None:
                known = self.made[key] = self._with_symbols(tensor, types[tensor])
            found[tensor] = known
        return tuple(found)

    def _with_symbols(self, tensor: int, type_: TensorType) -> TensorType:
        shape = list(type_.shape)
        for dim in self.dims:
            if dim.tensor == tensor:
                shape[dim.axis] = symbol(self.names.index(dim.name)) + dim.more
        return type_.with_shape(tuple(shape))

    def named(self, text: str) -> str:
        """Return `text` with the names of symbols in their places: `N` for `?0`."""

        def name(found: re.Match[str]) -> str:
            number = int(found[1])
            return self.names[number] if number < len(self.names) else found[0]

        return _SYMBOL.sub(name, text)

    def place(self, number: int) -> str:
        """Return where a symbol gets its size, for errors."""
        return f"`{self.names[number]}`, {self.alone[number]}"

    def _unequal(self, dim: DynamicDim, found: int, size: int) -> UsageError:
        first = self.alone[self.names.index(dim.name)]
        wanted = f"{dim.name}{dim.more:+d}" if dim.more else dim.name
        return UsageError(
            f"`{self.function}`: `{dim.name}` is {size} by {first}, and {dim} is {found}"
            f" (`{wanted}`)",
            hint="axes of one name are of one size in a call; give others another name",
        )


class DynamicAxes:
    """The `dynamic` argument of `gptrs.jit`: `Axes`, or trees of them, by label or owner."""

    def __init__(self, function: str, axes: Mapping[str, AxesTree]) -> None:
        self._function = function
        self._axes = axes
        self._plans: dict[tuple[object, ...], AxisPlan] = {}

    def __bool__(self) -> bool:
        return bool(self._axes)

    def plan(self, shape: CallShape, structures: tuple[Structure, ...]) -> AxisPlan:
        """Return the plan of calls of these structures.

        UsageError for axes that do not fit the nesting of an argument, malformed names, and a name
        that no axis has alone.
        """
        key = (shape.labels, structures)
        return self._plans.get(key) or self._plans.setdefault(key, self._plan(shape, structures))

    def _plan(self, shape: CallShape, structures: tuple[Structure, ...]) -> AxisPlan:
        dims: list[DynamicDim] = []
        ranks: dict[int, tuple[int, str]] = {}
        first = 0
        for slot, structure in zip(shape.slots, structures, strict=True):
            tree = self._axes.get(slot.label, self._axes.get(slot.owner))
            for tensor, axes, place in self._of_tensors(tree, structure, first, slot.label):
                ranks[tensor] = len(axes), place
                dims += [
                    DynamicDim(tensor, axis, *self._parsed(name), place)
                    for axis, name in enumerate(axes)
                    if name is not None
                ]
            first += count_tensors(structure)
        names = tuple(dict.fromkeys(dim.name for dim in dims))
        alone = {dim.name: dim for dim in reversed(dims) if not dim.more}
        for name in names:
            if name not in alone:
                raise UsageError(
                    f"`dynamic` of `{self._function}` gives no axis the name `{name}` alone",
                    hint="one axis must have the size itself",
                )
        first_dims = tuple(alone[name] for name in names)
        axes = {tensor: tuple(dim.axis for dim in dims if dim.tensor == tensor) for tensor in ranks}
        return AxisPlan(self._function, names, first_dims, tuple(dims), axes, ranks)

    def _of_tensors(
        self, tree: AxesTree, structure: Structure, first: int, place: str
    ) -> Iterator[tuple[int, Axes, str]]:
        """Yield the position, the axes and the place of each tensor of an argument."""
        if tree is None or isinstance(structure, Static):
            return
        if structure is LEAF:
            if not _is_axes(tree):
                raise self._misfit(place)
            yield first, tree, place
            return
        node, rest, *parts = cast("tuple[PytreeNode, object, *tuple[Structure, ...]]", structure)
        trees = [tree] * len(parts) if _is_axes(tree) else self._parts(tree, node, rest, place)
        if len(trees) != len(parts):
            raise self._misfit(place)
        labels = node.labels(cast("None", rest), len(parts))
        for part, below, label in zip(parts, trees, labels, strict=True):
            yield from self._of_tensors(below, part, first, place + label)
            first += count_tensors(part)

    def _parts(
        self, tree: AxesTree, node: PytreeNode, rest: object, place: str
    ) -> Sequence[AxesTree]:
        if isinstance(node, SequenceNode) and type(tree) not in (tuple, list):
            raise self._misfit(place)
        try:
            parts, found = node.flatten(tree)
        except (Refusal, TypeError, AttributeError):
            raise self._misfit(place) from None
        if found != rest:
            raise self._misfit(place)
        return parts

    def _parsed(self, name: str) -> tuple[str, int]:
        found = _NAME.fullmatch(name)
        if found is None:
            raise UsageError(
                f"`dynamic` of `{self._function}` names an axis {name!r}",
                hint='an axis is named like `"N"`, or `"N+1"` for one more element',
            )
        return found[1], int(found[2] or 0)

    def _misfit(self, place: str) -> UsageError:
        return UsageError(
            f"`dynamic` of `{self._function}` is not nested like `{place}`",
            hint="give each tensor a tuple of names, or one tuple for all tensors of an argument",
        )


def _is_axes(tree: AxesTree) -> bool:
    return type(tree) is tuple and all(
        isinstance(name, str) or name is None for name in cast("tuple[object, ...]", tree)
    )
