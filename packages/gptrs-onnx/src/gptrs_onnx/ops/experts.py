"""Mixtures of experts, as the builders of language models write them (gpt-oss, Mixtral)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_onnx.node import Node, converts
from gptrs_onnx.ops.block_quantization import block_weight, unpacked


class _Layer(NamedTuple):
    """A linear layer of each expert."""

    weight: Tensor
    """[E, O, I]"""
    bias: Tensor | None
    """[E, O]"""

    def __call__(self, x: Tensor, experts: Tensor) -> Tensor:
        """Apply the layer of an expert to each row: [R, I] -> [R, O]."""
        result = F.grouped_linear(x, self.weight, experts)
        return result if self.bias is None else result + F.take(self.bias, experts, 0)


@converts("com.microsoft.MoE")
def mixture(
    node: Node,
    x: Tensor,
    scores: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None = None,
    *more: Tensor | None,
    k: int = 1,
    normalize_routing_weights: bool = False,
) -> Tensor:
    """Return the weighted sum of the k best experts for rows [.., H]; `scores` are [rows, E].

    Weights are a softmax over all experts, and normalized ones are divided by their sum.
    """
    _refuse_inputs(node, more, ("fc3_experts_weights", "fc3_experts_bias"))
    shares = F.softmax(F.cast(scores, dtypes.f32), axis=-1)
    weights, experts = _best(shares, k)
    if normalize_routing_weights:
        weights = weights / F.sum(weights, axis=-1, keepdims=True)
    return _mixed(node, x, weights, experts, _Layer(first, first_bias), _Layer(second, second_bias))


@converts("com.microsoft.QMoE")
def quantized_mixture(
    node: Node,
    x: Tensor,
    scores: Tensor,
    first: Tensor,
    first_scales: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_scales: Tensor,
    second_bias: Tensor | None = None,
    third: Tensor | None = None,
    third_scales: Tensor | None = None,
    third_bias: Tensor | None = None,
    first_zeros: Tensor | None = None,
    second_zeros: Tensor | None = None,
    third_zeros: Tensor | None = None,
    router_weights: Tensor | None = None,
    *more: Tensor | None,
    k: int = 1,
    normalize_routing_weights: bool = False,
    expert_weight_bits: int = 4,
    block_size: int = 0,
) -> Tensor:
    """As `mixture`, with weights of codes of 2, 4 or 8 bits, in blocks or with a scale for a row.

    Weights of experts are a softmax over the scores of the chosen ones; `router_weights` are used
    as they are, and normalized ones divided by their sum.
    """
    bits = expert_weight_bits
    _refuse_inputs(node, (third, third_scales, third_bias, third_zeros), _THIRD)
    _refuse_inputs(node, more, _SCALES)
    _refuse_codes(node, bits)
    chosen, experts = _best(F.cast(scores, dtypes.f32), k)
    weights = F.softmax(chosen, axis=-1)
    if router_weights is not None:
        weights = F.gather(F.cast(router_weights, dtypes.f32), experts, axis=1)
        if normalize_routing_weights:
            total = F.sum(weights, axis=-1, keepdims=True)
            weights = weights / F.where(F.equal(total, 0.0), 1.0, total)
    layers = [
        _Layer(_floats(codes, scales, zeros, bits, block_size), _wide(bias))
        for codes, scales, zeros, bias in (
            (first, first_scales, first_zeros, first_bias),
            (second, second_scales, second_zeros, second_bias),
        )
    ]
    # In f32, as ONNX Runtime does: products of floats of 16 bits with decoded weights.
    found = _mixed(node, F.cast(x, dtypes.f32), weights, experts, layers[0], layers[1])
    return F.cast(found, x.dtype)


_THIRD: Final = ("fc3_experts_weights", "fc3_scales", "fc3_experts_bias", "fc3_zero_points")
_SCALES: Final = (
    *("fc1_global_scale", "fc2_global_scale", "fc1_act_scale", "fc2_act_scale"),
    *("fc1_act_block_scale", "fc2_act_block_scale"),
)


def _refuse_inputs(node: Node, given: tuple[Tensor | None, ...], names: tuple[str, ...]) -> None:
    for name, each in zip(names, given, strict=False):
        if each is not None:
            node.refuse(f"has the input `{name}`, which is not supported")


def _refuse_codes(node: Node, bits: int) -> None:
    """Refuse floats, codes in the order of a kernel, and layers of different bits."""
    kind, packed = node.text("quant_type", "int"), node.integer("weights_prepacked", -1) > 0
    if bits not in (2, 4, 8) or kind != "int" or packed:
        node.refuse(
            f"has weights of {bits} bits of the type {kind[:40]!a}"
            f"{', packed for a kernel' if packed else ''}; only integers of 2, 4 and 8 bits in the"
            " order of the standard are supported"
        )
    for name in ("fc1_expert_weight_bits", "fc2_expert_weight_bits"):
        if node.integer(name, bits) != bits:
            node.refuse(f"has layers of different bits: `{name}`")


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best scores of each row and their experts; of equal ones, the last."""
    found, places = F.top_k(F.flip(scores, -1), k)
    return found, scores.shape[-1] - 1 - places


def _wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else F.cast(x, dtypes.f32)


def _floats(codes: Tensor, scales: Tensor, zeros: Tensor | None, bits: int, block: int) -> Tensor:
    """Return the f32 weights [E, O, I] of codes [E, O, bytes]; a block of 0 is a whole row."""
    experts, outputs, packed = codes.shape
    inputs = packed * 8 // bits
    if zeros is not None and not block:  # packed along the outputs, not along the blocks of a row
        points = F.slice_axis(unpacked(zeros, bits), 1, 0, outputs)
        zeros = F.cast(points, dtypes.f32)
    shape = experts * outputs, inputs
    weight = block_weight(codes, scales, zeros, None, shape, bits, block or inputs, dtypes.f32)
    return F.reshape(weight, [experts, outputs, inputs])


def _mixed(
    node: Node, x: Tensor, weights: Tensor, experts: Tensor, first: _Layer, second: _Layer
) -> Tensor:
    """Return the sum of what the experts [R, k] of each row give, by their weights [R, k]."""
    activation = _activation(node)
    rows, (count, chosen) = F.reshape(x, [-1, x.shape[-1]]), experts.shape
    groups = F.reshape(experts, [-1])
    inner = activation(first(F.repeat_interleave(rows, chosen, 0), groups))
    parts = F.reshape(second(inner, groups), [count, chosen, x.shape[-1]])
    shares = F.cast(F.expand_dims(weights, 2), parts.dtype)
    return F.reshape(F.sum(parts * shares, axis=1), x.shape)


def _identity(x: Tensor) -> Tensor:
    return x


_ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "relu": F.relu,
    "gelu": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "identity": _identity,
}


def _activation(node: Node) -> Callable[[Tensor], Tensor]:
    """Return the function between the layers of experts; refuses what only GPUs compute."""
    for name in ("use_sparse_mixer", "swiglu_limit_after_activation"):
        if node.flag(name):
            node.refuse(f"has the attribute `{name}`, which is not supported")
    kind = node.text("activation_type", "relu")
    if kind in _ACTIVATIONS:
        return _ACTIVATIONS[kind]
    if kind != "swiglu":
        node.refuse(f"has the activation {kind[:40]!a}")
    fusion = node.integer("swiglu_fusion", 0)
    if fusion != 1:
        node.refuse(f"has a `swiglu_fusion` of {fusion}; only 1, gates before their values in turn")
    alpha, beta = node.number("activation_alpha", 1.0), node.number("activation_beta", 0.0)
    limit = node.number("swiglu_limit", 0.0) if "swiglu_limit" in node else None
    return partial(_swiglu, alpha=alpha, beta=beta, limit=limit)


def _swiglu(x: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
    """Return `gate * sigmoid(alpha * gate) * (value + beta)`: [R, 2 I] -> [R, I].

    Gates and values alternate; values are within the limit, and gates below it.
    """
    rows, width = x.shape
    pairs = F.reshape(x, [rows, width // 2, 2])
    gate, value = (F.reshape(each, [rows, width // 2]) for each in F.split(pairs, 2, -1))
    if limit is not None:
        gate, value = F.minimum(gate, limit), F.clamp(value, -limit, limit)
    return gate * F.sigmoid(gate * alpha) * (value + beta)
