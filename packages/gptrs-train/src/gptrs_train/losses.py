"""Losses: cross-entropy of logits whose derivative is one pass, and of tokens in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import gptrs
from gptrs import functionals as F
from gptrs.api.models import Tensor
from gptrs.api.programs import dtypes

MOST_LOGITS: Final = 1 << 24
"""Most logits in memory at once: 64 MiB of f32. More rows are computed in parts."""


@gptrs.custom_vjp
def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -log softmax(logits)[target] of each row, f32 [N, V] and integers [N] -> f32 [N].

    Its derivative, softmax - one-hot, is one elementwise pass over the logits; by the rules of the
    primitives it would scatter into zeros of their size.
    """
    return _costs(logits, targets)[0]


def _costs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses, and the logarithms of the sums [N, 1]."""
    # logsumexp subtracts the maximum: exp overflows f32 from 88.7 on.
    total = F.logsumexp(logits, -1, keepdims=True)
    # A selection, not a product with the one-hot: 0 * inf would be NaN for masked logits of -inf. A
    # gather would have a scatter as its derivative.
    own = F.sum(F.where(_one_hot(logits, targets), logits, 0.0), -1)
    return F.squeeze(total, 1) - own, total


def _one_hot(logits: Tensor, targets: Tensor) -> Tensor:
    classes = F.arange(logits.shape[1], dtype=dtypes.si32)
    return F.equal(F.expand_dims(F.cast(targets, dtypes.si32), 1), F.expand_dims(classes, 0))


def _forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    costs, total = _costs(logits, targets)
    return costs, (logits, targets, total)


def _backward(kept: tuple[Tensor, Tensor, Tensor], cotangent: Tensor) -> tuple[Tensor, None]:
    logits, targets, total = kept
    share = F.exp(logits - total)
    change = F.where(_one_hot(logits, targets), share - 1.0, share)
    return change * F.expand_dims(cotangent, 1), None


cross_entropy.defvjp(_forward, _backward)


def token_loss(
    head: Callable[[Tensor], Tensor],
    states: Tensor,
    targets: Tensor,
    weights: Tensor,
    vocabulary: int,
) -> Tensor:
    """Return the sum of weights times the cross-entropies of tokens, f32 [].

    `head` makes logits [M, V] of states [M, C]; there are N states, integer targets and f32
    weights. Beyond MOST_LOGITS logits, only a part of them exists at a time, and each part is
    computed again for the derivative.
    """
    rows = int(states.shape[0])
    most = max(1, MOST_LOGITS // vocabulary)

    def part(states: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        # f32 even after products in bf16, whose 8 bits would round losses of a large vocabulary to
        # steps of 1/16.
        costs = cross_entropy(F.cast(head(states), dtypes.f32), targets)
        return F.sum(costs * weights)

    if rows <= most:
        return part(states, targets, weights)
    total: Tensor | float = 0.0
    for start in range(0, rows, most):
        own = slice(start, min(start + most, rows))
        total = total + gptrs.remat(part)(states[own], targets[own], weights[own])
    assert isinstance(total, Tensor), "there is a part at least"
    return total
