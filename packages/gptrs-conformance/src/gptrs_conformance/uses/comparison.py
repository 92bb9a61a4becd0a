"""Uses of comparisons, of logic and of choice."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

X, Y = np.round(normal(1, 3, 4)), np.round(normal(2, 4))
EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0], np.float32)
OTHERS = np.array([-0.0, 1.0, np.inf, np.inf, np.nan, np.nan], np.float32)
COUNTS, BITS = np.array([[-3, 0, 2], [9, -1, 1]]), np.array([1, 6, 3])
TRUTHS, BOTH = np.array([[True], [False]]), np.array([True, False, True])
LEVELS = np.array([[7, 250, 0, 1]], np.uint8)
COMPARISONS = (
    ("equal", np.equal, "eq"), ("not_equal", np.not_equal, "ne"), ("less", np.less, "lt"),
    ("less_equal", np.less_equal, "le"), ("greater", np.greater, "gt"),
    ("greater_equal", np.greater_equal, "ge"),
)  # fmt: skip


def _compared(name: str, oracle: Callable[..., Any], torch_name: str) -> list[Use]:
    call = getattr(F, name)

    def torch(torch, *operands):  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
        return getattr(torch, torch_name)(*operands)

    return [
        Use(name, (X, Y), call, oracle, torch=torch),
        Use(name, (EDGES, OTHERS), call, oracle, "edges", torch=torch),
        Use(name, (COUNTS, BITS), call, oracle, "integers", torch=torch),
        Use(name, (TRUTHS, BOTH), call, oracle, "i1", torch=torch),
        Use(name, (X,), lambda x: call(x, 1), lambda x: oracle(x, 1), "a number",
            torch=lambda torch, x: getattr(torch, torch_name)(x, 1)),
    ]  # fmt: skip


USES = (
    *(use for row in COMPARISONS for use in _compared(*row)),
    Use("where", (TRUTHS, X[:2], Y), F.where, np.where,
        torch=lambda torch, c, x, y: torch.where(c, x, y)),
    Use("where", (np.isnan(EDGES), EDGES), lambda c, x: F.where(c, 0, x),
        lambda c, x: np.where(c, 0, x), "a number",
        torch=lambda torch, c, x: torch.where(c, 0, x)),
    Use("where", (TRUTHS, normal(3), normal(4)), F.where, np.where, "the condition expands",
        torch=lambda torch, c, x, y: torch.where(c, x, y)),
    Use("is_inf", (EDGES,), F.is_inf, np.isinf, torch=lambda torch, x: torch.isinf(x)),
    Use("logical_and", (TRUTHS, BOTH), F.logical_and, np.logical_and,
        torch=lambda torch, x, y: torch.logical_and(x, y)),
    Use("logical_or", (TRUTHS, BOTH), F.logical_or, np.logical_or,
        torch=lambda torch, x, y: torch.logical_or(x, y)),
    Use("logical_xor", (TRUTHS, BOTH), F.logical_xor, np.logical_xor,
        torch=lambda torch, x, y: torch.logical_xor(x, y)),
    Use("logical_not", (BOTH,), F.logical_not, np.logical_not,
        torch=lambda torch, x: torch.logical_not(x)),
    Use("bitwise_and", (COUNTS, BITS), F.bitwise_and, np.bitwise_and,
        torch=lambda torch, x, y: torch.bitwise_and(x, y)),
    Use("bitwise_and", (BOTH,), lambda x: F.bitwise_and(x, True), lambda x: x, "a bool",
        torch=lambda torch, x: torch.bitwise_and(x, True)),
    Use("bitwise_or", (COUNTS, BITS), F.bitwise_or, np.bitwise_or,
        torch=lambda torch, x, y: torch.bitwise_or(x, y)),
    Use("bitwise_xor", (LEVELS,), lambda x: F.bitwise_xor(x, 255), lambda x: x ^ 255,
        torch=lambda torch, x: torch.bitwise_xor(x, 255)),
    Use("bitwise_not", (COUNTS,), F.bitwise_not, np.invert,
        torch=lambda torch, x: torch.bitwise_not(x)),
    Use("bitwise_not", (BOTH,), F.bitwise_not, np.invert, "i1",
        torch=lambda torch, x: torch.bitwise_not(x)),
    Use("left_shift", (COUNTS, BITS), F.left_shift, np.left_shift,
        torch=lambda torch, x, y: torch.bitwise_left_shift(x, y)),
    Use("right_shift", (COUNTS, BITS), F.right_shift, np.right_shift,
        torch=lambda torch, x, y: torch.bitwise_right_shift(x, y)),
    Use("right_shift", (LEVELS,), lambda x: F.right_shift(x, 1), lambda x: x >> 1, "unsigned",
        torch=lambda torch, x: torch.bitwise_right_shift(x, 1)),
    Use("is_finite", (EDGES,), F.is_finite, np.isfinite,
        torch=lambda torch, x: torch.isfinite(x)),
    Use("is_nan", (EDGES,), F.is_nan, np.isnan, torch=lambda torch, x: torch.isnan(x)),
)  # fmt: skip
