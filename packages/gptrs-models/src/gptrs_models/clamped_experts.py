"""Mixtures of experts of gpt-oss: biases, a limit of the gate, and routing by the chosen scores."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.api import Module, Params, Tensor
from gptrs.nn import ExpertMatrices, Linear
from gptrs_models.llama_experts import Clamp, Experts


class ClampedMixture(Module):
    """The weighted sum of the MLPs of the chosen experts: `(up + 1) * gate * sigmoid(a * gate)`.

    Gate and `up` alternate in one matrix, and are cut to the limit, the gate from above only. The
    weights are the softmax of the scores of the chosen experts.
    """

    def __init__(self, experts: Experts, clamp: Clamp, params: Params, width: int) -> None:
        inner, count, own = experts.width, experts.count, params / "experts"
        self.router = Linear(params / "router", width, count)
        self.gate_up_proj = ExpertMatrices.joined(own, "gate_up_proj", count, width, 2 * inner)
        self.gate_up_bias = own.tensor("gate_up_proj_bias", (count, 2 * inner))
        self.down_proj = ExpertMatrices.joined(own, "down_proj", count, inner, width)
        self.down_bias = own.tensor("down_proj_bias", (count, width))
        self._chosen, self._clamp = experts.chosen, clamp

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        rows, width = x.shape
        chosen = self._chosen
        scores, experts = F.top_k(self.router(x), chosen)  # (N, k) twice
        weights = F.softmax(scores, axis=-1)
        groups = F.reshape(experts, (rows * chosen,))
        repeated = F.repeat_interleave(x, chosen, 0)  # (N * k, C)
        joined = self.gate_up_proj(repeated, groups) + F.take(self.gate_up_bias, groups)
        inner = self._activated(joined)
        outputs = self.down_proj(inner, groups) + F.take(self.down_bias, groups)
        outputs = F.reshape(outputs, (rows, chosen, width)) * F.reshape(weights, (rows, chosen, 1))
        return F.sum(outputs, axis=1)

    def _activated(self, joined: Tensor) -> Tensor:
        """[R, 2 * I] -> [R, I]."""
        rows, width = joined.shape
        pairs = F.reshape(joined, (rows, width // 2, 2))
        gate, up = (F.squeeze(each, 2) for each in F.split(pairs, [1, 1]))
        gate = F.minimum(gate, self._clamp.limit)
        up = F.clamp(up, -self._clamp.limit, self._clamp.limit)
        return (up + 1.0) * gate * F.sigmoid(gate * self._clamp.slope)
