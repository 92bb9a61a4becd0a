"""Operators with which ONNX Runtime's optimizers replace several of the standard's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gptrs.api.importers import scalar
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node, converts
from gptrs_onnx.ops import activations
from gptrs_onnx.ops.arithmetic import gemm, product
from gptrs_onnx.ops.convolution import conv

# Activations.


@converts("com.microsoft.Gelu")
def gelu(x: Tensor) -> Tensor:
    """Return `Gelu` of the standard."""
    return F.gelu(x)


@converts("com.microsoft.BiasGelu")
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return `Gelu` of x plus a bias."""
    return F.gelu(x + bias)


@converts("com.microsoft.FastGelu")
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `Gelu` by tanh, of x plus a bias if there is one."""
    return F.gelu(x if bias is None else x + bias, "tanh")


@converts("com.microsoft.QuickGelu")
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    """Return `x * sigmoid(alpha * x)`."""
    # ONNX Runtime's fusion writes SiLU as QuickGelu with alpha 1.
    return F.silu(x) if alpha == 1.0 else x * F.sigmoid(x * alpha)


@converts("com.microsoft.BiasSplitGelu")
def bias_split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return the first half of x plus a bias, times `Gelu` of the second half."""
    first, second = F.split(x + bias, 2, -1)
    return first * F.gelu(second)


def activated(node: Node, x: Tensor, name: str, alpha: float | None, beta: float | None) -> Tensor:
    """Return the activation that a node names, with its settings."""
    if not name:
        return x
    if name == "Clip":
        low = x if alpha is None else F.maximum(x, scalar(alpha, x.dtype))
        return low if beta is None else F.minimum(low, scalar(beta, x.dtype))
    found = _ACTIVATIONS.get(name)
    if found is None:
        node.refuse(f"has the activation {name[:40]!a}")
    function, settings = found
    given = zip(settings, (alpha, beta), strict=False)
    return function(x, **{setting: value for setting, value in given if value is not None})


_ACTIVATIONS: Final[Mapping[str, tuple[Callable[..., Tensor], tuple[str, ...]]]] = {
    "Celu": (activations.celu, ("alpha",)),
    "Elu": (activations.elu, ("alpha",)),
    "HardSigmoid": (activations.hard_sigmoid, ("alpha", "beta")),
    "HardSwish": (F.hard_swish, ()),
    "LeakyRelu": (activations.leaky_relu, ("alpha",)),
    "Relu": (F.relu, ()),
    "Selu": (activations.selu, ("alpha", "gamma")),
    "Sigmoid": (F.sigmoid, ()),
    "Softplus": (F.softplus, ()),
    "Softsign": (activations.softsign, ()),
    "Tanh": (F.tanh, ()),
    "ThresholdedRelu": (activations.thresholded_relu, ("alpha",)),
}
"""Activations by name, and their settings in the order of `activation_params`."""


# Products and convolutions.


@converts("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul")
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: bool = False,  # noqa: N803
    transB: bool = False,  # noqa: N803
    transBatchA: bool = False,  # noqa: N803
    transBatchB: bool = False,  # noqa: N803
) -> Tensor:
    """Return `alpha * A B`, with the last two axes swapped, or the first one moved, where asked.

    With `transBatchA` the axis 0 of A comes after its batch axes.
    """
    result = product(_turned(a, transBatchA, transA), _turned(b, transBatchB, transB))
    return result if alpha == 1.0 else result * alpha


def _turned(x: Tensor, from_batch: bool, swaps: bool) -> Tensor:
    if x.rank < 2:
        return x
    order = list(range(x.rank))
    if from_batch:
        order = [*range(1, x.rank - 1), 0, x.rank - 1]
    if swaps:
        order[-2:] = order[:-3:-1]
    return F.transpose(x, order) if order != list(range(x.rank)) else x


@converts("com.microsoft.FusedMatMulActivation")
def fused_matmul_activation(
    node: Node,
    a: Tensor,
    b: Tensor,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
) -> Tensor:
    """Return an activation of `FusedMatMul`."""
    names = ("transA", "transB", "transBatchA", "transBatchB")
    result = fused_matmul(
        a, b, alpha=node.number("alpha", 1.0), **{name: node.flag(name) for name in names}
    )
    return activated(node, result, activation, activation_alpha, activation_beta)


@converts("com.microsoft.FusedGemm")
def fused_gemm(
    node: Node,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,  # noqa: N803
    transB: bool = False,  # noqa: N803
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
) -> Tensor:
    """Return an activation of `Gemm`."""
    result = gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    second = activation_beta if activation_gamma is None else activation_gamma
    return activated(node, result, activation, activation_alpha, second)


@converts("com.microsoft.FusedConv")
def fused_conv(
    node: Node,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    other: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: list[float] | None = None,
) -> Tensor:
    """Return an activation of a convolution, plus another tensor before it if there is one."""
    made = conv(node, x, weight, bias)
    made = made if other is None else made + other
    alpha, beta, *_ = [*(activation_params or []), None, None]
    return activated(node, made, activation, alpha, beta)


# Normalization of a sum, which is an output, too.


@converts("com.microsoft.SkipLayerNormalization")
def skip_layer_normalization(
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor | None, ...]:
    """Return `LayerNormalization` of x plus `skip` plus a bias; and, the fourth, that sum."""
    total = _summed(x, skip, bias)
    return _normal(total, scale, shift, epsilon), None, None, total


@converts("com.microsoft.SkipSimplifiedLayerNormalization")
def skip_rms_normalization(
    x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> tuple[Tensor | None, ...]:
    """Return `RMSNormalization` of x plus `skip` plus a bias; and, the fourth, that sum."""
    total = _summed(x, skip, bias)
    return F.rms_norm(total, scale, epsilon), None, None, total


def _summed(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    total = x + skip
    return total if bias is None else total + bias


def _normal(x: Tensor, scale: Tensor, shift: Tensor | None, epsilon: float) -> Tensor:
    return F.layer_norm(x, scale, shift, epsilon, [x.rank - 1])


@converts("SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Return x over its root mean square along the last axes, scaled; and one over that root."""
    axes = list(range(axis % x.rank, x.rank))
    wide = F.cast(x, dtypes.f32) if x.dtype.bits < 32 else x
    factor = F.rsqrt(F.mean(wide * wide, axes, keepdims=True) + epsilon)
    if len(axes) == 1 and scale.dtype == x.dtype:
        return F.rms_norm(x, scale, epsilon), factor
    return F.cast(wide * factor, scale.dtype) * scale, factor


@converts("com.microsoft.EmbedLayerNormalization")
def embed_layer_normalization(
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    kinds: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalized sum of the vectors of words, positions and segments [B, S, H].

    Then the number of ones in each row of the mask [B], 0 without a mask, and the sum.
    """
    del mask_index_type  # says to shape inference that there is a second output
    if position_ids is None:
        near = F.slice_axis(positions, 0, 0, ids.shape[1])
    else:
        near = F.embedding(position_ids, positions)
    total = F.embedding(ids, words) + near
    if segments is not None and kinds is not None:
        total = total + F.embedding(segments, kinds)
    if mask is None:
        count = F.zeros([ids.shape[0]], dtypes.si32)
    else:
        count = F.sum(F.cast(F.equal(mask, scalar(1, mask.dtype)), dtypes.si32), 1)
    return _normal(total, scale, shift, epsilon), count, total


@converts("com.microsoft.QEmbedLayerNormalization")
def quantized_embed_layer_normalization(
    node: Node,
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    kinds: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    mask: Tensor | None,
    *more: Tensor | None,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor]:
    """Return what `EmbedLayerNormalization` does for quantized tables, scale and shift."""
    scales, zeros = more[:5], more[5:]
    tables = [words, positions, kinds, scale, shift]
    plain: list[Tensor | None] = []
    for table, factor, zero in zip(tables, scales, zeros, strict=True):
        if table is None or factor is None or zero is None:
            plain.append(None)
        else:
            codes = F.cast(table, dtypes.f32) - F.cast(zero, dtypes.f32)
            plain.append(codes * factor)
    words_, positions_, kinds_, scale_, shift_ = plain
    if words_ is None or positions_ is None or scale_ is None or shift_ is None:
        node.malformed("lacks a scale or a zero point")
    given = (ids, segments, words_, positions_, kinds_, scale_, shift_, mask)
    return embed_layer_normalization(*given, epsilon=epsilon)[:2]


# Distances, as converters of scikit-learn write them.


@converts("com.microsoft.CDist")
def distances(node: Node, a: Tensor, b: Tensor, *, metric: str = "sqeuclidean") -> Tensor:
    """Return the distances of all rows of a [M, K] and all rows of b [N, K]."""
    if metric not in ("euclidean", "sqeuclidean"):
        node.refuse(f"has the metric {metric[:40]!a}")
    apart = F.expand_dims(a, 1) - F.expand_dims(b, 0)
    squares = F.sum(apart * apart, 2)
    return F.sqrt(squares) if metric == "euclidean" else squares
