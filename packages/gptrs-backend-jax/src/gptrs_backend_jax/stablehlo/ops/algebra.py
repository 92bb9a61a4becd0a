"""Fourier transforms, triangles and factors of matrices, and LAPACK's kernels that JAX calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from gptrs.api.importers import (
    cholesky_factor,
    factored,
    real_signal,
    substituted,
    transformed,
)
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_backend_jax.stablehlo.conversion import Node, converts
from gptrs_backend_jax.stablehlo.ops.elementwise import complex_number, complex_part

_Parts = tuple[Tensor, Tensor]


@converts("fft")
def fourier_transform(node: Node, x: Tensor, *, fft_type: str, fft_length: list[int]) -> Tensor:
    """Return the transform of the last axes, or its inverse, which divides by their elements."""
    kind, axes = fft_type.upper(), [x.rank - len(fft_length) + k for k in range(len(fft_length))]
    if kind == "RFFT":
        half = _along(axes[-1], x, None, fft_length[-1] // 2 + 1, inverse=False)
        return complex_number(node, *_all_along(axes[:-1], half, inverse=False))
    parts = complex_part(node, x, 0), complex_part(node, x, 32)
    if kind == "FFT":
        return complex_number(node, *_all_along(axes, parts, inverse=False))
    scale = 1.0 / max(math.prod(fft_length), 1)
    if kind == "IFFT":
        real, imaginary = _all_along(axes, parts, inverse=True)
        return complex_number(node, real * scale, imaginary * scale)
    if kind != "IRFFT":
        node.malformed(f"has the type `{kind}`")
    real, imaginary = _all_along(axes[:-1], parts, inverse=True)
    return real_signal(real, imaginary, fft_length[-1]) * scale


def _along(axis: int, real: Tensor, rest: Tensor | None, bins: int, *, inverse: bool) -> _Parts:
    other = None if rest is None else F.swap_axes(rest, axis, -1)
    first, second = transformed(F.swap_axes(real, axis, -1), other, bins, inverse)
    return F.swap_axes(first, axis, -1), F.swap_axes(second, axis, -1)


def _all_along(axes: Sequence[int], parts: _Parts, *, inverse: bool) -> _Parts:
    for axis in axes:
        parts = _along(axis, *parts, parts[0].shape[axis], inverse=inverse)
    return parts


@converts("cholesky")
def cholesky(a: Tensor, *, lower: bool = False) -> Tensor:
    """Return the factor of Cholesky; NaN where a matrix has none."""
    return cholesky_factor(a, upper=not lower)[0]


@converts("triangular_solve")
def triangular_solve(
    node: Node,
    a: Tensor,
    b: Tensor,
    *,
    left_side: bool,
    lower: bool,
    unit_diagonal: bool,
    transpose_a: str,
) -> Tensor:
    """Return x with `op(a) x = b`, or `x op(a) = b`, for a triangle a."""
    if a.dtype.is_complex:
        node.refuse(f"of `{a.type}` is not converted")
    if transpose_a not in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
        node.malformed(f"has `transpose_a` {transpose_a}")
    is_turned = transpose_a != "NO_TRANSPOSE"
    return _triangle_solved(
        a, b, left=left_side, lower=lower, unit=unit_diagonal, is_turned=is_turned
    )


def _triangle_solved(
    a: Tensor, b: Tensor, *, left: bool, lower: bool, unit: bool, is_turned: bool
) -> Tensor:
    # `x a = b` is `a' x' = b'`; two turns of a are none.
    if left == is_turned:
        a, lower = F.swap_axes(a, -2, -1), not lower
    given = b if left else F.swap_axes(b, -2, -1)
    found = substituted(a, given, upper=not lower, unit=unit)
    return found if left else F.swap_axes(found, -2, -1)


# Kernels of LAPACK, as JAX calls them on a CPU. Letters are numbers of characters.


def _potrf(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    return cholesky_factor(x, upper=_letter(node, "uplo", "LU") == "U")


def _trsm(node: Node, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    found = _triangle_solved(
        a,
        b,
        left=_letter(node, "side", "LR") == "L",
        lower=_letter(node, "uplo", "LU") == "L",
        unit=_letter(node, "diag", "NU") == "U",
        is_turned=_letter(node, "trans_x", "NTC") != "N",
    )
    return (found,)


def _getrf(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    made, swaps, fault = factored(x)
    return made, F.cast(swaps + 1, node.operation.types[1].dtype), fault


_KERNELS: Final[Mapping[str, tuple[int, Callable[..., tuple[Tensor, ...]]]]] = {
    "potrf": (1, _potrf),
    "trsm": (2, _trsm),
    "getrf": (1, _getrf),
}
"""Kernels with the number of their operands; sizes may follow these."""


def lapack(node: Node, target: str, operands: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """Return the results of a kernel of LAPACK for real matrices; None for another target."""
    known = {f"lapack_{letter}{name}_ffi": name for name in _KERNELS for letter in "sd"}
    if target not in known:
        return None
    count, kernel = _KERNELS[known[target]]
    return kernel(node, *operands[:count])


def _letter(node: Node, name: str, choices: str) -> str:
    config: object = node.attributes.get("mhlo.backend_config")
    found = cast("dict[str, object]", config).get(name) if isinstance(config, dict) else None
    letter = chr(found) if isinstance(found, int) and 0 < found < 128 else ""
    if letter not in list(choices):
        node.malformed(f"has no `{name}` of {', '.join(choices)}")
    return letter
