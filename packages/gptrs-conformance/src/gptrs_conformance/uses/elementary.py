"""Uses of the elementary functions, ordinary values and edges."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X = normal(1, 3, 4)
POSITIVE = np.abs(normal(2, 3, 4)) + np.float32(0.25)
ABOVE_MINUS_1 = POSITIVE - 1
HALVES = np.array([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 3.2, np.inf, np.nan], np.float32)
EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], np.float32)
COUNTS = np.array([[-3, 0, 2], [9, -1, 1]])


def _quietly(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    def called(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return function(x)

    return called


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(value) for value in x.ravel()]).reshape(x.shape)


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


def _reciprocal(x: np.ndarray) -> np.ndarray:
    return 1 / x


# name, the same in NumPy, ordinary values
FUNCTIONS = (
    ("abs", np.abs, X), ("sign", np.sign, X), ("square", np.square, X),
    ("reciprocal", _reciprocal, POSITIVE), ("exp", np.exp, X), ("expm1", np.expm1, X),
    ("log", np.log, POSITIVE), ("log1p", np.log1p, ABOVE_MINUS_1), ("sqrt", np.sqrt, POSITIVE),
    ("rsqrt", _rsqrt, POSITIVE), ("sin", np.sin, X), ("cos", np.cos, X), ("erf", _erf, X),
    ("floor", np.floor, X), ("ceil", np.ceil, X), ("round", np.rint, X),
)  # fmt: skip


def _uses(name: str, oracle: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> list[Use]:
    call, expected = getattr(F, name), _quietly(oracle)

    def torch(torch, x):  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
        return getattr(torch, name)(x)

    return [
        Use(name, (x,), call, expected, torch=torch),
        Use(name, (x[:1, 0].reshape(()),), call, expected, "rank 0", torch=torch),
        Use(name, (x[:0],), call, expected, "empty", torch=torch),
        # torch calls the sign of NaN 0
        Use(name, (EDGES,), call, expected, "edges", torch=None if name == "sign" else torch),
    ]


USES = (
    *(use for name, oracle, x in FUNCTIONS for use in _uses(name, oracle, x)),
    *(
        Use(name, (HALVES,), getattr(F, name), oracle, "halves")
        for name, oracle in (("floor", np.floor), ("ceil", np.ceil), ("round", np.rint))
    ),
    *(
        Use(name, (COUNTS,), getattr(F, name), oracle, "integers")
        for name, oracle in (("abs", np.abs), ("sign", np.sign), ("square", np.square))
    ),
)
