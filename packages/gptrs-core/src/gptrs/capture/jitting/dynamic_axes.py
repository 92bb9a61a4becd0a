"""The `dynamic` axes of a jitted function: their names, and their sizes in a call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
from msgspec import Struct, field

from gptrs.capture.jitting.pytree import (
    LEAF,
    PytreeNode,
    Refusal,
    SequenceNode,
    Static,
    Structure,
    Tree,
    count_tensors,
    flatten,
    is_constant,
    path_of,
    rebuild,
)
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.ir.symbolic_dim import symbol
from gptrs.ir.tensor_type import TensorType

# Matches arguments of a call with parameters, in one order and by one name however passed.


Names = Sequence[int | str] | int | str
"""Arguments by index or name; a single one needs no list."""

_EMPTY = inspect.Parameter.empty
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ANY = inspect.Signature(
    [inspect.Parameter("args", _STARS[0]), inspect.Parameter("kwargs", _STARS[1])]
)
"""Stands for the signature of functions without one, such as some written in C."""


class Slot(Struct, frozen=True):
    """One argument of a call."""

    label: str
    """The parameter; `args[1]` for one of `*args`, the keyword for one of `**kwargs`."""
    owner: str
    """The name of the parameter, which may hold several arguments."""
    given: int | str | None
    """Its index or keyword in the call, None for a default."""
    default: object = None
    keyword: str | None = None
    """The keyword that passes it to the function, None for a positional argument."""
    donated: bool = False
    static: bool = False


class CallShape(Struct, frozen=True, eq=False):
    """The set of calls with the same number of positional arguments and the same keywords."""

    function: str
    slots: tuple[Slot, ...]
    labels: tuple[str, ...]
    ordered: bool
    """Whether the positional arguments are exactly the slots."""
    plain: tuple[Structure, ...] | None
    """The structures if each argument that is passed is a tensor; None if they depend on the call.

    Not to flatten such a call takes 5 of 25 us from one with two tensors, on a Zen 3.
    """

    def flatten(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], leaves: list[Tensor]
    ) -> tuple[Structure, ...]:
        """Append the tensors of a call to `leaves`; return the structure of each argument.

        UsageError names the part of an argument that cannot be passed.
        """
        values = args if self.ordered else [_value(slot, args, kwargs) for slot in self.slots]
        structures: list[Structure] = []
        for slot, value in zip(self.slots, values, strict=True):
            if slot.static:
                structures.append(_static(self.function, slot, value))
                continue
            try:
                structures.append(flatten(value, leaves))
            except Refusal as refusal:
                raise refused(
                    refusal, f"`{self.function}` cannot take", value, slot.label
                ) from None
        return tuple(structures)

    def call(
        self,
        function: Callable[..., object],
        structures: Sequence[Structure],
        leaves: Iterator[Tensor],
    ) -> object:
        """Call `function` with arguments of these structures and tensors."""
        args: list[object] = []
        kwargs: dict[str, object] = {}
        for slot, structure in zip(self.slots, structures, strict=True):
            value = rebuild(structure, leaves)
            if slot.keyword is None:
                args.append(value)
            else:
                kwargs[slot.keyword] = value
        return function(*args, **kwargs)


def _plain(slots: Sequence[Slot]) -> tuple[Structure, ...] | None:
    """Return the structures of slots with a tensor for each positional argument, see
    `CallShape.plain`."""
    structures: list[Structure] = []
    for slot in slots:
        if isinstance(slot.given, int) and not slot.static:
            structures.append(LEAF)
        elif slot.given is None and not slot.static and is_constant(slot.default):
            structures.append(flatten(slot.default, []))
        else:
            return None
    return tuple(structures)


def _value(slot: Slot, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    if isinstance(slot.given, int):
        return args[slot.given]
    return slot.default if slot.given is None else kwargs[slot.given]


def _static(function: str, slot: Slot, value: object) -> Static:
    if isinstance(value, Tensor | np.ndarray):
        raise UsageError(
            f"the static argument `{slot.label}` of `{function}` is a tensor",
            hint="static arguments are part of the program; take it off `static`",
        )
    static = Static(cast("Hashable", value))
    try:
        hash(static)
    except TypeError:
        raise UsageError(
            f"the static argument `{slot.label}` of `{function}` has no hash, it is a value of type"
            f" `{type(value).__name__}`",
            hint="pass an immutable value, a tuple instead of a list",
        ) from None
    return static


def refused(refusal: Refusal, what: str, tree: Tree, name: str) -> UsageError:
    """Return the error for a refused part of `tree`, with its Python path."""
    path = path_of(refusal.value, tree, name) or name
    return UsageError(f"{what} {refusal.problem} as `{path}`", hint=refusal.hint)


class CallSignature:
    """The parameters of a function, some of them donated or static."""

    def __init__(
        self, function: Callable[..., object], name: str, donate: Names, static: Names
    ) -> None:
        self._function = name
        self._signature = _signature_of(function)
        self._donated = self._chosen("donate", donate)
        self._static = self._chosen("static", static)
        for both in sorted(self._donated & self._static):
            raise UsageError(f"argument `{both}` of `{name}` cannot be both donated and static")
        self._shapes: dict[Hashable, CallShape] = {}

    def shape(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> CallShape:
        """Return the shape of a call; TypeError if the function cannot be called that way."""
        # An integer where it can be: this is looked up on each call.
        key = (len(args), *kwargs) if kwargs else len(args)
        # Without a lock: threads that come at once compute equal shapes, and one of them stays.
        return self._shapes.get(key) or self._shapes.setdefault(
            key, self._shape(len(args), tuple(kwargs))
        )

    def _chosen(self, what: str, names: Names) -> frozenset[str]:
        listed = (names,) if isinstance(names, int | str) else names
        return frozenset(self.label(what, name) for name in listed)

    def label(self, what: str, name: int | str) -> str:
        """Return the label or owner that `name` denotes; UsageError if there can be no such
        argument."""
        params = self._signature.parameters
        if isinstance(name, str):
            if name in params or self._star(inspect.Parameter.VAR_KEYWORD):
                return name
        else:
            positional = [param for param, found in params.items() if found.kind in _POSITIONAL]
            if 0 <= name < len(positional):
                return positional[name]
            star = self._star(inspect.Parameter.VAR_POSITIONAL)
            if star and name >= 0:
                return f"{star}[{name - len(positional)}]"
        found = ", ".join(map(str, params.values()))
        raise UsageError(
            f"`{what}` names argument `{name}`, which `{self._function}` does not have",
            hint=f"it takes ({found})",
        )

    def _star(self, kind: object) -> str | None:
        params = self._signature.parameters.items()
        return next((name for name, param in params if param.kind is kind), None)

    def _shape(self, count: int, keywords: tuple[str, ...]) -> CallShape:
        try:
            # Bind indices in place of the arguments, to see where each argument goes.
            bound = self._signature.bind(*range(count), **{name: name for name in keywords})
        except TypeError as error:
            raise TypeError(f"`{self._function}`: {error}") from None
        slots: list[Slot] = []
        for name, param in self._signature.parameters.items():
            # In the order of the parameters, so that calls by position and by keyword share a
            # capture.
            slots += self._slots(param, cast("object", bound.arguments.get(name, _EMPTY)))
        labels = tuple(slot.label for slot in slots)
        ordered = [slot.given for slot in slots] == list(range(count))
        plain = None if keywords else _plain(slots)
        return CallShape(self._function, tuple(slots), labels, ordered, plain)

    def _slots(self, param: inspect.Parameter, given: object) -> list[Slot]:
        name = param.name
        if given is _EMPTY:
            return [] if param.kind in _STARS else self._default(param)
        if isinstance(given, tuple):
            positions = enumerate(cast("tuple[int, ...]", given))
            return [self._slot(f"{name}[{i}]", name, position) for i, position in positions]
        if isinstance(given, dict):
            # Sorted: `f(a=1, b=2)` and `f(b=2, a=1)` are one call.
            return [self._slot(key, name, key) for key in sorted(cast("dict[str, str]", given))]
        return [self._slot(name, name, cast("int | str", given))]

    def _slot(self, label: str, owner: str, given: int | str) -> Slot:
        keyword = given if isinstance(given, str) else None
        return Slot(label, owner, given, None, keyword, **self._roles(label, owner))

    def _roles(self, label: str, owner: str) -> dict[str, bool]:
        names = {label, owner}
        return {"donated": bool(names & self._donated), "static": bool(names & self._static)}

    def _default(self, param: inspect.Parameter) -> list[Slot]:
        """Return the slot of a default; empty if it cannot be passed, so that the function supplies
        it."""
        default = cast("object", param.default)
        keyword = None if param.kind is inspect.Parameter.POSITIONAL_ONLY else param.name
        roles = self._roles(param.name, param.name)
        slot = Slot(param.name, param.name, None, default, keyword, **roles)
        try:
            flatten(default, [])
        except Refusal:
            return [slot] if slot.static else []
        return [slot]


def _signature_of(function: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:
        return _ANY


Axes = tuple[str | None, ...]
"""A name for each axis of a tensor, None for an axis whose size is part of the signature. `"B+1"`
is an axis with one more element than `B`; some tensor must have a plain `B`.
"""
AxesTree = object
"""`Axes` for all tensors of an argument; or a tree of them, nested as the argument is."""

_NAME = re.compile(r"([A-Za-z_]\w*)(?:([+-]\d{1,9}))?", re.ASCII)
_SYMBOL = re.compile(r"\?(\d+)")


class DynamicDim(Struct, frozen=True):
    """A named axis of a tensor in a call."""

    tensor: int
    axis: int
    name: str
    more: int
    """Its size minus the size called `name`."""
    where: str
    """The tensor in Python notation, for errors."""

    def __str__(self) -> str:
        return f"axis {self.axis} of `{self.where}`"


class AxisPlan(Struct, frozen=True):
    """The named axes of all calls of one structure."""

    function: str
    names: tuple[str, ...]
    """The name of each symbol, by its number."""
    alone: tuple[DynamicDim, ...]
    """For each symbol, the first axis of that size."""
    dims: tuple[DynamicDim, ...]
    axes: Mapping[int, tuple[int, ...]]
    """The named axes of each tensor with `Axes`."""
    ranks: Mapping[int, tuple[int, str]]
    """For each tensor with `Axes`: its rank and index."""
    made: dict[tuple[object, ...], TensorType] = field(
        default_factory=dict[tuple[object, ...], TensorType]
    )
    """Types with symbols, cached by tensor and the size-independent part of its type."""

    def sizes(self, types: Sequence[TensorType]) -> tuple[int, ...]:
        """Return the size of each symbol in a call with these types.

        UsageError if the rank of a tensor differs from its number of axes, or if axes of one name
        differ in size.
        """
        for tensor, (rank, where) in self.ranks.items():
            if types[tensor].rank != rank:
                raise UsageError(
                    f"`dynamic` of `{self.function}` names {rank} axes of `{where}`, which is a"
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
        """Return the types with a symbol for each named dim."""
        found = list(types)
        for tensor in self.ranks:
            shape: list[int | None] = list(types[tensor].shape)
            # Without the free sizes: the key is then the same for each call, whatever they are.
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
        """Return `text` with symbols replaced by their names: `N` for `?0`."""

        def name(found: re.Match[str]) -> str:
            number = int(found[1])
            # A program may have symbols of its own, such as those of results, that no axis names.
            return self.names[number] if number < len(self.names) else found[0]

        return _SYMBOL.sub(name, text)

    def where(self, number: int) -> str:
        """Describe the axis that gives a symbol its size, for errors."""
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

        UsageError for axes that do not match the nesting of an argument, malformed names, and a
        name without a plain axis.
        """
        key = (shape.labels, structures)
        return self._plans.get(key) or self._plans.setdefault(key, self._plan(shape, structures))

    def _plan(self, shape: CallShape, structures: tuple[Structure, ...]) -> AxisPlan:
        dims: list[DynamicDim] = []
        ranks: dict[int, tuple[int, str]] = {}
        first = 0
        for slot, structure in zip(shape.slots, structures, strict=True):
            tree = self._axes.get(slot.label, self._axes.get(slot.owner))
            for tensor, axes, where in self._of_tensors(tree, structure, first, slot.label):
                ranks[tensor] = len(axes), where
                dims += [
                    DynamicDim(tensor, axis, *self._parsed(name), where)
                    for axis, name in enumerate(axes)
                    if name is not None
                ]
            first += count_tensors(structure)
        names = tuple(dict.fromkeys(dim.name for dim in dims))
        # Reversed, so that the first axis of a name is the one that stays.
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
        self, tree: AxesTree, structure: Structure, first: int, where: str
    ) -> Iterator[tuple[int, Axes, str]]:
        """Yield the position, the axes and the path of each tensor of an argument."""
        if tree is None or isinstance(structure, Static):
            return
        if structure is LEAF:
            if not _is_axes(tree):
                raise self._misfit(where)
            yield first, tree, where
            return
        node, rest, *parts = cast("tuple[PytreeNode, object, *tuple[Structure, ...]]", structure)
        trees = [tree] * len(parts) if _is_axes(tree) else self._parts(tree, node, rest, where)
        if len(trees) != len(parts):
            raise self._misfit(where)
        labels = node.labels(cast("None", rest), len(parts))
        for part, below, label in zip(parts, trees, labels, strict=True):
            yield from self._of_tensors(below, part, first, where + label)
            first += count_tensors(part)

    def _parts(
        self, tree: AxesTree, node: PytreeNode, rest: object, where: str
    ) -> Sequence[AxesTree]:
        if isinstance(node, SequenceNode) and type(tree) not in (tuple, list):
            raise self._misfit(where)
        try:
            parts, found = node.flatten(tree)
        except (Refusal, TypeError, AttributeError):
            raise self._misfit(where) from None
        if found != rest:
            raise self._misfit(where)
        return parts

    def _parsed(self, name: str) -> tuple[str, int]:
        found = _NAME.fullmatch(name)
        if found is None:
            raise UsageError(
                f"`dynamic` of `{self._function}` names an axis {name!r}",
                hint='an axis is named like `"N"`, or `"N+1"` for one more element',
            )
        return found[1], int(found[2] or 0)

    def _misfit(self, where: str) -> UsageError:
        return UsageError(
            f"`dynamic` of `{self._function}` is not nested like `{where}`",
            hint="give each tensor a tuple of names, or one tuple for all tensors of an argument",
        )


def _is_axes(tree: AxesTree) -> bool:
    return type(tree) is tuple and all(
        isinstance(name, str) or name is None for name in cast("tuple[object, ...]", tree)
    )
