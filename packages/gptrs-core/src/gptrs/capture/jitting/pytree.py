"""Flatten nested containers of tensors into a list and a structure, and rebuild them.

A tree is a tensor; an array, which is copied to a tensor; a static value (None, bool, int, float,
str, bytes, an Enum, a DType); or a tuple, list, dict, named tuple, dataclass, Struct or instance of
a registered class whose parts are trees.
"""

from __future__ import annotations

import enum
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import itemgetter
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from gptrs.capture.tensor import Tensor
from gptrs.errors import ProgramError, UsageError
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.record_fields import field_names, taken_apart, with_fields

# Flatten and rebuild tuples, lists, dicts, records and registered types.


Tree = object
"""A tensor, an array, a static value, or a container of trees (see `jitting.pytree`)."""


class Refusal(Exception):  # noqa: N818 - it never reaches a user
    """A value that cannot be part of a tree, with the reason; becomes a UsageError with a path."""

    def __init__(self, value: object, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.value = value
        self.problem = problem
        self.hint = hint


class PytreeNode(ABC):
    """How one type of container is flattened and rebuilt. Nodes compare by identity."""

    @abstractmethod
    def flatten(self, value: Tree) -> tuple[Sequence[Tree], Hashable]:
        """Return the parts of `value` in order, and its hashable static part."""

    @abstractmethod
    def unflatten(self, rest: Hashable, parts: list[Tree]) -> Tree:
        """Return the container with these parts: the inverse of `flatten`."""

    @abstractmethod
    def labels(self, rest: Hashable, count: int) -> list[str]:
        """Return the Python path of each part: `[0]`, `["a"]`, `.mean`."""

    @abstractmethod
    def show(self, rest: Hashable, parts: Sequence[str]) -> str:
        """Return the container in Python notation, from the texts of its parts."""


def _positions(count: int) -> list[str]:
    return [f"[{index}]" for index in range(count)]


class SequenceNode(PytreeNode):
    """Tuples or lists."""

    def __init__(self, kind: type[tuple[Tree, ...]] | type[list[Tree]], brackets: str) -> None:
        self._kind = kind
        self._brackets = brackets

    @override
    def flatten(self, value: Tree) -> tuple[Sequence[Tree], Hashable]:
        return cast("Sequence[Tree]", value), None

    @override
    def unflatten(self, rest: Hashable, parts: list[Tree]) -> Tree:
        return parts if self._kind is list else tuple(parts)

    @override
    def labels(self, rest: Hashable, count: int) -> list[str]:
        return _positions(count)

    @override
    def show(self, rest: Hashable, parts: Sequence[str]) -> str:
        comma = "," if self._kind is tuple and len(parts) == 1 else ""
        return f"{self._brackets[0]}{', '.join(parts)}{comma}{self._brackets[1]}"


class DictNode(PytreeNode):
    """Dicts. In arguments they are sorted by key, in results they keep their order."""

    def __init__(self, ordered: Callable[[dict[Hashable, Tree]], list[Hashable]]) -> None:
        self._ordered = ordered

    @override
    def flatten(self, value: Tree) -> tuple[Sequence[Tree], Hashable]:
        """Return the values in the order of the keys; Refusal if these have no order."""
        entries = cast("dict[Hashable, Tree]", value)
        keys = self._ordered(entries)
        # With the type of the keys: 1, 1.0 and True are equal as keys, but not the same call.
        return [entries[key] for key in keys], (*map(type, keys[:1]), *keys)

    @override
    def unflatten(self, rest: Hashable, parts: list[Tree]) -> Tree:
        return dict(zip(_keys(rest), parts, strict=True))

    @override
    def labels(self, rest: Hashable, count: int) -> list[str]:
        return [f"[{_quoted(key)}]" for key in _keys(rest)]

    @override
    def show(self, rest: Hashable, parts: Sequence[str]) -> str:
        pairs = zip(_keys(rest), parts, strict=True)
        return "{" + ", ".join(f"{_quoted(key)}: {part}" for key, part in pairs) + "}"


def _keys(rest: Hashable) -> tuple[Hashable, ...]:
    return cast("tuple[Hashable, ...]", rest)[1:]


def _quoted(key: Hashable) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


_STRINGS: set[type] = {str}


def sorted_keys(entries: dict[Hashable, Tree]) -> list[Hashable]:
    """Return the keys in order; Refusal unless they are of one type that has an order."""
    kinds = set(map(type, entries))
    if len(kinds) > 1:
        raise _no_order(entries, kinds)
    # Plain enums have no order of their own; their names do, and do not change between processes.
    if kinds != _STRINGS and any(issubclass(kind, enum.Enum) for kind in kinds):
        return sorted(entries, key=lambda key: cast("enum.Enum", key).name)
    try:
        return list[Hashable](sorted(cast("dict[str, Tree]", entries)))
    except TypeError:
        raise _no_order(entries, kinds) from None


def _no_order(entries: dict[Hashable, Tree], kinds: set[type]) -> Refusal:
    names = ", ".join(sorted(f"`{kind.__name__}`" for kind in kinds))
    return Refusal(
        entries,
        f"a dict whose keys have no order (they are {names})",
        "use strings as keys: entries are passed in the order of their keys",
    )


class FieldsNode(PytreeNode):
    """Instances of a Struct, a dataclass or a named tuple, by their fields."""

    def __init__(self, kind: type[object], names: Sequence[str]) -> None:
        self.kind = kind
        self._names = names
        # A class that merely has a `_make` is no named tuple.
        make = getattr(kind, "_make", None) if tuple in kind.__mro__ else None
        self._make = cast("Callable[[list[Tree]], Tree] | None", make)
        """Constructs a named tuple; None for a record."""

    @override
    def flatten(self, value: Tree) -> tuple[Sequence[Tree], Hashable]:
        if self._make:
            return cast("Sequence[Tree]", value), None
        taken_apart(value)
        return [getattr(value, name) for name in self._names], None

    @override
    def unflatten(self, rest: Hashable, parts: list[Tree]) -> Tree:
        if self._make:
            return self._make(parts)
        return with_fields(self.kind, zip(self._names, parts, strict=True))

    @override
    def labels(self, rest: Hashable, count: int) -> list[str]:
        return [f".{name}" for name in self._names]

    @override
    def show(self, rest: Hashable, parts: Sequence[str]) -> str:
        pairs = zip(self._names, parts, strict=True)
        return f"{self.kind.__name__}({', '.join(f'{name}={part}' for name, part in pairs)})"


def fields_node(kind: type[object]) -> FieldsNode | None:
    """Return the node of a record or a named tuple, None for other types."""
    names = field_names(kind)
    if names is None and tuple in kind.__mro__:
        names = cast("Sequence[str] | None", getattr(kind, "_fields", None))
    return None if names is None else FieldsNode(kind, names)


class RegisteredNode(PytreeNode):
    """Instances of a class registered by `register_pytree`."""

    def __init__(
        self,
        kind: type,
        flatten: Callable[[Tree], tuple[Sequence[Tree], Hashable]],
        unflatten: Callable[[Hashable, Sequence[Tree]], Tree],
    ) -> None:
        self._kind = kind
        self._flatten = flatten
        self._unflatten = unflatten

    @override
    def flatten(self, value: Tree) -> tuple[Sequence[Tree], Hashable]:
        """Call the registered function; Refusal if the static part has no hash."""
        parts, rest = self._flatten(value)
        try:
            # Here rather than at the lookup, where the error could not say which class is at fault.
            hash(rest)
        except TypeError:
            raise Refusal(
                value,
                f"a `{self._kind.__name__}` whose `flatten` keeps an unhashable"
                f" `{type(rest).__name__}`",
                "return a tuple of the values that are not tensors",
            ) from None
        return parts, rest

    @override
    def unflatten(self, rest: Hashable, parts: list[Tree]) -> Tree:
        return self._unflatten(rest, parts)

    @override
    def labels(self, rest: Hashable, count: int) -> list[str]:
        return _positions(count)

    @override
    def show(self, rest: Hashable, parts: Sequence[str]) -> str:
        return f"{self._kind.__name__}({', '.join(parts)})"


Container = TypeVar("Container")

Structure = Hashable
"""LEAF, a Static, or a tuple of a PytreeNode, the rest of its value, and its parts.

Equal structures and equal types of the tensors mean the same call."""

LEAF = Tensor
"""The mark of a tensor in a structure."""

TUPLE, LIST = SequenceNode(tuple, "()"), SequenceNode(list, "[]")
SORTED = DictNode(sorted_keys)
AS_GIVEN = DictNode(list)
"""Flatten dicts in insertion order: a function decides the order of its results."""

_BUILT_IN: dict[type, PytreeNode] = {tuple: TUPLE, list: LIST, dict: SORTED}
_STATIC_TYPES = (bool, int, float, str, bytes, enum.Enum, DType, type(None))

_nodes: dict[type, PytreeNode] = dict(_BUILT_IN)
_registered: set[type] = set(_BUILT_IN)
_lock = ForkSafeLock()


class Static:
    """A value that is part of a signature: equal to another of equal value and equal type."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self._key = _static_key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _static_key(value: Hashable) -> Hashable:
    """Distinguishes 1 from True and 1.0, and 0.0 from -0.0; NaN equals NaN."""
    if isinstance(value, float):
        # By bits: NaN would otherwise miss the cache on each call, and -0.0 would hit that of 0.0.
        return type(value), float.hex(value)
    if isinstance(value, tuple):
        items = cast("tuple[Hashable, ...]", value)
        return (cast("type", type(items)), *map(_static_key, items))
    return type(value), value


_NONE = Static(None)


def register_pytree(
    cls: type[Container],
    flatten: Callable[[Container], tuple[Sequence[object], Hashable]],
    unflatten: Callable[[Hashable, Sequence[object]], Container],
) -> None:
    """Let functions compiled by `gptrs.jit` take and return instances of `cls`.

    `flatten(value)` returns its parts - tensors, static values, containers of them - and the rest
    of its content as one hashable value; `unflatten(rest, parts)` reconstructs it from other
    tensors. It applies to `cls` itself, not to subclasses, in all threads, until the process ends.
    UsageError when `cls` is known already.
    """
    if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"`register_pytree` needs a class, got `{cls!r}`")
    node = RegisteredNode(
        cls, cast("Callable[[Tree], tuple[Sequence[Tree], Hashable]]", flatten), unflatten
    )
    with _lock:
        # A second registration would change the structure of calls that are compiled already.
        if cls in _registered or issubclass(cls, (Tensor, *_STATIC_TYPES)):
            raise UsageError(f"`register_pytree`: `{cls.__name__}` is known already")
        _registered.add(cls)
        _nodes[cls] = node


def flatten(tree: Tree, leaves: list[Tensor], dicts: DictNode = SORTED) -> Structure:
    """Append the tensors of `tree` to `leaves` in order; return what remains.

    Refusal if it is not a tree (see `flatten_named`).
    """
    kind = type(tree)
    if kind is Tensor:
        leaves.append(cast("Tensor", tree))
        return LEAF
    if tree is None:
        return _NONE
    if kind is np.ndarray:  # before the search for a node, which takes as long as a small program
        leaves.append(_tensor_of(cast("np.ndarray", tree)))
        return LEAF
    node = dicts if kind is dict else _nodes.get(kind) or _node_of(kind)
    if node is None:
        return _flatten_single(tree, leaves)
    if kind is tuple or kind is list:  # most are: no call for them
        parts, rest = cast("Sequence[Tree]", tree), None
    else:
        parts, rest = node.flatten(tree)
    structure: list[object] = [node, rest]
    for part in parts:
        if type(part) is Tensor:  # nearly all are: no call for each
            leaves.append(part)
            structure.append(LEAF)
        else:
            structure.append(flatten(part, leaves, dicts))
    return tuple(structure)


def _node_of(kind: type[object]) -> PytreeNode | None:
    """Return the node of a record or named tuple that is seen for the first time."""
    made = None if issubclass(kind, _STATIC_TYPES) else fields_node(kind)
    if made is None:
        return None
    with _lock:
        # Two threads may meet a class at once: nodes compare by identity, so both must get the same
        # one.
        return _nodes.setdefault(kind, made)


def _flatten_single(tree: Tree, leaves: list[Tensor]) -> Structure:
    # `np.str_` and `np.bytes_` are both NumPy scalars and Python strings: these are static.
    if isinstance(tree, np.ndarray | np.generic) and not isinstance(tree, str | bytes):
        leaves.append(_tensor_of(np.asarray(cast("npt.ArrayLike", tree))))
        return LEAF
    if isinstance(tree, _STATIC_TYPES):
        return Static(tree)
    problem = f"a value of type `{type(tree).__name__}`"
    if callable(tree):
        raise Refusal(
            tree,
            problem,
            "let the function use it without taking it, as the bound method of a model does"
            " (`gptrs.jit(model.forward)`), or name the argument in `static`",
        )
    raise Refusal(
        tree,
        problem,
        "pass tensors, arrays, numbers, strings, None, and containers of them; register other"
        " containers with `gptrs.register_pytree`, and name other arguments in `static`",
    )


def _tensor_of(array: np.ndarray) -> Tensor:
    try:
        return Tensor.of_array(array)
    except ProgramError:
        problem = f"an array of `{array.dtype}`, which has no PTIR counterpart"
        raise Refusal(array, problem, "convert its elements first") from None


def rebuild(structure: Structure, leaves: Iterator[Tensor]) -> Tree:
    """Return the tree of `structure`, with its tensors taken in order from `leaves`."""
    if structure is LEAF:
        return next(leaves)
    if isinstance(structure, Static):
        return structure.value
    node, rest, *parts = cast("tuple[PytreeNode, Hashable, *tuple[Structure, ...]]", structure)
    return node.unflatten(
        rest, [next(leaves) if part is LEAF else rebuild(part, leaves) for part in parts]
    )


def is_constant(value: object) -> bool:
    """Return whether a value has one structure forever: a static one, or a tuple of such."""
    if type(value) is tuple:
        return all(map(is_constant, cast("tuple[object, ...]", value)))
    return type(value) in _STATIC_TYPES  # a scalar of NumPy is a tensor


Rebuild = Callable[[Sequence[Tensor]], Tree]
"""Makes a tree of one structure from its tensors, see `rebuilder`."""


def rebuilder(structure: Structure) -> Rebuild:
    """`rebuild` for one structure, prepared for many calls."""
    return _rebuilder(structure, itertools.count())


def _rebuilder(structure: Structure, numbers: Iterator[int]) -> Rebuild:
    if structure is LEAF:
        return itemgetter(next(numbers))
    if isinstance(structure, Static):
        return lambda _, value=structure.value: value
    node, rest, *parts = cast("tuple[PytreeNode, Hashable, *tuple[Structure, ...]]", structure)
    # `itemgetter` of one index would return the item itself, not a tuple.
    if node is TUPLE and len(parts) > 1 and all(part is LEAF for part in parts):
        return itemgetter(*[next(numbers) for _ in parts])
    builds = [_rebuilder(part, numbers) for part in parts]
    if node is LIST:
        return lambda leaves: [build(leaves) for build in builds]
    return lambda leaves: node.unflatten(rest, [build(leaves) for build in builds])


def show(structure: Structure, types: Iterator[TensorType]) -> str:
    """Return the tree with types instead of tensors: `{"a": [f32[2], 3]}`."""
    if structure is LEAF:
        return str(next(types))
    if isinstance(structure, Static):
        return repr(structure.value)
    node, rest, *parts = cast("tuple[PytreeNode, Hashable, *tuple[Structure, ...]]", structure)
    return node.show(rest, [show(part, types) for part in parts])


def count_tensors(structure: Structure) -> int:
    """Return the number of tensors in the tree."""
    if structure is LEAF:
        return 1
    if isinstance(structure, Static):
        return 0
    _, _, *parts = cast("tuple[PytreeNode, Hashable, *tuple[Structure, ...]]", structure)
    return sum(map(count_tensors, parts))


def path_of(refused: object, tree: Tree, path: str) -> str | None:
    """Return the Python path of `refused` below `path`; None if `tree` does not contain it."""
    # By identity: equal values may occur elsewhere in the tree, and arrays do not compare to a
    # bool.
    if tree is refused:
        return path
    node = _nodes.get(type(tree))
    if node is None:
        return None
    parts, rest = node.flatten(tree)
    for label, part in zip(node.labels(rest, len(parts)), parts, strict=True):
        found = path_of(refused, part, path + label)
        if found is not None:
            return found
    return None
