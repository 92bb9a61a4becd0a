"""Pooling refuses windows that cannot be, and is captured as few ops."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from functionals.calls import ops_of, running_on, zeros
from gptrs import functionals as F
from gptrs.errors import UsageError

X = zeros(1, 5, 6, 4)

REFUSALS = [
    *(
        (
            lambda call=call: call(zeros(1, 5, 6, 4, dtype="i8"), 2),
            f"`{name}` needs a floating-point `x`, got `si64[1, 5, 6, 4]`",
        )
        for name, call in {
            "average_pool": F.average_pool,
            "adaptive_average_pool": F.adaptive_average_pool,
            "adaptive_max_pool": F.adaptive_max_pool,
        }.items()
    ),
    (
        lambda: F.max_pool(zeros(1, 5, 6, 4, dtype="?"), 2),
        "`max_pool` needs an integer or floating-point `x`, got `i1[1, 5, 6, 4]`",
    ),
    (
        lambda: F.max_pool(zeros(5, 6), 2),
        "`max_pool` needs `x` [N, spatial.., C], got `f32[5, 6]`",
    ),
    (
        lambda: F.average_pool(X, 2, axes=(1, 4)),
        "`average_pool` got axis 4 for `f32[1, 5, 6, 4]`, which has 4 axes",
    ),
    (
        lambda: F.max_pool(X, (3, 9), axes=(3, 2)),
        "`max_pool` cannot fit a kernel over 9 elements into axis 3 of `f32[1, 5, 6, 4]`, which"
        " has 4 with padding",
    ),
    (
        lambda: F.average_pool(X, (2, 2, 2)),
        "`average_pool` takes as `kernel` an integer >= 1, or 2 of them, one a spatial axis; got"
        " (2, 2, 2)",
    ),
    (
        lambda: F.average_pool(X, 2, 0),
        "`average_pool` takes as `stride` an integer >= 1, or 2 of them, one a spatial axis; got 0",
    ),
    (
        lambda: F.max_pool(X, (6, 6)),
        "`max_pool` cannot fit a kernel over 6 elements into axis 1 of `f32[1, 5, 6, 4]`, which"
        " has 5 with padding",
    ),
    (
        lambda: F.max_pool(X, 4, 2, 1, dilation=3, ceil_mode=True),
        "`max_pool` cannot fit a kernel over 10 elements into axis 1 of `f32[1, 5, 6, 4]`, which"
        " has 7 with padding",
    ),
    (
        lambda: F.max_pool(X, 2, padding=2),
        "`max_pool` with padding (2, 2) on axis 1 of `f32[1, 5, 6, 4]` has a window over 2"
        " elements that holds nothing but padding",
    ),
    (
        lambda: F.average_pool(X, 2, 1, ((0, 0), (0, 2))),
        "`average_pool` with padding (0, 2) on axis 2 of `f32[1, 5, 6, 4]` has a window over 2"
        " elements that holds nothing but padding",
    ),
    (
        lambda: F.max_pool(zeros(1, 1, 6, 4), 2, 1, ((1, 1), (0, 0)), dilation=2),
        "`max_pool` with padding (1, 1) on axis 1 of `f32[1, 1, 6, 4]` has a window over 3"
        " elements that holds nothing but padding",
    ),
    (
        lambda: F.max_pool(zeros(1, 1, 6, 4), 3, 3, 1, dilation=2, ceil_mode=True),
        "`max_pool` with padding (1, 1) on axis 1 of `f32[1, 1, 6, 4]` has a window over 5"
        " elements that holds nothing but padding",
    ),
    (
        lambda: F.max_pool(zeros(1, 0, 6, 4), 1, padding=1),
        "`max_pool` with padding (1, 1) on axis 1 of `f32[1, 0, 6, 4]` has a window over 1"
        " elements that holds nothing but padding",
    ),
    (
        lambda: F.adaptive_average_pool(X, (1, 0)),
        "`adaptive_average_pool` takes as `output_size` an integer >= 1, or 2 of them, one a"
        " spatial axis; got (1, 0)",
    ),
    (
        lambda: F.adaptive_max_pool(zeros(1, 0, 6, 4), 1),
        "`adaptive_max_pool` needs an image with elements, got `f32[1, 0, 6, 4]`",
    ),
    (
        lambda: F.global_average_pool(zeros(1, 4)),
        "`global_average_pool` needs `x` [N, spatial.., C] with elements on the spatial axes, got"
        " `f32[1, 4]`",
    ),
    (
        lambda: F.global_average_pool(zeros(1, 0, 4)),
        "`global_average_pool` needs `x` [N, spatial.., C] with elements on the spatial axes, got"
        " `f32[1, 0, 4]`",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert refused.value.message == message


def test_padding_may_be_wide_where_every_window_meets_an_element(backend) -> None:
    x = gptrs.tensor(np.full((1, 1, 1, 1), -3, np.float32))
    with running_on(backend):
        out = F.max_pool(x, 3, 1, 2).numpy()
    np.testing.assert_array_equal(out, np.full((1, 3, 3, 1), -3))


@pytest.mark.parametrize("padding", range(4))
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_a_window_without_elements_is_found(padding: int, dilation: int) -> None:
    """Refused just where a loop over all windows of all small sizes finds one."""
    for dim, size, stride in np.ndindex(5, 4, 4):
        size, stride, reach = size + 1, stride + 1, size * dilation + 1
        starts = range(-padding, dim + padding - reach + 1, stride)
        windows = [range(start, start + reach, dilation) for start in starts]
        good = (windows or dim == 0) and all(
            any(0 <= at < dim for at in window) for window in windows
        )
        try:
            out = F.max_pool(
                zeros(1, dim, 1, 1), (size, 1), (stride, 1), (padding, 0), (dilation, 1)
            )
            assert good
            assert out.shape == (1, len(windows), 1, 1)
        except UsageError:
            assert not good


def test_pools_are_one_window_reduction() -> None:
    assert ops_of(lambda x: F.max_pool(x, 3, 2, 1), X) == ["reduce_window"]
    assert ops_of(lambda x: F.average_pool(x, 3, 2, 1), X) == ["reduce_window", "div"]
    ops = ops_of(lambda x: F.average_pool(x, 3, 2, 1, count_include_pad=False), X)
    assert ops == ["reduce_window", "mul", "div"]


def test_adaptive_pools_are_as_simple_as_their_bins() -> None:
    assert ops_of(lambda x: F.adaptive_average_pool(x, 1), X) == ["reduce", "div"]
    assert ops_of(lambda x: F.adaptive_average_pool(x, (5, 3)), X) == ["reduce_window", "div"]
    assert ops_of(lambda x: F.adaptive_max_pool(x, 1), X) == ["reduce"]
    assert ops_of(lambda x: F.adaptive_max_pool(x, (5, 3)), X) == ["reduce_window"]
    bins = ["transpose", "take", "reduce", "transpose"]
    assert ops_of(lambda x: F.adaptive_max_pool(x, (2, 4)), X) == bins * 2


@pytest.mark.parametrize(
    "call",
    [
        F.global_average_pool,
        lambda x: F.average_pool(x, (32, 16)),
        lambda x: F.adaptive_average_pool(x, (1, 2)),
        lambda x: F.adaptive_average_pool(x, (1, 3)),
    ],
)
def test_sums_of_f16_do_not_overflow(backend, call) -> None:
    x = gptrs.tensor(np.full((1, 32, 32, 1), 1000, np.float16))
    with running_on(backend):
        out = call(x).numpy()
    assert out.dtype == np.float16
    assert (out == 1000).all()
