"""Derivatives nested like the values that they belong to."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import cast

from gptrs.capture.jitting.pytree import (
    AS_GIVEN,
    LEAF,
    PytreeNode,
    Refusal,
    Static,
    Structure,
    flatten,
    rebuild,
)
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError


def as_tensors(tree: object) -> object:
    """Return an argument with arrays converted to tensors; one that is not a tree is returned
    unchanged."""
    leaves: list[Tensor] = []
    try:
        structure = flatten(tree, leaves, AS_GIVEN)
    except Refusal:
        return tree
    return rebuild(structure, iter(leaves))


def nested(structure: Structure, leaves: Iterator[Tensor | None]) -> object:
    """Return a tree with tensors or None where `structure` has tensors."""
    return rebuild(structure, cast("Iterator[Tensor]", leaves))


def leaves_like(
    what: str, structure: Structure, values: Sequence[Tensor], tree: object
) -> list[Tensor | None]:
    """Return the tensors, or None, of `tree`, which must be nested like `structure`.

    UsageError, which begins with `what`, unless each has the float type of its value.
    """
    found = _leaves(structure, tree)
    if found is None or len(found) != len(values):
        raise UsageError(f"{what} must be nested as the values that they belong to")
    for each, value in zip(found, values, strict=True):
        if each is None:
            continue
        if not value.dtype.is_float:
            raise UsageError(f"{what} for a `{value.type}` must be None, got `{each.type}`")
        if each.type != value.type:
            raise UsageError(f"{what} for a `{value.type}` must be like it, got `{each.type}`")
    return found


def _leaves(structure: Structure, tree: object) -> list[Tensor | None] | None:
    leaves: list[Tensor] = []
    try:
        other = flatten(tree, leaves, AS_GIVEN)
    except Refusal:
        return None
    found: list[Tensor | None] = []
    return found if _pair(structure, other, iter(leaves), found) else None


def _pair(
    wanted: Structure, given: Structure, leaves: Iterator[Tensor], found: list[Tensor | None]
) -> bool:
    if wanted is LEAF:
        found.append(next(leaves) if given is LEAF else None)
        return given is LEAF or (isinstance(given, Static) and given.value is None)
    if isinstance(wanted, Static):
        return isinstance(given, Static)
    if not isinstance(given, tuple):
        return False
    node, rest, *parts = cast("tuple[PytreeNode, Hashable, *tuple[Structure, ...]]", wanted)
    other, left, *others = cast("tuple[PytreeNode, Hashable, *tuple[Structure, ...]]", given)
    return (node, rest, len(parts)) == (other, left, len(others)) and all(
        _pair(*pair, leaves, found) for pair in zip(parts, others, strict=True)
    )
