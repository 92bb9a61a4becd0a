"""Routing to experts by groups of them (DeepSeek-V2 and V3), with biases, and SparseMixer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gptrs import functionals as F
from gptrs.api.models import Module, Params, Tensor
from gptrs.api.programs import dtypes
from gptrs.nn import Linear

BIAS = "gate.e_score_correction_bias"
"""Where DeepSeek-V3 and its relatives have the biases of their experts."""


@dataclass(frozen=True)
class Routing:
    """How experts are chosen: those of the `chosen_groups` best of `groups` groups only.

    The score of an expert is a softmax over all, or with `sigmoid` one by itself; then the two best
    experts count for a group, else the best one. For the choice the tensor `bias` of the mixture is
    added, if it has one. Normalized weights are divided by their sum and `least`, and multiplied by
    `scale`. `mixer` is how much worse than the best an expert may be in SparseMixer, which takes
    two by its own rule.
    """

    groups: int = 1
    chosen_groups: int = 1
    sigmoid: bool = False
    scale: float = 1.0
    bias: str | None = None
    least: float = 1e-20
    mixer: float | None = None


class GroupedRouter(Module):
    """The experts of each token and their weights."""

    def __init__(
        self, routing: Routing, params: Params, gate: str, width: int, experts: int
    ) -> None:
        self.gate = Linear(params / gate, width, experts, bias=False)
        self.bias = None
        if routing.bias is not None:
            row = (1, experts) if routing.bias.startswith("moe_statics") else (experts,)
            self.bias = F.reshape(params.tensor(routing.bias, row), (experts,))
        self._routing = routing

    def __call__(self, x: Tensor, chosen: int, normalized: bool) -> tuple[Tensor, Tensor]:
        """[N, C] -> weights [N, k] and experts, integers [N, k]."""
        found = self.gate(x)
        if self._routing.mixer is not None:
            return _sparse_mixer(found, self._routing.mixer)
        scores = F.sigmoid(found) if self._routing.sigmoid else F.softmax(found, axis=-1)
        choice = scores if self.bias is None else scores + self.bias
        _, experts = F.top_k(self._in_groups(choice), chosen)
        weights = F.gather(scores, experts, axis=1)
        if normalized:
            weights = weights / (F.sum(weights, axis=-1, keepdims=True) + self._routing.least)
        return weights * self._routing.scale, experts

    def _in_groups(self, choice: Tensor) -> Tensor:
        """Return scores [N, E] that are -inf outside the chosen groups."""
        routing = self._routing
        rows, experts = choice.shape
        if routing.groups == 1:
            return choice
        grouped = F.reshape(choice, (rows, routing.groups, experts // routing.groups))
        best, _ = F.top_k(grouped, 2 if routing.sigmoid else 1)
        _, groups = F.top_k(F.sum(best, axis=2), routing.chosen_groups)  # (N, k)
        own = F.reshape(F.arange(routing.groups), (1, 1, routing.groups))
        taken = F.equal(F.expand_dims(groups, 2), own)  # (N, k, G)
        taken = F.sum(F.cast(taken, dtypes.si32), axis=1) > 0
        kept = F.where(F.expand_dims(taken, 2), grouped, -math.inf)
        return F.reshape(kept, (rows, experts))


def _sparse_mixer(scores: Tensor, worse: float) -> tuple[Tensor, Tensor]:
    """Return the weights of the two best experts [N, 2] (Liu et al. 2024), and which they are.

    Each is its share of a softmax over the experts that are at most `2 * worse` below it, as a
    part of the larger of both scores; the first is not among those of the second.
    """
    best, experts = F.top_k(scores, 2)
    own = F.reshape(F.arange(scores.shape[1]), (1, scores.shape[1]))
    first = F.equal(F.cast(F.slice_axis(experts, 1, 0, 1), own.dtype), own)  # (N, E)
    weights: list[Tensor] = []
    for place in (0, 1):
        top = F.slice_axis(best, 1, place, 1)  # (N, 1)
        kept = (top - scores) / F.maximum(F.abs(scores), top) <= 2 * worse
        if place:
            kept = F.logical_and(kept, F.logical_not(first))
        shares = F.where(kept, F.exp(scores - top), 0.0)
        weights.append(1.0 / F.sum(shares, axis=1, keepdims=True))
    return F.concat(weights, axis=1), experts
