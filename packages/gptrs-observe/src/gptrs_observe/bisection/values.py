"""Names of the values of `@main` as its text shows them, and how far apart two arrays are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from gptrs.ir.printer import ValueNames
from gptrs.ir.program import Program, Region, Value

TOLERANCES: Final = {
    "f64": 1e-9,
    "f32": 1e-4,
    "f16": 1e-2,
    "bf16": 5e-2,
    "c64": 1e-4,
    "c128": 1e-9,
}
"""The error allowed by default for each type, relative to the largest magnitude of the tensor.

Four digits of f32: sums of thousands of terms in another order stay below that, a wrong index, a
dropped term or a missing cast does not.
"""
_COARSE: Final = 0.25
"""The same for floats of 8 bits and below, whose steps are an eighth and more."""


def value_names(program: Program) -> dict[Value, str]:
    """Return the name that the text of the program gives to each value of `@main`."""
    names = ValueNames("`@main`")
    found: dict[Value, str] = {}

    def region(body: Region, *, outermost: bool) -> None:
        params = names.define_params(body.params)
        if outermost:
            found.update(zip(body.params, params, strict=True))
        for made in body.instructions:
            for inner in made.regions:
                with names.inner_region():
                    region(inner, outermost=False)
            results = names.define_results(made.results)
            if outermost:
                found.update(zip(made.results, results, strict=True))

    region(program.main.body, outermost=True)
    return found


class Difference(Struct, frozen=True, kw_only=True):
    """How an array differs from the one that is trusted, at its worst element.

    `error` and `allowed` are absolute; both are None where something is not a number, or exact
    values differ.
    """

    where: list[int]
    found: str
    expected: str
    error: float | None = None
    allowed: float | None = None


def difference(
    found: np.ndarray,
    expected: np.ndarray,
    dtype: str,
    tolerance: float | None,
    noise: np.ndarray | None = None,
) -> Difference | None:
    """Return the worst difference of two arrays of one type; None if all elements are close.

    Integers have to be equal, and NaN and infinities have to stand at the same indices. Floats may
    differ by `tolerance` times the largest finite magnitude of `expected`, by default as
    `TOLERANCES` says, and by `noise`, an array of that shape.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        shown = (f"{each.dtype}{list(each.shape)}" for each in (found, expected))
        return Difference(where=[], found=next(shown), expected=next(shown))
    if not found.size:
        return None
    if expected.dtype.kind in "biu" or dtype[:2] in ("si", "ui", "i1"):
        return _at(found, expected, np.asarray(found != expected))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    ours, theirs = found.astype(wide), expected.astype(wide)
    finite = np.isfinite(theirs)
    with np.errstate(invalid="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    odd = ~same & ~(finite & np.isfinite(ours))
    if odd.any():
        return _at(found, expected, odd)
    largest = float(np.abs(theirs[finite]).max(initial=0.0))
    relative = TOLERANCES.get(dtype, _COARSE) if tolerance is None else tolerance
    allowed = np.full(theirs.shape, relative * largest)
    if noise is not None:
        allowed = allowed + noise
    error = np.where(same, 0.0, np.abs(np.where(same, 0, ours) - np.where(same, 0, theirs)))
    if bool((error <= allowed).all()):
        return None
    worst = np.unravel_index(int(np.argmax(error - allowed)), error.shape)
    return _described(found, expected, worst, float(error[worst]), float(allowed[worst]))


def _at(found: np.ndarray, expected: np.ndarray, wrong: np.ndarray) -> Difference | None:
    if not wrong.any():
        return None
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return _described(found, expected, first, None, None)


def _described(
    found: np.ndarray,
    expected: np.ndarray,
    where: Sequence[np.intp],
    error: float | None,
    allowed: float | None,
) -> Difference:
    index = tuple(where)
    return Difference(
        where=[int(each) for each in where],
        found=str(found[index]),
        expected=str(expected[index]),
        error=error,
        allowed=allowed,
    )
