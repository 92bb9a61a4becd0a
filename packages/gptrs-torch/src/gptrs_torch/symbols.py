"""Sizes that torch left free, as expressions over its symbols."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import sympy
import torch


def expression_of(size: object) -> sympy.Expr | None:
    """Return the expression of a size that is free, None for a number and anything else."""
    if not isinstance(size, torch.SymInt):
        return None
    found = cast("sympy.Expr", cast("Any", size).node.expr)
    return None if found.is_number else found


def evaluated(expression: sympy.Expr, sizes: Mapping[sympy.Expr, int]) -> int | None:
    """Return an expression of sizes, None for an operation that PTIR's sizes do not have.

    `sizes` may hold symbols of a program: integers to a type checker, not when it runs.
    """
    if expression in sizes:
        return sizes[expression]
    if expression.is_Integer:
        return int(cast("Any", expression))
    parts = [evaluated(cast("sympy.Expr", part), sizes) for part in expression.args]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if expression.is_Add:
        return sum(known[1:], known[0])
    if expression.is_Mul:
        return math.prod(known[1:], start=known[0])
    if expression.is_Pow and type(known[1]) is int and 0 < known[1] < 5:
        return math.prod([known[0]] * known[1])
    name = type(expression).__name__
    if name in ("FloorDiv", "CleanDiv"):
        return known[0] // known[1]
    return known[0] % known[1] if name in ("Mod", "PythonMod") else None
