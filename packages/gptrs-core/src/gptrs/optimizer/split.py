"""A program without what depends on its parameters alone, and the recipes of the latter."""

from __future__ import annotations

from gptrs.ir.program import Program
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class Recipe:
    """A derived parameter: a program over parameters of the whole one computes it."""

    program: Program
    """A program with one result."""
    inputs: tuple[int, ...]
    """The parameters of the whole program that it takes, by position."""


@dataclass(frozen=True)
class Split:
    """A program that takes derived parameters, and how to make them."""

    program: Program
    inputs: tuple[int | Recipe, ...]
    """By parameter of `@main`: the position of one of the whole program, or a derived one."""
