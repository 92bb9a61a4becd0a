"""A program without the computations that depend only on its parameters, and recipes for those."""

from __future__ import annotations

from msgspec import Struct

from gptrs.ir.program import Program


class Recipe(Struct, frozen=True):
    """A derived parameter, computed by a program over parameters of the whole program."""

    program: Program
    """A program with one result."""
    inputs: tuple[int, ...]
    """The indices of the whole program's parameters that it takes."""


class Split(Struct, frozen=True):
    """A program that takes derived parameters, and the recipes for them."""

    program: Program
    inputs: tuple[int | Recipe, ...]
    """For each parameter of `@main`: the index of a parameter of the whole program, or a recipe."""
