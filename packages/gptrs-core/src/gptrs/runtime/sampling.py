"""How the next token is chosen from logits: greedily, or drawn from a truncated distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gptrs.errors import ExecutionError, ModelError, UsageError


@dataclass(frozen=True)
class Sampling:
    """Settings of the choice; temperature 0 is greedy and ignores the rest.

    `top_k` keeps the k most likely tokens, then `top_p` the fewest most likely ones whose
    probabilities reach p (Holtzman et al. 2019). With a `seed` the same logits give the same
    tokens. UsageError for values out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature must be a finite number >= 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top-k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top-p must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"the seed must be an integer >= 0, got {self.seed}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0


def configured_sampling(
    settings: Mapping[str, object],
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Sampling:
    """What generation_config.json asks for, single fields replaced by those that are given.

    Greedy unless `settings` say `do_sample` or one of `temperature`, `top_k` (0: no limit) and
    `top_p` is given. UsageError for a given value out of range, ModelError for one in `settings`.
    """
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    if not settings.get("do_sample") and all(value is None for value in given.values()):
        return Sampling(temperature=0, seed=seed)
    try:
        base = Sampling(
            temperature=_number(settings, "temperature", 1.0),
            top_k=int(_number(settings, "top_k", 0)) or None,
            top_p=_number(settings, "top_p", 1.0),
        )
    except UsageError as error:
        raise ModelError(f"generation_config.json: {error.message}") from error
    return Sampling(
        temperature=base.temperature if temperature is None else temperature,
        top_k=base.top_k if top_k is None else top_k or None,
        top_p=base.top_p if top_p is None else top_p,
        seed=seed,
    )


def _number(settings: Mapping[str, object], name: str, default: float) -> float:
    value = settings.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"`{name}` must be a number, got {value!r:.60}")
    return value


class Sampler:
    """Draws tokens by one `Sampling`, with a random state of its own."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.Generator(np.random.PCG64(sampling.seed))

    def choose(self, logits: np.ndarray) -> int:
        """The next token for logits f32 [V]; of equal ones the smallest comes first.

        Logits of -inf are never drawn. ExecutionError when the largest logit is not finite.
        """
        largest = logits.max()
        if not np.isfinite(largest):
            raise ExecutionError(
                f"the model returned {largest} as its largest logit",
                hint="check its weights with `gptrs inspect`, or run it on another --backend",
            )
        if self._sampling.greedy:
            return int(np.argmax(logits))
        # Stable, so that ties at the edge of top-k and top-p fall to the smaller token.
        order = np.argsort(-logits, kind="stable")[: self._sampling.top_k]
        probabilities = _softmax(logits[order].astype(np.float64), self._sampling.temperature)
        if self._sampling.top_p is not None:
            before = np.cumsum(probabilities) - probabilities
            kept = before < self._sampling.top_p
            kept[0] = True
            order, probabilities = order[kept], probabilities[kept] / probabilities[kept].sum()
        return int(self._random.choice(order, p=probabilities))


def _softmax(scores: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf
        weights = np.exp((scores - scores.max()) / temperature)
    return weights / weights.sum()
