"""Inverses, determinants and factors of matrices: loops of the program over their columns.

All take matrices as the last two axes, behind any others, and of any size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gptrs.api.importers import cholesky_factor, eliminated, solved, substituted, unit_of
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_torch.conversion import Node, converts
from gptrs_torch.program_check import converted


def _matrices(x: Tensor, axes: int = 2) -> Tensor:
    """Return x with axes of one element at its end."""
    for _ in range(axes):
        x = F.expand_dims(x, -1)
    return x


# Elimination.


@converts("linalg_inv_ex")
def inverse(node: Node, x: Tensor, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """Return the inverse, and the number of the first column without a pivot."""
    _require_no_check(node, check_errors)
    return solved(x, unit_of(x))


def _require_no_check(node: Node, check_errors: bool) -> None:
    if check_errors:
        node.refuse("raises an error if there is no result: leave `check_errors` out")


@converts("_linalg_solve_ex", "linalg_solve_ex")
def solve(
    node: Node, a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, ...]:
    """Return the solution x of `a x = b`, or of `x a = b`, for matrices or vectors b."""
    _require_no_check(node, check_errors)
    is_vector = b.rank == 1 or (b.rank == a.rank - 1 and b.shape == a.shape[:-1])
    given = F.expand_dims(b, -1) if is_vector else b
    if not left:
        a, given = F.swap_axes(a, -2, -1), F.swap_axes(given, -2, -1)
    found, fault = solved(a, given)
    found = found if left else F.swap_axes(found, -2, -1)
    found = F.squeeze(found, -1) if is_vector else found
    if node.name == "linalg_solve_ex":
        return found, fault
    return found, a, fault, fault  # nothing but gradients reads the factors


@converts("_linalg_det")
def determinant(x: Tensor) -> tuple[Tensor, ...]:
    """Return the determinant; nothing but gradients reads the factors behind it."""
    last, pivots, sign = eliminated(x)
    return F.prod(pivots, 0) * sign, last, sign


@converts("_linalg_slogdet")
def log_determinant(x: Tensor) -> tuple[Tensor, ...]:
    """Return the sign of the determinant, and the logarithm of its magnitude."""
    last, pivots, sign = eliminated(x)
    signs = F.prod(F.sign(pivots), 0) * sign
    return signs, F.sum(F.log(F.abs(pivots)), 0), last, sign


# Triangles.


@converts("linalg_solve_triangular")
def triangular_solve(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Return the solution x of `a x = b`, or of `x a = b`; of a, one triangle is read."""
    if left:
        return substituted(a, b, upper=upper, unit=unitriangular)
    turned = F.swap_axes(a, -2, -1), F.swap_axes(b, -2, -1)
    return F.swap_axes(substituted(*turned, upper=not upper, unit=unitriangular), -2, -1)


@converts("linalg_cholesky_ex")
def cholesky(
    node: Node, x: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the factor of Cholesky, and the number of the first column without one."""
    _require_no_check(node, check_errors)
    return cholesky_factor(x, upper=upper)


@converts("cholesky_solve")
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """Return the solution x of `a x = b` by the factor of Cholesky of a."""
    lower = F.swap_axes(factor, -2, -1) if upper else factor
    made = substituted(lower, b, upper=False)
    return substituted(F.swap_axes(lower, -2, -1), made, upper=True)


_TERMS = 14
"""Terms of the series of `exp`, whose rest is below 1e-16 for norms of at most 1/2."""


@converts("linalg_matrix_exp")
def matrix_exponential(node: Node, x: Tensor) -> Tensor:
    """Return `e^x` by its series, for x divided by a power of 2, and as many squares."""
    given = converted(x, node.dtype)
    norm = F.max(F.sum(F.abs(given), -2), -1)
    halvings = F.maximum(F.ceil(F.log2(F.where(norm > 0.5, norm, 0.5))) + 1.0, 0.0)
    small, unit = given / _matrices(F.exp2(halvings)), unit_of(given)
    found = F.broadcast_to(unit, given.shape)
    for term in range(_TERMS, 0, -1):
        found = unit + F.matmul(small, found) * (1.0 / term)
    # NaN and infinities are no counts.
    most = F.minimum(F.max(F.where(F.is_finite(halvings), halvings, 0.0)), 2000.0)

    def is_left(square: Tensor, held: Tensor) -> tuple[Tensor]:
        del held
        return (F.less(square, most),)

    def step(square: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        more = _matrices(F.less(square, halvings))
        return square + 1.0, F.where(more, F.matmul(held, held), held)

    return primitives.while_(is_left, step, F.zeros([], given.dtype), found)[1]


# Operators that raise an error if there is no result, in exported programs.


_ATEN: Any = torch.ops.aten


def checked_rules() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of such operators into those above, and a check by the program."""
    return {
        _ATEN.linalg_inv.default: _inverted,
        _ATEN.inverse.default: _inverted,
        _ATEN.linalg_solve.default: _solution,
        _ATEN.linalg_cholesky.default: _cholesky_factor,
    }


def _require(info: torch.Tensor, told: str) -> None:
    _ATEN._assert_async.msg((info == 0).all(), told)


def _inverted(x: torch.Tensor) -> torch.Tensor:
    found, info = _ATEN.linalg_inv_ex(x)
    _require(info, "a matrix has no inverse")
    return found


def _solution(a: torch.Tensor, b: torch.Tensor, *, left: bool = True) -> torch.Tensor:
    found, _, _, info = _ATEN._linalg_solve_ex(a, b, left=left)
    _require(info, "a matrix of linear equations is singular")
    return found


def _cholesky_factor(x: torch.Tensor, *, upper: bool = False) -> torch.Tensor:
    found, info = _ATEN.linalg_cholesky_ex(x, upper=upper)
    _require(info, "a matrix is not positive definite")
    return found
