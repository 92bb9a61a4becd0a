"""Keeps the weights of a model in memory as far as its budget goes, and the others out of it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager

from typing_extensions import override

from gptrs.backend.contract import Buffer
from gptrs.capture.parameter import Parameter, Streaming, WeightRows, WeightStreamer
from gptrs.capture.streaming.prefetch import Prefetcher
from gptrs.errors import ModelError

_ROW = 1 << 16
"""Bytes that reading a row of a mapped table may bring into memory: the system maps around it."""


class MruStreamer(WeightStreamer):
    """Holds at most `streaming.budget` bytes of weights.

    Evicts the most recently used weight (MRU): access is cyclic, so it is needed again last, and
    nearly all that fits is still there in the next cycle; evicting the least recently used one
    would read every weight in every cycle. Threads wait for each other.
    """

    def __init__(self, streaming: Streaming) -> None:
        self._streaming = streaming
        self.most_held = 0
        """The most bytes that were held so far."""
        self.bytes_read = 0
        """The bytes of weights that were brought into memory so far."""
        self._lock = threading.Lock()
        # Least recently used first. Weights hold their streamer, so it holds them weakly.
        self._held: dict[weakref.ref[Parameter], int] = {}
        self._prefetcher = Prefetcher()

    @property
    @override
    def streaming(self) -> Streaming:
        return self._streaming

    @property
    def bytes_held(self) -> int:
        """The bytes of weights that are in memory now."""
        return sum(nbytes for weight, nbytes in list(self._held.items()) if weight() is not None)

    @override
    def require_room(self, parts: Sequence[WeightRows]) -> None:
        every = {weight for part in parts for weight in part}
        pinned = sum(weight.type.nbytes for weight in every if self._pinned(weight))
        worst = max(parts, key=self._need)
        budget, least = self.streaming.budget, pinned + self._need(worst)
        if least > budget:
            largest = max(worst, key=lambda weight: weight.loading_nbytes)
            raise ModelError(
                f"a weight budget of {budget} bytes is too small: `{largest.name}`, a"
                f" `{largest.type}`, and what is needed beside it take {least} bytes",
                hint=f"set a budget of at least {least} bytes",
            )

    @override
    @contextmanager
    def acquire(self, weights: WeightRows) -> Generator[Mapping[Parameter, Buffer]]:
        with self._lock:
            self._make_room(self._need(weights, missing=True), keep=weights)
            buffers = {weight: self._buffer(weight, rows) for weight, rows in weights.items()}
            self.most_held = max(self.most_held, self.bytes_held)
            yield buffers
            for weight, rows in weights.items():
                if rows is not None and not weight.loaded:
                    weight.release_pages(buffers[weight])

    @override
    def prefetch(self, weights: WeightRows) -> None:
        missing = [w for w, rows in weights.items() if rows is None and not w.loaded]
        if missing:
            self._prefetcher.prefetch(missing)

    def _need(self, weights: WeightRows, missing: bool = False) -> int:
        """Return the bytes that weights take besides pinned ones, or besides all that are held."""
        need = 0
        for weight, rows in weights.items():
            if missing and weight.loaded:
                continue
            if rows is not None:
                need += min(rows * _ROW, weight.type.nbytes)
            elif missing or not self._pinned(weight):
                need += weight.loading_nbytes
        return need

    def _pinned(self, weight: Parameter) -> bool:
        return weight.type.nbytes < self.streaming.pin_below

    def _buffer(self, weight: Parameter, rows: int | None) -> Buffer:
        if rows is not None and not weight.loaded:
            return weight.buffer(keep=False)
        key = weakref.ref(weight)
        if not weight.loaded:
            self.bytes_read += weight.loading_nbytes
        buffer = weight.acquire()
        self._held.pop(key, None)
        self._held[key] = weight.type.nbytes
        return buffer

    def _make_room(self, need: int, keep: Collection[Parameter]) -> None:
        """Release weights, the most recently used first, but none in `keep`.

        A share stays free for temporary copies that kernels make of weights; pinned ones go only
        where the budget would be broken.
        """
        budget = self.streaming.budget
        taken = self.bytes_held + need
        for limit, spares_pinned in ((budget - self.streaming.share, True), (budget, False)):
            for key in reversed(self._held.copy()):
                if taken <= limit:
                    break
                weight = key()
                if weight is None:
                    del self._held[key]
                elif weight not in keep and not (spares_pinned and self._pinned(weight)):
                    taken -= self._held.pop(key)
                    weight.release()
