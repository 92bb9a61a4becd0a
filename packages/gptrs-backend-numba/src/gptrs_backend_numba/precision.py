"""The precision of models with quantized weights, where no option says it."""

from __future__ import annotations

import os

from gptrs.backend.contract import Precision
from gptrs.errors import UsageError
from gptrs.quoting import quoted

VARIABLE = "GPTRS_NUMBA_PRECISION"
PRECISIONS: tuple[Precision, ...] = ("f32", "bf16", "int8")
"""The precisions that there are kernels for."""


def chosen_precision() -> Precision:
    """Return what `GPTRS_NUMBA_PRECISION` says, else `int8`; UsageError if it is no precision.

    Weights that are not quantized are computed with in f32 in any case.
    """
    given = os.environ.get(VARIABLE, "int8")
    for precision in PRECISIONS:
        if precision == given:
            return precision
    raise UsageError(
        f"`{VARIABLE}` must be a precision, got {quoted(given)}",
        hint=f"it has {', '.join(PRECISIONS)}",
    )
