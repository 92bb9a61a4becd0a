"""Times between words that were heard: which may come next, and the segments that they bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from gptrs.quick_dataclass import dataclass

SECONDS: Final = 0.02
"""Of each step of a timestamp: two frames."""
FRAMES: Final = 2


@dataclass(frozen=True)
class TimestampRules:
    """The timestamps of a model, with the rules that transformers has.

    Tokens from `first` on are times; `none` says that there are none; `end` ends a text. A text
    begins with a time, at most `most_first` steps after the start. Times come in pairs and never
    fall. Where all times together are likelier than any word, a time is next.
    """

    none: int
    end: int
    most_first: int | None = None

    @property
    def first(self) -> int:
        """The token of the time 0."""
        return self.none + 1

    def __call__(self, written: Sequence[int], logits: np.ndarray) -> np.ndarray:
        """Change the logits f32 [V] of the token after those that were written."""
        first, times = self.first, [token for token in written if token >= self.first]
        logits[self.none] = -np.inf
        last = bool(written) and written[-1] >= first
        before = len(written) < 2 or written[-2] >= first
        if last and before:
            logits[first:] = -np.inf
        elif last:
            logits[: self.end] = -np.inf
        if times:
            logits[first : times[-1] + (0 if last and not before else 1)] = -np.inf
        if not written:
            logits[:first] = -np.inf
            if self.most_first is not None:
                logits[first + self.most_first + 1 :] = -np.inf
        best = logits.max()
        of_times = np.log(np.exp((logits[first:] - best).astype(np.float64)).sum() or 1e-300)
        if best + of_times > logits[:first].max(initial=-np.inf):
            logits[:first] = -np.inf
        return logits


class Part(NamedTuple):
    """Tokens between two times, in steps from the start of the window."""

    start: float
    end: float
    tokens: tuple[int, ...]


def parts_of(tokens: Sequence[int], first: int, frames: int) -> tuple[list[Part], int]:
    """Return the parts of a window of that many frames, and how many of them are done with.

    Two times in a row end one part and begin another. What follows the last pair is not finished:
    the next window begins there. A single time at the end says that nothing follows it.
    """
    is_time = [token >= first for token in tokens]
    ends = [n + 1 for n in range(len(tokens) - 1) if is_time[n] and is_time[n + 1]]
    if not ends:
        times = [token for token in tokens if token >= first]
        last = times[-1] - first if times and times[-1] != first else frames / FRAMES
        return [Part(0, last, tuple(tokens))], frames
    single = is_time[-2:] == [False, True]
    if single:
        ends.append(len(tokens))
    else:
        ends[-1] += 1
    found: list[Part] = []
    begin = 0
    for number, end in enumerate(ends):
        own = tokens[begin:end]
        is_last = number == len(ends) - 1
        last = own[-1] if not is_last or single else own[-2]
        found.append(Part(own[0] - first, last - first, tuple(own)))
        begin = end
    return found, frames if single else (tokens[begin - 2] - first) * FRAMES
