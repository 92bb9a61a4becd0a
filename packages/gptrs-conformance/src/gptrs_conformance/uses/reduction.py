"""Uses of reductions, over one axis, several, all, and no elements."""

# The table below is of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gptrs import functionals as F
from gptrs.ir import dtypes
from gptrs_conformance.functional_use import Use
from gptrs_conformance.numerics import EXACT
from gptrs_conformance.running import normal

X = normal(1, 2, 3, 4)
COUNTS = np.array([[3, -1, 4], [1, -5, 9]])
EMPTY = normal(2, 2, 0)
EDGES = np.array([[0.0, -1.0, np.inf], [np.nan, 1.0, 2.0], [-np.inf, 3.0, 4.0]], np.float32)
TRUTHS = np.array([[True, False, True], [True, True, True], [False, False, False]])
AXES = {"all": None, "first": 0, "last": -1, "two": (0, 2), "none": ()}


def _over_axes(
    name: str, oracle: Callable[..., Any], torch: Callable[..., Any] | None, x: np.ndarray
) -> list[Use]:
    call = getattr(F, name)
    return [
        Use(name, (x,), lambda x, a=axis, k=keep: call(x, a, keepdims=k),
            lambda x, a=axis, k=keep: oracle(x, axis=a, keepdims=k),
            f"{label} axes, keepdims" if keep else f"{label} axes",
            torch=torch and functools.partial(_torch_over, torch, axis, keep))
        for label, axis in AXES.items() for keep in (False, True)
    ]  # fmt: skip


def _torch_over(
    call: Callable[..., Any],
    axis: int | tuple[int, ...] | None,
    keepdims: bool,
    torch: Any,
    x: Any,
) -> Any:
    dims = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    return call(torch, x, tuple(dims), keepdims)


def _torch_prod(torch: Any, x: Any, dims: tuple[int, ...], keep: bool) -> Any:
    for dim in sorted((dim % x.ndim for dim in dims), reverse=True):
        x = torch.prod(x, dim, keep)
    return x


def _unless_none(name: str) -> Callable[..., Any]:
    # torch takes an empty list of axes for all of them
    def call(torch: Any, x: Any, dims: tuple[int, ...], keep: bool) -> Any:
        return getattr(torch, name)(x, dims, keepdim=keep) if dims else x

    return call


def _logsumexp(x: np.ndarray, axis: Any = None, keepdims: bool = False) -> np.ndarray:
    peak = x.max(axis, keepdims=True)
    shift = np.where(np.isfinite(peak), peak, 0)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(x - shift).sum(axis, keepdims=keepdims))
    return total + shift.reshape(total.shape)


def _argmax(x: np.ndarray) -> np.ndarray:
    return np.argmax(x, 1)


USES = (
    *_over_axes("sum", np.sum, _unless_none("sum"), X),
    *_over_axes("prod", np.prod, _torch_prod, X),
    *_over_axes("mean", np.mean, _unless_none("mean"), X),
    *_over_axes("max", np.max, _unless_none("amax"), X),
    *_over_axes("min", np.min, _unless_none("amin"), X),
    *_over_axes("variance", np.var, None, X),
    *_over_axes("std", np.std, None, X),
    *_over_axes("logsumexp", _logsumexp, _unless_none("logsumexp"), X),
    *_over_axes("any", np.any, None, TRUTHS.reshape(3, 1, 3)),
    *_over_axes("all", np.all, None, TRUTHS.reshape(3, 1, 3)),
    Use("sum", (COUNTS,), lambda x: F.sum(x, 0), lambda x: x.sum(0), "integers",
        torch=lambda torch, x: x.sum(0)),
    Use("sum", (EMPTY,), lambda x: F.sum(x, 1), lambda x: x.sum(1), "no elements",
        torch=lambda torch, x: x.sum(1)),
    Use("sum", (normal(3),), F.sum, np.sum, "rank 0", torch=lambda torch, x: x.sum()),
    Use("prod", (EMPTY,), lambda x: F.prod(x, 1), lambda x: x.prod(1), "no elements",
        torch=lambda torch, x: x.prod(1)),
    Use("max", (EDGES,), lambda x: F.max(x, 1), lambda x: x.max(1), "edges",
        torch=lambda torch, x: x.amax(1)),
    Use("max", (EMPTY,), lambda x: F.max(x, 1), lambda x: np.full(2, -np.inf), "no elements"),
    Use("min", (EDGES,), lambda x: F.min(x, 1), lambda x: x.min(1), "edges",
        torch=lambda torch, x: x.amin(1)),
    Use("min", (COUNTS,), F.min, np.min, "integers", torch=lambda torch, x: x.min()),
    Use("mean", (EMPTY,), lambda x: F.mean(x, 1), lambda x: np.full(2, np.nan), "no elements",
        torch=lambda torch, x: x.mean(1)),
    Use("mean", (normal(4, 3, 500) + 100,), lambda x: F.mean(x, -1), lambda x: x.mean(-1),
        "large values", torch=lambda torch, x: x.mean(-1)),
    Use("variance", (X,), lambda x: F.variance(x, 1, correction=1), lambda x: x.var(1, ddof=1),
        "Bessel", torch=lambda torch, x: torch.var(x, 1)),
    Use("variance_and_mean", (X,), lambda x: F.variance_and_mean(x, 1, correction=1),
        lambda x: (x.var(1, ddof=1), x.mean(1)),
        torch=lambda torch, x: torch.var_mean(x, dim=1, correction=1)),
    Use("variance_and_mean", (X + np.float32(1000),),
        lambda x: F.variance_and_mean(x, keepdims=True),
        lambda x: (x.var(keepdims=True), x.mean(keepdims=True)), "of all, far from 0"),
    Use("variance_and_mean", (np.full((3, 100), 3.3, np.float32),),
        lambda x: F.variance_and_mean(x, 1), lambda x: (np.zeros(3), x[:, 0]), "equal elements",
        tolerance=lambda expected, dtype: EXACT),
    Use("variance", (X,), lambda x: F.variance(x, (0, 1)), lambda x: x.var((0, 1)), "biased",
        torch=lambda torch, x: torch.var(x, (0, 1), correction=0)),
    Use("variance", (X[:1],), lambda x: F.variance(x, 0, correction=1),
        lambda x: np.full((3, 4), np.nan), "of one, Bessel"),
    Use("std", (X,), lambda x: F.std(x, -1, correction=1), lambda x: x.std(-1, ddof=1),
        "Bessel", torch=lambda torch, x: torch.std(x, -1)),
    Use("logsumexp", (EDGES,), lambda x: F.logsumexp(x, 1), lambda x: _logsumexp(x, 1), "edges",
        torch=lambda torch, x: torch.logsumexp(x, 1)),
    Use("logsumexp", (np.full((2, 3), -np.inf, np.float32),), lambda x: F.logsumexp(x, 1),
        lambda x: x[:, 0], "nothing but -inf", torch=lambda torch, x: torch.logsumexp(x, 1)),
    Use("any", (TRUTHS,), lambda x: F.any(x, 1), lambda x: x.any(1), "each row",
        torch=lambda torch, x: torch.any(x, 1)),
    Use("any", (TRUTHS[:0],), F.any, np.any, "no elements", torch=lambda torch, x: torch.any(x)),
    Use("all", (TRUTHS,), lambda x: F.all(x, 1), lambda x: x.all(1), "each row",
        torch=lambda torch, x: torch.all(x, 1)),
    Use("all", (TRUTHS[:0],), F.all, np.all, "no elements", torch=lambda torch, x: torch.all(x)),
    Use("argmax", (X,), F.argmax, np.argmax, torch=lambda torch, x: torch.argmax(x)),
    Use("argmax", (X,), lambda x: F.argmax(x, 1, keepdims=True),
        lambda x: x.argmax(1, keepdims=True), "keepdims",
        torch=lambda torch, x: torch.argmax(x, 1, keepdim=True)),
    Use("argmax", (X,), lambda x: F.argmax(x, keepdims=True),
        lambda x: np.reshape(x.argmax(), (1, 1, 1)), "all, keepdims"),
    Use("argmax", (EDGES,), lambda x: F.argmax(x, 1), _argmax, "edges",
        torch=lambda torch, x: torch.argmax(x, 1)),
    Use("argmax", (TRUTHS,), lambda x: F.argmax(x, 1, dtype=dtypes.si32), _argmax, "i1, si32"),
    Use("argmin", (X,), lambda x: F.argmin(x, -1), lambda x: x.argmin(-1),
        torch=lambda torch, x: torch.argmin(x, -1)),
    Use("argmin", (COUNTS,), F.argmin, np.argmin, "integers",
        torch=lambda torch, x: torch.argmin(x)),
)  # fmt: skip
