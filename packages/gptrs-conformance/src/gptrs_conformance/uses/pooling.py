"""Uses of pooling: windows, paddings, rounding of sizes, bins."""

# The tables below are of lambdas, whose parameters have no types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gptrs import functionals as F
from gptrs_conformance.functional_use import Use
from gptrs_conformance.running import normal

Sides = tuple[tuple[int, int], tuple[int, int]]
NONE: Sides = ((0, 0), (0, 0))


def pool(
    x: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: Sides = NONE,
    dilation: tuple[int, int] = (1, 1),
    ceil_mode: bool = False,
    average: bool = False,
    count_padding: bool = True,
) -> np.ndarray:
    """A loop over the positions; NaN stands for what hangs over the padding."""
    fill = 0.0 if average and count_padding else np.nan
    padded = np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=fill)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    counts: list[int] = []
    for axis in (0, 1):
        room = (padded.shape[axis + 1] - reach[axis]) / stride[axis]
        count = (math.ceil(room) if ceil_mode else math.floor(room)) + 1
        above = (count - 1) * stride[axis] >= x.shape[axis + 1] + padding[axis][0]
        counts.append(count - (ceil_mode and above))
    out = np.zeros((x.shape[0], *counts, x.shape[3]))
    for i, j in np.ndindex(*counts):
        top, left = i * stride[0], j * stride[1]
        box = padded[:, top : top + reach[0] : dilation[0], left : left + reach[1] : dilation[1]]
        out[:, i, j] = np.nanmean(box, (1, 2)) if average else np.nanmax(box, (1, 2))
    return out


def bins(x: np.ndarray, size: tuple[int, int], combine: Callable[..., np.ndarray]) -> np.ndarray:
    """A loop over the bins."""
    out = np.zeros((x.shape[0], *size, x.shape[3]))
    for i, j in np.ndindex(*size):
        rows = slice(i * x.shape[1] // size[0], -(-(i + 1) * x.shape[1] // size[0]))
        columns = slice(j * x.shape[2] // size[1], -(-(j + 1) * x.shape[2] // size[1]))
        out[:, i, j] = combine(x[:, rows, columns], (1, 2))
    return out


def _nchw(function: Callable[..., Any], x: Any, *args: Any, **options: Any) -> Any:
    return function(x.permute(0, 3, 1, 2), *args, **options).permute(0, 2, 3, 1)


def _adaptive(size: tuple[int, int], label: str) -> list[Use]:
    return [
        Use("adaptive_average_pool", (X,), lambda x: F.adaptive_average_pool(x, size),
            lambda x: bins(x, size, np.mean), label,
            torch=lambda torch, x: _nchw(torch.nn.functional.adaptive_avg_pool2d, x, size)),
        Use("adaptive_max_pool", (X,), lambda x: F.adaptive_max_pool(x, size),
            lambda x: bins(x, size, np.max), label,
            torch=lambda torch, x: _nchw(torch.nn.functional.adaptive_max_pool2d, x, size)),
    ]  # fmt: skip


X = normal(1, 2, 9, 8, 3)
VOLUME = normal(3, 2, 3, 5, 4, 6)
TIES = (np.arange(2 * 9 * 8 * 3).reshape(2, 9, 8, 3) * 7 % 5).astype(np.float32)
TIES[0, 4, 4, 0] = np.nan


def positions(
    x: np.ndarray, kernel: int, stride: int, padding: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first largest element of each window, or the last NaN, and its index in the image."""
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)),
                    constant_values=-np.inf)  # fmt: skip
    counts = [(dim - kernel) // stride + 1 for dim in padded.shape[1:3]]
    best = np.zeros((x.shape[0], *counts, x.shape[3]))
    index = np.zeros(best.shape, np.int64)
    for n, i, j, c in np.ndindex(*best.shape):
        top, left = i * stride, j * stride
        box = padded[n, top : top + kernel, left : left + kernel, c].ravel()
        at = np.flatnonzero(np.isnan(box))[-1] if np.isnan(box).any() else int(np.argmax(box))
        best[n, i, j, c] = box[at]
        row, column = top + at // kernel - padding, left + at % kernel - padding
        index[n, i, j, c] = row * x.shape[2] + column
    return best, index


SPECIAL = np.full((1, 4, 4, 1), -np.inf, np.float32)
SPECIAL[0, 0, 1], SPECIAL[0, 3, 3], SPECIAL[0, 3, 0] = np.nan, 1, np.inf
SUMMABLE = np.where(np.isneginf(SPECIAL), np.float32(2), SPECIAL)

USES = (
    Use("max_pool", (X,), lambda x: F.max_pool(x, 2), lambda x: pool(x, (2, 2), (2, 2)),
        torch=lambda torch, x: _nchw(torch.nn.functional.max_pool2d, x, 2)),
    Use("max_pool", (-np.abs(X),), lambda x: F.max_pool(x, 3, 2, 1),
        lambda x: pool(x, (3, 3), (2, 2), ((1, 1), (1, 1))), "padding below every element",
        torch=lambda torch, x: _nchw(torch.nn.functional.max_pool2d, x, 3, 2, 1)),
    Use("max_pool", (X,), lambda x: F.max_pool(x, (3, 2), (2, 1), ((0, 1), (1, 0)), (1, 3)),
        lambda x: pool(x, (3, 2), (2, 1), ((0, 1), (1, 0)), (1, 3)), "asymmetric, dilated"),
    Use("max_pool", (X,), lambda x: F.max_pool(x, 3, 1, 1, 2),
        lambda x: pool(x, (3, 3), (1, 1), ((1, 1), (1, 1)), (2, 2)), "dilated",
        torch=lambda torch, x: _nchw(torch.nn.functional.max_pool2d, x, 3, 1, 1, 2)),
    Use("max_pool", (X,), lambda x: F.max_pool(x, 3, 3, 1, ceil_mode=True),
        lambda x: pool(x, (3, 3), (3, 3), ((1, 1), (1, 1)), ceil_mode=True), "ceil_mode",
        torch=lambda torch, x: _nchw(
            torch.nn.functional.max_pool2d, x, 3, 3, 1, ceil_mode=True)),
    Use("max_pool", (X[:, :1],), lambda x: F.max_pool(x, 2, 4, ceil_mode=True),
        lambda x: pool(x, (2, 2), (4, 4), ceil_mode=True), "ceil_mode, larger than the image",
        torch=lambda torch, x: _nchw(torch.nn.functional.max_pool2d, x, 2, 4, ceil_mode=True)),
    Use("max_pool", (X,), lambda x: F.max_pool(x, (2, 3), 3, "same"),
        lambda x: pool(x, (2, 3), (3, 3), ((0, 0), (0, 1))), "same"),
    Use("max_pool", (X[:0],), lambda x: F.max_pool(x, 2, 1),
        lambda x: pool(x, (2, 2), (1, 1)), "no images"),
    Use("max_pool", (SPECIAL,), lambda x: F.max_pool(x, 2),
        lambda x: np.array([np.nan, -np.inf, np.inf, 1.0]).reshape(1, 2, 2, 1),
        "values that are not finite",
        torch=lambda torch, x: _nchw(torch.nn.functional.max_pool2d, x, 2)),
    Use("max_pool", (VOLUME,), lambda x: F.max_pool(x, 2, axes=(2, 3, 4)),
        lambda x: x[:, :, :4].reshape(2, 3, 2, 2, 2, 2, 3, 2).max((3, 5, 7)), "3 axes, named",
        torch=lambda torch, x: torch.nn.functional.max_pool3d(x, 2)),
    Use("max_pool", (np.arange(24).reshape(1, 6, 4) * 5 % 7 - 3,), lambda x: F.max_pool(x, 3),
        lambda x: x.reshape(1, 2, 3, 4).max(2), "integers on 1 axis"),
    Use("max_pool_with_indices", (X,), lambda x: F.max_pool_with_indices(x, 3, 2, 1),
        lambda x: positions(x, 3, 2, 1),
        torch=lambda torch, x: tuple(each.permute(0, 2, 3, 1) for each in
            torch.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1,
                return_indices=True))),
    Use("max_pool_with_indices", (TIES,), lambda x: F.max_pool_with_indices(x, 3, 1),
        lambda x: positions(x, 3, 1, 0), "ties and NaN",
        torch=lambda torch, x: tuple(each.permute(0, 2, 3, 1) for each in
            torch.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 1,
                return_indices=True))),
    Use("average_pool", (VOLUME,),
        lambda x: F.average_pool(x, (3, 2, 2), (1, 2, 2), axes=(2, 3, 4)),
        lambda x: np.stack(
            [x[:, :, i : i + 3].reshape(2, 3, 3, 2, 2, 3, 2).mean((2, 4, 6)) for i in range(3)],
            2), "3 axes, named",
        torch=lambda torch, x: torch.nn.functional.avg_pool3d(x, (3, 2, 2), (1, 2, 2))),
    Use("average_pool", (X,), lambda x: F.average_pool(x, 3, 2, 2, False, False, None, 2),
        lambda x: pool(x, (3, 3), (2, 2), ((2, 2), (2, 2)), (2, 2), average=True,
            count_padding=False), "dilated"),
    Use("average_pool", (X,), lambda x: F.average_pool(x, 2, divisor_override=3),
        lambda x: pool(x, (2, 2), (2, 2), average=True) * 4 / 3, "another divisor",
        torch=lambda torch, x: _nchw(
            torch.nn.functional.avg_pool2d, x, 2, divisor_override=3)),
    Use("average_pool", (X,), lambda x: F.average_pool(x, 2),
        lambda x: pool(x, (2, 2), (2, 2), average=True),
        torch=lambda torch, x: _nchw(torch.nn.functional.avg_pool2d, x, 2)),
    Use("average_pool", (X,), lambda x: F.average_pool(x, 3, 2, 1),
        lambda x: pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)), average=True), "padding counts",
        torch=lambda torch, x: _nchw(torch.nn.functional.avg_pool2d, x, 3, 2, 1)),
    Use("average_pool", (X,), lambda x: F.average_pool(x, 3, 2, 1, count_include_pad=False),
        lambda x: pool(
            x, (3, 3), (2, 2), ((1, 1), (1, 1)), average=True, count_padding=False),
        "padding does not count",
        torch=lambda torch, x: _nchw(
            torch.nn.functional.avg_pool2d, x, 3, 2, 1, count_include_pad=False)),
    Use("average_pool", (X,), lambda x: F.average_pool(x, 3, (3, 2), 1, True),
        lambda x: pool(
            x, (3, 3), (3, 2), ((1, 1), (1, 1)), ceil_mode=True, average=True),
        "ceil_mode, padding counts",
        torch=lambda torch, x: _nchw(
            torch.nn.functional.avg_pool2d, x, 3, (3, 2), 1, ceil_mode=True)),
    Use("average_pool", (X,), lambda x: F.average_pool(x, (4, 3), 3, 1, True, False),
        lambda x: pool(x, (4, 3), (3, 3), ((1, 1), (1, 1)), ceil_mode=True, average=True,
            count_padding=False), "ceil_mode, padding does not count",
        torch=lambda torch, x: _nchw(torch.nn.functional.avg_pool2d, x, (4, 3), 3, 1,
            ceil_mode=True, count_include_pad=False)),
    Use("average_pool", (X,),
        lambda x: F.average_pool(x, (2, 3), 1, ((1, 0), (0, 2)), count_include_pad=False),
        lambda x: pool(x, (2, 3), (1, 1), ((1, 0), (0, 2)), average=True, count_padding=False),
        "asymmetric"),
    Use("average_pool", (X,), lambda x: F.average_pool(x, 2, 1, "same"),
        lambda x: pool(x, (2, 2), (1, 1), ((0, 1), (0, 1)), average=True), "same"),
    *_adaptive((1, 1), "all"),
    *_adaptive((3, 4), "bins apart"),
    *_adaptive((5, 3), "bins that overlap"),
    *_adaptive((1, 12), "more bins than columns"),
    Use("adaptive_average_pool", (SUMMABLE,), lambda x: F.adaptive_average_pool(x, 3),
        lambda x: bins(x, (3, 3), np.mean), "values that are not finite",
        torch=lambda torch, x: _nchw(torch.nn.functional.adaptive_avg_pool2d, x, 3)),
    Use("global_average_pool", (X,), F.global_average_pool, lambda x: x.mean((1, 2)),
        torch=lambda torch, x: x.mean((1, 2))),
    Use("global_average_pool", (normal(2, 2, 3, 2, 4, 3),),
        lambda x: F.global_average_pool(x, keepdims=True),
        lambda x: x.mean((1, 2, 3), keepdims=True), "3 axes, kept",
        torch=lambda torch, x: x.mean((1, 2, 3), keepdim=True)),
)  # fmt: skip
