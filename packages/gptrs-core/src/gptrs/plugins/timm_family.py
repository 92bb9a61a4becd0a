"""Describe how timm calls the tensors of a kind of model, and what its sizes say of settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from gptrs.quick_dataclass import dataclass

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of tensors by timm's names."""
Rule = tuple[str, tuple[str, ...]]
"""A pattern of timm's names, and what they are called; several names share the rows."""


def _same_name(name: str, _: Shapes) -> str:
    return name


def _same_shape(_: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape


@dataclass(frozen=True)
class TimmFamily:
    """Architectures of timm that are of one kind; patterns match whole names."""

    architectures: str
    """A pattern of their names, whose groups `settings` may read."""
    rules: Sequence[Rule]
    """The first whose pattern matches a tensor says what the kind calls it."""
    settings: Callable[[re.Match[str], Shapes], dict[str, object]]
    """Makes config.json, without `model_type`; KeyError for a tensor that is missing."""
    pooling: str
    """The `global_pool` that the kind computes."""
    head: str | None = None
    """A tensor without which the kind does not load."""
    counted: Callable[[str, Shapes], str] = _same_name
    """Counts the layers in a name of timm as the kind does; empty for a buffer of no use."""
    shaped: Callable[[str, tuple[int, ...]], tuple[int, ...]] = _same_shape
    """The shape of a tensor in the kind by its name and shape in timm."""
