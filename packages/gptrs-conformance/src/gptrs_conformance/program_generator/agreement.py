"""Whether two results of a generated program are what right backends may both give."""

from __future__ import annotations

import numpy as np

from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.numerics import decode
from gptrs_conformance.program_generator.facts import error_limit
from gptrs_conformance.tolerance import Tolerance


def disagreement(found: np.ndarray, expected: np.ndarray, type_: TensorType) -> str | None:
    """Say how `found`, declared as `type_`, differs from `expected`; None if it may be so.

    Integers and `i1` must be equal, floats close within `error_limit`, and any NaN is any other.
    """
    if TensorType.of(found) != type_:
        return f"is `{TensorType.of(found)}`, expected `{type_}`"
    limit = error_limit(type_.dtype)
    if type_.dtype.is_complex:
        wide = expected.astype(np.complex128)
    else:
        wide = decode(expected) if type_.dtype.is_float else expected
    return Tolerance.close(limit, limit).mismatch(found, wide, type_.dtype)
