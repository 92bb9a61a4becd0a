"""Convolutions refuse what does not fit together, and are captured as few, regular ops."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from functionals.calls import ops_of, running_on, zeros
from gptrs import functionals as F
from gptrs.errors import UsageError

X = zeros(1, 5, 6, 4)
W = zeros(8, 4, 3, 3)

REFUSALS = [
    (
        lambda: F.conv2d(X, W, layout="ohwi"),
        '`conv2d` takes layout="oihw" or "hwio", got \'ohwi\'',
    ),
    (
        lambda: F.conv2d(zeros(1, 5, 6, 4, dtype="i8"), W),
        "`conv2d` needs a floating-point `x`, got `si64[1, 5, 6, 4]`",
    ),
    (
        lambda: F.conv2d(X, zeros(8, 4, 3, 3, dtype="f2")),
        "`conv2d` needs tensors of one element type, got `f32[1, 5, 6, 4]`, `f16[8, 4, 3, 3]`",
    ),
    (
        lambda: F.conv2d(zeros(5, 6, 4), W),
        "`conv2d` needs `x` of rank 4 [N, H, W, C] and `weight` of rank 4 (oihw), got"
        " `f32[5, 6, 4]` and `f32[8, 4, 3, 3]`",
    ),
    (
        lambda: F.conv1d(X, zeros(3, 4, 8), layout="wio"),
        "`conv1d` needs `x` of rank 3 [N, W, C] and `weight` of rank 3 (wio), got"
        " `f32[1, 5, 6, 4]` and `f32[3, 4, 8]`",
    ),
    (
        lambda: F.conv2d(X, W, groups=3),
        "`conv2d` needs `groups` that divide the 4 channels of `x` and the 8 of the result, got 3",
    ),
    (
        lambda: F.conv2d(X, W, groups=0),
        "`conv2d` needs `groups` that divide the 4 channels of `x` and the 8 of the result, got 0",
    ),
    (
        lambda: F.conv2d(X, zeros(7, 2, 3, 3), groups=2),
        "`conv2d` needs `groups` that divide the 4 channels of `x` and the 7 of the result, got 2",
    ),
    (
        lambda: F.conv2d(X, W, groups=2),
        "`conv2d` of `f32[1, 5, 6, 4]` with groups=2 needs a `weight` for 2 channels, got"
        " `f32[8, 4, 3, 3]`, which is for 4",
    ),
    (
        lambda: F.conv2d(X, W, zeros(4)),
        "`conv2d` needs `bias` of shape [8], got `f32[4]`",
    ),
    (
        lambda: F.conv2d(X, W, zeros(8, dtype="f8")),
        "`conv2d` needs tensors of one element type, got `f32[1, 5, 6, 4]`, `f64[8]`",
    ),
    (
        lambda: F.conv2d(X, W, stride=(1, 0)),
        "`conv2d` takes as `stride` an integer >= 1, or 2 of them, one a spatial axis; got (1, 0)",
    ),
    (
        lambda: F.conv2d(X, W, dilation=1.5),
        "`conv2d` takes as `dilation` an integer >= 1, or 2 of them, one a spatial axis; got 1.5",
    ),
    (
        lambda: F.conv2d(X, W, stride=True),
        "`conv2d` takes as `stride` an integer >= 1, or 2 of them, one a spatial axis; got True",
    ),
    (
        lambda: F.conv2d(X, zeros(8, 4, 0, 3)),
        "`conv2d` takes as `kernel` an integer >= 1, or 2 of them, one a spatial axis; got (0, 3)",
    ),
    *(
        (
            lambda padding=padding: F.conv2d(X, W, padding=padding),
            '`conv2d` takes as `padding` "same", "valid", an integer >= 0, or 2 entries, one a'
            f" spatial axis, each an integer or a pair (low, high); got {padding!r}",
        )
        for padding in ("SAME", -1, 0.5, (1,), (1, 2, 3), ((1, 2), (1,)), ((1, -1), 0), (1, "2"))
    ),
    (
        lambda: F.conv2d(X, W, padding=(0, 1), dilation=(3, 1)),
        "`conv2d` cannot fit a kernel over 7 elements into axis 1 of `f32[1, 5, 6, 4]`, which has 5"
        " with padding",
    ),
    (
        lambda: F.conv1d(zeros(1, 0, 4), zeros(8, 4, 3), padding=1),
        "`conv1d` cannot fit a kernel over 3 elements into axis 1 of `f32[1, 0, 4]`, which has 2"
        " with padding",
    ),
    (
        lambda: F.conv(zeros(5, 6), zeros(5, 6)),
        "`conv` needs `x` [N, spatial.., C] and `weight` of its rank, got `f32[5, 6]` and"
        " `f32[5, 6]`",
    ),
    (
        lambda: F.conv(X, W, padding=((1, -1), "2")),
        '`conv` takes as `padding` "same", "valid", an integer, or 2 entries, one a spatial axis,'
        " each an integer or a pair (low, high); got ((1, -1), '2')",
    ),
    (
        lambda: F.conv(X, W, padding=-3),
        "`pad` of `f32[1, 5, 6, 4]` trims axis 1 by 6",
    ),
    (
        lambda: F.conv(zeros(1, 5, 6, 4, 2), zeros(3, 2, 2, 2, 2), groups=2),
        "`conv` needs `groups` that divide the 2 channels of `x` and the 3 of the result, got 2",
    ),
    (
        lambda: F.conv_transpose(X, zeros(4, 2, 3, 3, dtype="f8")),
        "`conv_transpose` needs tensors of one element type, got `f32[1, 5, 6, 4]`,"
        " `f64[4, 2, 3, 3]`",
    ),
    (
        lambda: F.conv_transpose(X, zeros(4, 2, 3, 3), groups=3),
        "`conv_transpose` of `f32[1, 5, 6, 4]` with groups=3 needs a `weight` [C, O / groups,"
        " kernel..] with `groups` that divide C, got `f32[4, 2, 3, 3]`",
    ),
    (
        lambda: F.conv_transpose(X, zeros(4, 2, 3, 3), output_padding=-1),
        "`conv_transpose` takes as `output_padding` an integer >= 0, or 2 of them, one a spatial"
        " axis; got -1",
    ),
    (
        lambda: F.conv_transpose(X, zeros(4, 2, 3, 3), padding="same"),
        "`conv_transpose` takes as `padding` an integer, or 2 entries, one a spatial axis, each an"
        " integer or a pair (low, high); got 'same'",
    ),
    (
        lambda: F.conv_transpose(X, zeros(4, 2, 2, 2), zeros(3), 2),
        "`conv_transpose` needs `bias` of shape [2], got `f32[3]`",
    ),
    (
        lambda: F.depthwise_conv2d(X, W),
        "`depthwise_conv2d` of `f32[1, 5, 6, 4]` needs a `weight` [C * M, 1, KH, KW] for its 4"
        " channels, got `f32[8, 4, 3, 3]`",
    ),
    (
        lambda: F.depthwise_conv2d(X, zeros(6, 1, 3, 3)),
        "`depthwise_conv2d` of `f32[1, 5, 6, 4]` needs a `weight` [C * M, 1, KH, KW] for its 4"
        " channels, got `f32[6, 1, 3, 3]`",
    ),
    (
        lambda: F.depthwise_conv2d(zeros(1, 5, 6, 0), zeros(6, 1, 3, 3)),
        "`depthwise_conv2d` of `f32[1, 5, 6, 0]` needs a `weight` [C * M, 1, KH, KW] for its 0"
        " channels, got `f32[6, 1, 3, 3]`",
    ),
    (
        lambda: F.depthwise_conv2d(X, zeros(3, 3, 2, 2), layout="hwio"),
        "`depthwise_conv2d` of `f32[1, 5, 6, 4]` needs a `weight` [KH, KW, C, M] for its 4"
        " channels, got `f32[3, 3, 2, 2]`",
    ),
    (
        lambda: F.depthwise_conv2d(X, zeros(8, 1, 3, 3), zeros(4)),
        "`depthwise_conv2d` needs `bias` of shape [8], got `f32[4]`",
    ),
    (
        lambda: F.depthwise_conv2d(X, zeros(8, 1, 6, 3)),
        "`depthwise_conv2d` cannot fit a kernel over 6 elements into axis 1 of `f32[1, 5, 6, 4]`,"
        " which has 5 with padding",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    assert refused.value.message == message


WEIGHT = ["transpose", "reshape"]
BIAS = ["add"]


@pytest.mark.parametrize("moves", [{}, {"stride": 2, "padding": 1}, {"dilation": (1, 2)}])
def test_a_dense_convolution_is_patches_and_a_product(moves) -> None:
    ops = ops_of(lambda x, w, b: F.conv2d(x, w, b, **moves), X, W, zeros(8))
    assert ops == ["extract_patches", *WEIGHT, "dot_general", *BIAS]


def test_a_kernel_of_one_element_needs_no_patches() -> None:
    weight = zeros(8, 4, 1, 1)
    assert ops_of(F.conv2d, X, weight) == [*WEIGHT, "dot_general"]
    ops = ops_of(lambda x, w: F.conv2d(x, w, stride=2), X, weight)
    assert ops == ["slice", *WEIGHT, "dot_general"]
    ops = ops_of(lambda x, w: F.conv2d(x, w, padding=1), X, weight)
    assert ops == ["extract_patches", *WEIGHT, "dot_general"]


def test_groups_are_batches_of_one_product() -> None:
    ops = ops_of(lambda x, w, b: F.conv2d(x, w, b, groups=2), X, zeros(8, 2, 3, 3), zeros(8))
    parts = ["reshape", "transpose", "reshape"]  # groups come first, as images of their own
    product = ["dot_general", "transpose", "reshape"]
    assert ops == [*parts, "extract_patches", "reshape", *WEIGHT, *product, *BIAS]


def test_a_depthwise_convolution_is_a_product_and_a_sum() -> None:
    weight = zeros(8, 1, 3, 3)
    ops = ops_of(F.depthwise_conv2d, X, weight)
    assert ops == ["extract_patches", "reshape", *WEIGHT, "mul", "reduce", "reshape"]
    assert ops_of(lambda x, w: F.conv2d(x, w, groups=4), X, weight) == ops


def test_the_layout_of_the_matrix_product_needs_no_transpose() -> None:
    ops = ops_of(lambda x, w: F.conv2d(x, w, layout="hwio"), X, zeros(3, 3, 4, 8))
    assert ops == ["extract_patches", "reshape", "dot_general"]


def test_one_channel_is_not_depthwise() -> None:
    ops = ops_of(F.conv2d, zeros(1, 5, 6, 1), zeros(8, 1, 3, 3))
    assert ops == ["extract_patches", *WEIGHT, "dot_general"]


def test_conv2d_in_groups_of_one_channel_calls_the_depthwise_functional() -> None:
    calls: list[tuple[int, ...]] = []

    @F.implement("depthwise_conv2d", name="recorded_by_a_test")
    def _(x, weight, *_: object):
        calls.append(weight.shape)
        return x

    with gptrs.overrides({"depthwise_conv2d": "recorded_by_a_test"}):
        assert F.conv2d(X, zeros(8, 1, 3, 3), groups=4).shape == X.shape
        assert F.conv2d(X, zeros(3, 3, 1, 8), groups=4, layout="hwio").shape == X.shape
    assert calls == [(8, 1, 3, 3), (3, 3, 4, 2)]


def test_depthwise_products_of_f16_are_not_rounded(backend) -> None:
    """(1 + e)^2 - (1 + 2e) is e^2, and 0 if the square is rounded to f16 first."""
    e = np.float16(2.0**-10)
    x = np.array([1 + e, 1 + 2 * e], np.float16).reshape(1, 1, 2, 1)
    weight = np.array([1 + e, -1], np.float16).reshape(1, 1, 1, 2)
    with running_on(backend):
        out = F.depthwise_conv2d(gptrs.tensor(x), gptrs.tensor(weight))
        assert out.item() == 2.0**-20


@pytest.mark.parametrize(("outputs", "groups"), [(8, 1), (8, 2), (0, 1)])
def test_no_elements(backend, outputs: int, groups: int) -> None:
    with running_on(backend):
        out = F.conv2d(zeros(0, 5, 6, 4), zeros(outputs, 4 // groups, 3, 3), groups=groups)
        assert out.numpy().shape == (0, 3, 4, outputs)


def test_no_channels_give_the_bias(backend) -> None:
    with running_on(backend):
        bias = gptrs.tensor(np.array([1.0, 2.0], np.float32))
        out = F.conv2d(zeros(1, 2, 2, 0), zeros(2, 0, 1, 1), bias)
        np.testing.assert_array_equal(out.numpy(), np.broadcast_to([1.0, 2.0], (1, 2, 2, 2)))
        assert F.depthwise_conv2d(zeros(1, 2, 2, 0), zeros(0, 1, 1, 1)).numpy().size == 0
