"""Losses: cross-entropy of logits whose derivative is one pass, and of tokens in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import gptrs
from gptrs import functionals as F
from gptrs.api.models import Tensor
from gptrs.api.programs import dtypes

MOST_LOGITS: Final = 1 << 23
"""Most logits in memory at once: 32 MiB of f32, and as many derivatives. More rows are computed in
parts. Twice as many take 80 MB more, and 0.9 times as long with 4 layers of Qwen3-0.6B's shape in 4
bits, whose head is decoded for each part."""


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


Head = Callable[[Tensor, Sequence[Tensor]], Tensor]
"""`head(states, parts)` makes logits [M, V] of states [M, C]; it decodes its weight of `parts`."""


def token_loss(
    head: Head,
    parts: Sequence[Tensor],
    states: Tensor,
    targets: Tensor,
    weights: Tensor,
    vocabulary: int,
    *,
    frozen: bool = False,
) -> Tensor:
    """Return the sum of weights times the cross-entropies of tokens, f32 [].

    There are N states [N, C], integer targets and f32 weights. Beyond MOST_LOGITS logits, only a
    part of them exists at a time. For the derivative each part is computed again; or, if the head
    is `frozen` and only the states have a derivative, it is computed with the loss.
    """
    rows = int(states.shape[0])
    most = max(1, MOST_LOGITS // vocabulary)

    def part(states: Tensor, targets: Tensor, weights: Tensor, *parts: Tensor) -> Tensor:
        # f32 even after products in bf16, whose 8 bits would round losses of a large vocabulary to
        # steps of 1/16.
        costs = cross_entropy(F.cast(head(states, parts), dtypes.f32), targets)
        return F.sum(costs * weights)

    if rows <= most and not parts:
        return part(states, targets, weights)
    cost = _with_derivative(part) if frozen else gptrs.remat(part)
    total: Tensor | float = 0.0
    for start in range(0, rows, most):
        own = slice(start, min(start + most, rows))
        total = total + cost(states[own], targets[own], weights[own], *parts)
    assert isinstance(total, Tensor), "there is a part at least"
    return total


def _with_derivative(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function whose derivative by its first argument is computed with its value.

    A third of the products of a head is saved: logits are computed once, and none is kept.
    """

    def whole(x: Tensor, *rest: Tensor) -> Tensor:
        def of_first(x: Tensor) -> Tensor:
            return function(x, *rest)

        value, change = gptrs.value_and_grad(of_first)(F.stop_gradient(x))
        # The second term is 0. Its derivative is `change`, and nothing else has one.
        return F.stop_gradient(value) + F.sum(F.stop_gradient(change) * (x - F.stop_gradient(x)))

    return whole
