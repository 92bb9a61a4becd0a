"""Losses: cross-entropy of logits whose derivative is one pass, and of tokens in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


MOST_WEIGHTS: Final = 1 << 24
"""Decoded weights of a quantized head that are in memory at once: 64 MiB of f32."""
HeadPart = Callable[[Tensor, Sequence[Tensor], int, int], Tensor]
"""`head(states, parts, first, last)` makes the logits [M, last - first] of some words."""


def token_loss_by_words(
    head: HeadPart,
    parts: Sequence[Tensor],
    states: Tensor,
    targets: Tensor,
    weights: Tensor,
    vocabulary: int,
) -> Tensor:
    """Return `token_loss` of a head that is decoded, from its `parts`, for some words at a time.

    Neither all logits nor all of the decoded head exist at once. The logarithms of the sums of the
    parts are joined; for the derivative, each part is computed again.
    """
    size = min(MOST_WEIGHTS // int(states.shape[1]), MOST_LOGITS // int(states.shape[0]))
    sums: list[Tensor] = []
    own: Tensor | float = 0.0
    for first in range(0, vocabulary, max(size, 1)):
        last = min(first + max(size, 1), vocabulary)

        def part(
            x: Tensor, targets: Tensor, *parts: Tensor, first: int = first, last: int = last
        ) -> tuple[Tensor, Tensor]:
            logits = F.cast(head(x, parts, first, last), dtypes.f32)
            among = _one_hot(logits, targets - first)
            return F.logsumexp(logits, -1), F.sum(F.where(among, logits, 0.0), -1)

        total, found = gptrs.remat(part)(states, targets, *parts)
        sums.append(total)
        own = own + found
    return F.sum((F.logsumexp(F.stack(sums, 0), 0) - own) * weights)


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
