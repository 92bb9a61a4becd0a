"""Mixtures of experts of gpt-oss: biases, a limit of the gate, and routing by the chosen scores."""

from __future__ import annotations

from gptrs import functionals as F
from gptrs.api.models import Module, Params, Tensor
from gptrs.nn import ExpertMatrices, Linear
from gptrs_models.llama_experts import Clamp, Experts


class ClampedMixture(Module):
    """The weighted sum of the MLPs of the chosen experts: `(up + 1) * gate * sigmoid(a * gate)`.

    Gate and `up` alternate in one matrix, or have a matrix each, and are cut to the limit, the gate
    from above only. The weights are the softmax of the scores of the chosen experts.
    """

    def __init__(self, experts: Experts, clamp: Clamp, params: Params, width: int) -> None:
        count, own = experts.count, params / "experts"
        self.router = Linear(params / "router", width, count)
        read = _Apart if "gate_proj.bias" in own else _Joined
        self.experts = read(own, count, width, experts.width)
        self._chosen, self._clamp = experts.chosen, clamp

    def __call__(self, x: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        rows, width = x.shape
        chosen = self._chosen
        scores, experts = F.top_k(self.router(x), chosen)  # (N, k) twice
        weights = F.softmax(scores, axis=-1)
        groups = F.reshape(experts, (rows * chosen,))
        repeated = F.repeat_interleave(x, chosen, 0)  # (N * k, C)
        inner = self._activated(*self.experts.gate_and_up(repeated, groups))
        outputs = self.experts.down(inner, groups)
        outputs = F.reshape(outputs, (rows, chosen, width)) * F.reshape(weights, (rows, chosen, 1))
        return F.sum(outputs, axis=1)

    def _activated(self, gate: Tensor, up: Tensor) -> Tensor:
        """[R, I] twice -> [R, I]."""
        gate = F.minimum(gate, self._clamp.limit)
        up = F.clamp(up, -self._clamp.limit, self._clamp.limit)
        return (up + 1.0) * gate * F.sigmoid(gate * self._clamp.slope)


class _Joined(Module):
    """Experts as folders have them: a matrix [C, 2 * I] in which gate and `up` alternate."""

    def __init__(self, params: Params, count: int, width: int, inner: int) -> None:
        self.gate_up_proj = ExpertMatrices.joined(params, "gate_up_proj", count, width, 2 * inner)
        self.gate_up_bias = params.tensor("gate_up_proj_bias", (count, 2 * inner))
        self.down_proj = ExpertMatrices.joined(params, "down_proj", count, inner, width)
        self.down_bias = params.tensor("down_proj_bias", (count, width))

    def gate_and_up(self, x: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """[R, C], [R] -> [R, I] twice."""
        joined = self.gate_up_proj(x, groups) + F.take(self.gate_up_bias, groups)
        rows, width = joined.shape
        pairs = F.reshape(joined, (rows, width // 2, 2))
        gate, up = (F.squeeze(each, 2) for each in F.split(pairs, [1, 1]))
        return gate, up

    def down(self, x: Tensor, groups: Tensor) -> Tensor:
        """[R, I], [R] -> [R, C]."""
        return self.down_proj(x, groups) + F.take(self.down_bias, groups)


class _Apart(Module):
    """Experts as GGUF files have them: matrices of their own for gate and `up`."""

    def __init__(self, params: Params, count: int, width: int, inner: int) -> None:
        self.gate_proj = _matrices(params, "gate_proj", count, width, inner)
        self.gate_bias = params.tensor("gate_proj.bias", (count, inner))
        self.up_proj = _matrices(params, "up_proj", count, width, inner)
        self.up_bias = params.tensor("up_proj.bias", (count, inner))
        self.down_proj = _matrices(params, "down_proj", count, inner, width)
        self.down_bias = params.tensor("down_proj.bias", (count, width))

    def gate_and_up(self, x: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        """[R, C], [R] -> [R, I] twice."""
        gate = self.gate_proj(x, groups) + F.take(self.gate_bias, groups)
        return gate, self.up_proj(x, groups) + F.take(self.up_bias, groups)

    def down(self, x: Tensor, groups: Tensor) -> Tensor:
        """[R, I], [R] -> [R, C]."""
        return self.down_proj(x, groups) + F.take(self.down_bias, groups)


def _matrices(params: Params, name: str, count: int, inputs: int, outputs: int) -> ExpertMatrices:
    names = [f"{number}.{name}.weight" for number in range(count)]
    return ExpertMatrices.of_each(params, names, inputs, outputs)
