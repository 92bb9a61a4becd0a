"""Log-probabilities of a chosen token and of the likeliest ones."""

from __future__ import annotations

import numpy as np

from gptrs.quick_dataclass import dataclass
from gptrs_runtime.results import TokenLogprob, TopToken


@dataclass(frozen=True)
class TokenScores:
    """Natural log-probabilities: `log_softmax` of the model's logits, before logits processors.

    `top` are the likeliest tokens with theirs, falling, without those of probability 0.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, logits: np.ndarray, token: int, count: int) -> TokenScores:
        """Return the scores of `token` and of the `count` likeliest ones, for logits f32 [V]."""
        exact = logits.astype(np.float64)
        exact -= exact.max()
        exact -= np.log(np.exp(exact).sum())
        count = min(count, exact.size)
        edge = exact.size - count
        tokens = np.argpartition(exact, edge)[edge:] if 0 < count < exact.size else np.arange(count)
        best = tokens[np.lexsort((tokens, -exact[tokens]))] if count else tokens[:0]
        top = tuple((int(i), float(exact[i])) for i in best if exact[i] > -np.inf)
        return cls(token, float(exact[token]), top)

    def told(self) -> TokenLogprob:
        """Return the scores as results tell them."""
        return TokenLogprob(self.token, self.logprob, [TopToken(*each) for each in self.top])
