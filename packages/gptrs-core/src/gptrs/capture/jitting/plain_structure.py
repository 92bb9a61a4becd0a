"""Structures of arguments and results as tuples and strings, for other processes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from gptrs.capture.caching.source_identity import package_of
from gptrs.capture.jitting.pytree import AS_GIVEN, LEAF, LIST, SORTED, TUPLE, Static, Structure
from gptrs.capture.jitting.pytree_nodes import FieldsNode, PytreeNode

_VALUES = (bool, int, float, str, bytes, type(None))
_NODES: dict[str, PytreeNode] = {
    "tuple": TUPLE,
    "list": LIST,
    "sorted dict": SORTED,
    "dict": AS_GIVEN,
}
_KINDS = {id(node): kind for kind, node in _NODES.items()}
_TENSOR = "tensor"
_STATIC = "static"
_FIELDS = "fields"


class NotPlainError(ValueError):
    """A structure holds a value or a container that only this process knows."""


def plain_structure(structure: Structure) -> object:
    """Return a structure as nested tuples; raise NotPlainError where it has no such form.

    It has none with enum members, element types, values of other classes, and containers of
    classes that do not belong to gptrs.
    """
    if structure is LEAF:
        return _TENSOR
    if isinstance(structure, Static):
        if type(structure.value) not in _VALUES:
            raise NotPlainError
        return _STATIC, structure.value
    node, rest, *parts = cast("tuple[PytreeNode, Hashable, *tuple[Structure, ...]]", structure)
    return *_kind(node, rest), *map(plain_structure, parts)


def _kind(node: PytreeNode, rest: Hashable) -> tuple[object, object]:
    if isinstance(node, FieldsNode) and package_of(node.kind.__module__) == "gptrs":
        return _FIELDS, f"{node.kind.__module__}.{node.kind.__qualname__}"
    kind = _KINDS.get(id(node))
    if kind is None or (rest is not None and not _all_strings(rest)):
        raise NotPlainError
    return kind, None if rest is None else cast("tuple[object, ...]", rest)[1:]


def _all_strings(rest: Hashable) -> bool:
    """Whether these are the keys of a dict, after their type, and strings."""
    return isinstance(rest, tuple) and all(
        type(key) is str for key in cast("tuple[object, ...]", rest)[1:]
    )


def structure_of(plain: object) -> Structure:
    """Return the structure of a `plain_structure`; NotPlainError for named fields."""
    if plain == _TENSOR:
        return LEAF
    kind, rest, *parts = cast("tuple[str, Hashable, *tuple[object, ...]]", plain)
    if kind == _STATIC:
        return Static(rest)
    if kind not in _NODES:
        raise NotPlainError
    if rest is not None:
        keys = cast("tuple[str, ...]", rest)
        rest = (*map(type, keys[:1]), *keys)
    return (_NODES[kind], rest, *map(structure_of, parts))
