"""Flatten and rebuild tuples, lists, dicts, dataclasses and registered types."""

from __future__ import annotations

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import cast

from typing_extensions import override

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
    """Instances of a dataclass or a named tuple, by their fields."""

    def __init__(self, kind: type[object], names: Sequence[str]) -> None:
        self.kind = kind
        self._names = names
        make = getattr(kind, "_make", None) if tuple in kind.__mro__ else None
        self._make = cast("Callable[[list[Tree]], Tree] | None", make)
        """Makes a named tuple; None for a dataclass."""

    @override
    def flatten(self, value: Tree) -> tuple[Sequence[Tree], Hashable]:
        if self._make:
            return cast("Sequence[Tree]", value), None
        return [getattr(value, name) for name in self._names], None

    @override
    def unflatten(self, rest: Hashable, parts: list[Tree]) -> Tree:
        """Make an instance with these fields as `copy.copy` does, without `__init__`.

        So a frozen dataclass needs no special care, and no check in it sees a placeholder.
        """
        if self._make:
            return self._make(parts)
        made = object.__new__(self.kind)
        for name, part in zip(self._names, parts, strict=True):
            object.__setattr__(made, name, part)
        return made

    @override
    def labels(self, rest: Hashable, count: int) -> list[str]:
        return [f".{name}" for name in self._names]

    @override
    def show(self, rest: Hashable, parts: Sequence[str]) -> str:
        pairs = zip(self._names, parts, strict=True)
        return f"{self.kind.__name__}({', '.join(f'{name}={part}' for name, part in pairs)})"


def fields_node(kind: type[object]) -> FieldsNode | None:
    """Return the node of a dataclass or a named tuple, None for other types."""
    if dataclasses.is_dataclass(kind):
        return FieldsNode(kind, [field.name for field in dataclasses.fields(kind)])
    names = cast("Sequence[str] | None", getattr(kind, "_fields", None))
    return FieldsNode(kind, names) if names is not None and tuple in kind.__mro__ else None


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
            hash(rest)
        except TypeError:
            raise Refusal(
                value,
                f"a `{self._kind.__name__}` whose `flatten` keeps an unhashable"
                f" `{type(rest).__name__}`",
                "return a tuple of what is no tensor",
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
