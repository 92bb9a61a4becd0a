"""Nested tuples, lists and dicts of tensors, taken apart into a flat list and put together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import cast

from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError

Tree = object
"""A tensor, a static value (None, bool, int, float, str), or a tuple, list or dict of trees."""


def flatten(tree: Tree, leaves: list[Tensor]) -> Hashable:
    """Append the tensors of `tree` to `leaves` in order; return what remains, as a hashable value.

    The remainder holds the nesting and all static values with their types, so equal remainders and
    equal tensor types mean the same call. UsageError for any other type of object.
    """
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return Tensor
    if isinstance(tree, tuple | list):
        items = cast("tuple[Tree, ...] | list[Tree]", tree)
        return (type(items), *(flatten(item, leaves) for item in items))
    if isinstance(tree, dict):
        entries = cast("dict[Hashable, Tree]", tree)
        return (dict, *((key, flatten(value, leaves)) for key, value in entries.items()))
    if tree is None or isinstance(tree, bool | int | float | str):
        # repr tells 0.0 from -0.0 and makes NaN equal to itself; the type tells 1 from True.
        return (type(tree), repr(tree))
    raise UsageError(
        f"`gptrs.jit` cannot pass a value of type `{type(tree).__name__}`",
        hint="pass tensors, numbers, strings, None, or tuples, lists and dicts of them",
    )


def rebuild(tree: Tree, leaves: Iterator[Tensor]) -> Tree:
    """`tree` with its tensors replaced, in order, by those of `leaves`."""
    if isinstance(tree, Tensor):
        return next(leaves)
    if isinstance(tree, tuple | list):
        items = cast("tuple[Tree, ...] | list[Tree]", tree)
        made = [rebuild(item, leaves) for item in items]
        return made if isinstance(items, list) else _tuple_like(items, made)
    if isinstance(tree, dict):
        entries = cast("dict[Hashable, Tree]", tree)
        return {key: rebuild(value, leaves) for key, value in entries.items()}
    return tree


def _tuple_like(original: tuple[Tree, ...], items: list[Tree]) -> tuple[Tree, ...]:
    make = cast("Callable[..., tuple[Tree, ...]] | None", getattr(original, "_make", None))
    return make(items) if make else tuple(items)
