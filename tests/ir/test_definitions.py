"""The definitions of elementwise ops on special floats, against NumPy in double precision."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gptrs.ir import OPS

VALUES = (
    *(0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -2.5, 3.0, -3.0, 700.5, -800.0),
    *(1e308, -1e308, 1e-310, math.inf, -math.inf, math.nan),
)
UNARY: dict[str, Callable[..., Any]] = {
    "sign": lambda x: x if x == 0 else np.sign(x), "exp": np.exp, "expm1": np.expm1,
    "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "floor": np.floor, "ceil": np.ceil, "round_nearest_even": np.rint,
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "div": np.divide, "rem": np.fmod, "pow": np.float_power,
    "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_special_floats(name: str) -> None:
    count, function = (1, UNARY[name]) if name in UNARY else (2, BINARY[name])
    definition = OPS[name].definition  # pyright: ignore[reportAttributeAccessIssue]
    for operands in itertools.product(VALUES, repeat=count):
        with np.errstate(all="ignore"):
            wanted = float(function(*map(np.float64, operands)))
        found = definition(*operands)
        assert found == pytest.approx(wanted, rel=1e-14, abs=1e-300, nan_ok=True), operands
        if wanted == 0 and name not in ("maximum", "minimum"):
            assert math.copysign(1, found) == math.copysign(1, wanted), operands
