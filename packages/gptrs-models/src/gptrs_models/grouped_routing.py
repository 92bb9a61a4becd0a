"""Routing to experts by groups of them (DeepSeek-V2 and V3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gptrs import functionals as F
from gptrs.api import Module, Params, Tensor, dtypes
from gptrs.nn import Linear


@dataclass(frozen=True)
class Routing:
    """How experts are chosen: those of the `chosen_groups` best of `groups` groups only.

    The score of an expert is a softmax over all, or with `sigmoid` one by itself; then a bias
    counts for the choice, and the two best experts for a group, else the best one. The weights are
    multiplied by `scale`.
    """

    groups: int
    chosen_groups: int
    sigmoid: bool
    scale: float


class GroupedRouter(Module):
    """The experts of each token and their weights."""

    def __init__(self, routing: Routing, params: Params, width: int, experts: int) -> None:
        self.gate = Linear(params, width, experts, bias=False)
        self.bias = (
            params.tensor("e_score_correction_bias", (experts,)) if routing.sigmoid else None
        )
        self._routing = routing

    def __call__(self, x: Tensor, chosen: int, normalized: bool) -> tuple[Tensor, Tensor]:
        """[N, C] -> weights [N, k] and experts, integers [N, k]."""
        found = self.gate(x)
        scores = F.softmax(found, axis=-1) if self.bias is None else F.sigmoid(found)
        choice = scores if self.bias is None else scores + self.bias
        _, experts = F.top_k(self._in_groups(choice), chosen)
        weights = F.gather(scores, experts, axis=1)
        if normalized:
            weights = weights / (F.sum(weights, axis=-1, keepdims=True) + 1e-20)
        return weights * self._routing.scale, experts

    def _in_groups(self, choice: Tensor) -> Tensor:
        """Return scores [N, E] that are -inf outside the chosen groups."""
        routing = self._routing
        rows, experts = choice.shape
        if routing.groups == 1:
            return choice
        grouped = F.reshape(choice, (rows, routing.groups, experts // routing.groups))
        best, _ = F.top_k(grouped, 1 if self.bias is None else 2)
        _, groups = F.top_k(F.sum(best, axis=2), routing.chosen_groups)  # (N, k)
        own = F.reshape(F.arange(routing.groups), (1, 1, routing.groups))
        taken = F.equal(F.expand_dims(groups, 2), own)  # (N, k, G)
        taken = F.sum(F.cast(taken, dtypes.si32), axis=1) > 0
        kept = F.where(F.expand_dims(taken, 2), grouped, -math.inf)
        return F.reshape(kept, (rows, experts))
