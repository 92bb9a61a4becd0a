"""Chooses the next token from logits: greedy, or drawn from a truncated distribution."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np

from gptrs.errors import ExecutionError
from gptrs_runtime.generation.sampling_options import Sampling

_SMALLEST_TEMPERATURE: Final = 1e-30
"""Lower bound of the temperature in f32; far above it, all logits except the largest have lost
their weight."""
_LARGEST_TEMPERATURE: Final = 1e30
"""Upper bound of the temperature; far below it, all tokens are equally likely."""

_FIRST_GUESS: Final = 256
"""Number of weights summed first, in the hope that top-p needs no more."""

_HEAVY: Final = (1e-2, 1e-4, 0.0)
"""Least weights sorted at first, where the likeliest token has 1: to sort all of 50,000 takes 1 ms.
"""
_GROUPS_OF: Final = 64
"""Group size, see `_reached_by`."""
_BLOCK: Final = 512
"""Block size, see `_drawn`."""


class Sampler:
    """Draws tokens for one text, with its own random state.

    Several texts with one seed get different `stream`s; 0 is for a single text.
    """

    def __init__(self, sampling: Sampling, stream: int = 0) -> None:
        self._sampling = sampling
        self._stream = stream

    @cached_property
    def _random(self) -> np.random.Generator:
        """Return the random state, created lazily: greedy texts need neither it nor its imports."""
        key = (self._stream,) if self._stream else ()
        seed = self._sampling.seed
        if seed is not None and seed < 0:
            seed %= 1 << 64  # the bits of a signed 64-bit number
        seeds = np.random.SeedSequence(seed, spawn_key=key)
        return np.random.Generator(np.random.PCG64(seeds))

    @property
    def takes_largest(self) -> bool:
        """Whether the token with the largest logit is always taken, without a draw."""
        sampling = self._sampling
        return sampling.greedy or sampling.top_k == 1 or sampling.top_p == 0

    def ahead(self) -> Sampler:
        """Return a copy that will make the same draws as this sampler."""
        made = Sampler(self._sampling, self._stream)
        if not self._sampling.greedy:
            made.__dict__["_random"] = copy.deepcopy(self._random)
        return made

    def choose(self, logits: np.ndarray) -> int:
        """Return the next token for processed logits f32 [V]; if greedy, the smallest token among
        equal logits.

        Logits of -inf are never drawn. ExecutionError if the largest logit is not finite.
        """
        best = int(logits.argmax())  # the first NaN, if there is one
        require_finite(float(logits[best]))
        if self.takes_largest:
            return best
        tokens, weights = candidates(logits, self._sampling)
        # One draw a token, whatever the truncation: options do not shift the random numbers of
        # later tokens.
        return int(tokens[_drawn(weights, self._random.random())])


def require_finite(largest: float) -> None:
    """ExecutionError unless the largest logit of a token is finite."""
    if not math.isfinite(largest):
        raise ExecutionError(
            f"the largest logit of the next token is {largest}",
            hint="check the logits processors, the weights with `gptrs inspect`, or another"
            " --backend",
        )


def candidates(logits: np.ndarray, sampling: Sampling) -> tuple[np.ndarray | range, np.ndarray]:
    """Return the tokens left after truncation of finite logits [V], and their weights.

    The likeliest token has weight 1.
    """
    if sampling.top_k is not None:
        tokens = _likeliest(logits, sampling.top_k)
        weights = _weights(logits[tokens], sampling)
        if sampling.top_p is not None and sampling.top_p < 1:
            # The share is of what top-k left, as in transformers, which renormalizes between its
            # processors.
            count = _count_reaching(weights, sampling.top_p * float(weights.sum(dtype=np.float64)))
            tokens, weights = tokens[:count], weights[:count]
    elif sampling.top_p is not None and sampling.top_p < 1:
        tokens, weights = _nucleus_of_all(logits, sampling, sampling.top_p)
    else:
        tokens, weights = range(logits.size), _weights(logits, sampling)
    if sampling.min_p:
        # The likeliest token has the weight 1, so weights are already relative to it.
        kept = np.flatnonzero(weights >= sampling.min_p)
        tokens, weights = _of(tokens, kept), weights[kept]
    for cut in _cuts(sampling):
        kept = cut(weights)
        tokens, weights = _of(tokens, kept), weights[kept]
    return tokens, weights


def _of(tokens: np.ndarray | range, kept: np.ndarray) -> np.ndarray:
    return kept if isinstance(tokens, range) else tokens[kept]


def _cuts(sampling: Sampling) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Return the truncations that need whole distributions, in transformers' order."""
    typical, epsilon, eta = sampling.typical_p, sampling.epsilon_cutoff, sampling.eta_cutoff
    cuts: list[Callable[[np.ndarray], np.ndarray]] = []
    if typical is not None and typical < 1:
        cuts.append(lambda weights: _typical(weights, typical))
    if epsilon is not None and epsilon < 1:
        cuts.append(lambda weights: _at_least(weights, epsilon))
    if eta is not None and eta < 1:
        cuts.append(
            lambda weights: _at_least(
                weights, min(eta, math.sqrt(eta) * math.exp(-_surprise(weights)[2]))
            )
        )
    return cuts


def _surprise(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return probabilities, their negative logarithms, and the entropy, f64."""
    shares = weights / weights.sum(dtype=np.float64)
    with np.errstate(divide="ignore"):
        surprise = -np.log(shares)
    entropy = float((surprise[shares > 0] * shares[shares > 0]).sum())
    return shares, surprise, entropy


def _typical(weights: np.ndarray, mass: float) -> np.ndarray:
    """Return which tokens are typical: those with surprise closest to the entropy, until they reach
    `mass`."""
    shares, surprise, entropy = _surprise(weights)
    distance = np.abs(surprise - entropy)
    # Stable for the same tokens on every machine where distances are equal.
    order = np.argsort(distance, kind="stable")
    before = int((np.cumsum(shares[order]) < mass).sum())
    return np.flatnonzero(distance <= distance[order[min(before, len(order) - 1)]])


def _at_least(weights: np.ndarray, share: float) -> np.ndarray:
    """Return which tokens have at least the probability `share`; always includes the likeliest."""
    # A cutoff above every probability must still leave one token, hence the maximum below.
    wanted = share * weights.sum(dtype=np.float64)
    return np.flatnonzero((weights >= wanted) | (weights == weights.max()))


def _weights(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    temperature = min(max(sampling.temperature, _SMALLEST_TEMPERATURE), _LARGEST_TEMPERATURE)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf
        # The largest exponent is 0, so no weight overflows, and the sum is at least 1.
        return np.exp((logits - logits.max()) / temperature)


def _nucleus_of_all(
    logits: np.ndarray, sampling: Sampling, top_p: float
) -> tuple[np.ndarray, np.ndarray]:
    """Apply top-p to the whole vocabulary; among equal logits smaller tokens come first. Results
    are in token order."""
    weights = _weights(logits, sampling)
    share = top_p * float(weights.sum(dtype=np.float64))
    falling, count = weights[:0], 0
    for least in _HEAVY:
        # `sort` is many times faster than `argsort`.
        falling = np.sort(weights[weights >= least])[::-1]
        count = _count_reaching(falling, share)
        if count < falling.size:  # otherwise lighter ones may be needed, too
            break
    tokens = np.flatnonzero(weights >= falling[count - 1])
    # Ties at the edge: keep the smaller tokens, as a stable descending sort would.
    if tokens.size > count:
        last = np.flatnonzero(weights[tokens] == falling[count - 1])
        tokens = np.delete(tokens, last[count - tokens.size :])
    return tokens, weights[tokens]


def _count_reaching(falling: np.ndarray, share: float) -> int:
    """Return how many leading weights reach `share`, summing no more than needed."""
    size = _FIRST_GUESS
    while size < falling.size and falling[:size].sum(dtype=np.float64) < share:
        size *= 8
    first = falling[:size]
    # The sum before each token: the token that crosses the share is kept, as in transformers.
    before = np.cumsum(first, dtype=np.float64) - first
    return max(1, int(np.searchsorted(before, share)))


def _drawn(weights: np.ndarray, share: float) -> int:
    """Return the index at which the cumulative weight passes `share`; never one of weight 0.

    Blocks are summed first: a running sum over a whole vocabulary takes ten times as long.
    """
    # Sums are f64: in f32, a running sum over a whole vocabulary swallows small weights.
    blocks = np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK), dtype=np.float64)
    passed = np.cumsum(blocks)
    target = share * float(passed[-1])
    block = min(int(np.searchsorted(passed, target, side="right")), passed.size - 1)
    inside = np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
    rest = target - float(passed[block - 1]) if block else target
    index = block * _BLOCK + int(np.searchsorted(inside, rest, side="right"))
    # Sums in another order may differ in the last bits, so clamp.
    return index if index < weights.size and weights[index] else int(weights.argmax())


def _likeliest(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the tokens of the `count` largest logits in descending order; among equal logits
    smaller tokens first."""
    edge = _reached_by(logits, count)
    tokens = np.arange(logits.size) if edge is None else np.flatnonzero(logits >= edge)
    # Stable, so that ties at the edge fall to the smaller token.
    return tokens[np.argsort(-logits[tokens], kind="stable")[:count]]


def _reached_by(logits: np.ndarray, count: int) -> float | None:
    """Return a threshold reached by at least `count` logits and few others; None if all of them
    are wanted.

    Each of many groups has a maximum, and the count-th largest of these maxima is reached by at
    least `count` logits.
    """
    if count >= logits.size:
        return None
    groups = logits.size // _GROUPS_OF
    if groups > count:
        # Groups are strided rather than adjacent, so that the maximum over axis 0 runs over
        # contiguous rows. Logits of an incomplete group can only increase the number that reach the
        # threshold.
        logits = logits[: groups * _GROUPS_OF].reshape(_GROUPS_OF, groups).max(axis=0)
    edge = logits.size - count
    return float(np.partition(logits, edge)[edge])
