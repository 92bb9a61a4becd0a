"""Keeps the weights of a model in memory as far as its budget goes, and the others out of it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from gptrs.backend.mapped_pages import release_pages
from gptrs.backend.protocol import Buffer
from gptrs.capture.parameter import Loan, Parameter, Streaming
from gptrs.capture.streaming.prefetch import Prefetcher
from gptrs.errors import ModelError

_ROW = 1 << 16
"""Bytes that reading a row of a mapped table may bring into memory: the system maps around it."""


class Residency:
    """Which weights of a model are in memory: at most `streaming.budget` bytes of them.

    Weights are used in turns, over and over. To make room, the one that was used last goes first,
    as it is the one whose turn is farthest away: so nearly all that fits is still there when its
    turn comes. Loans of several threads wait for each other.
    """

    def __init__(self, streaming: Streaming) -> None:
        self.streaming = streaming
        self.most_held = 0
        """The most bytes that were held so far."""
        self.bytes_read = 0
        """The bytes of weights that were brought into memory so far."""
        self._lock = threading.Lock()
        # The least recently used comes first. Weights hold their lender, so it does not hold them.
        self._held: dict[weakref.ref[Parameter], int] = {}
        self._prefetcher = Prefetcher()

    @property
    def bytes_held(self) -> int:
        """The bytes of weights that are in memory now."""
        return sum(nbytes for weight, nbytes in list(self._held.items()) if weight() is not None)

    def require_room(self, parts: Sequence[Loan]) -> None:
        """See `gptrs.capture.parameter.Lender`."""
        every = {weight for part in parts for weight in part.weights}
        pinned = sum(weight.type.nbytes for weight in every if self._pinned(weight))
        worst = max(parts, key=self._need)
        budget, least = self.streaming.budget, pinned + self._need(worst)
        if least > budget:
            largest = max(worst.weights, key=lambda weight: weight.loading_nbytes)
            raise ModelError(
                f"a weight budget of {budget} bytes is too small: `{largest.name}`, a"
                f" `{largest.type}`, and what is needed beside it take {least} bytes",
                hint=f"set a budget of at least {least} bytes",
            )

    @contextmanager
    def lent(self, loan: Loan) -> Generator[list[Buffer]]:
        """See `gptrs.capture.parameter.Lender`."""
        with self._lock:
            self._make_room(self._need(loan, missing=True), keep=set(loan.weights))
            pairs = list(zip(loan.weights, loan.rows, strict=True))
            buffers = [self._buffer(weight, rows) for weight, rows in pairs]
            self.most_held = max(self.most_held, self.bytes_held)
            yield buffers
            for weight, rows in pairs:
                if rows is not None and not weight.loaded:
                    release_pages(weight.backend.to_host(weight.borrow()))

    def ask_for(self, loan: Loan) -> None:
        """See `gptrs.capture.parameter.Lender`."""
        wanted = zip(loan.weights, loan.rows, strict=True)
        missing = [weight for weight, rows in wanted if rows is None and not weight.loaded]
        if missing:
            self._prefetcher.ask_for(missing)

    def _need(self, loan: Loan, missing: bool = False) -> int:
        """The bytes that a loan takes besides pinned weights, or besides all that are there."""
        need = 0
        for weight, rows in zip(loan.weights, loan.rows, strict=True):
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
            return weight.borrow()
        key = weakref.ref(weight)
        if not weight.loaded:
            self.bytes_read += weight.loading_nbytes
        buffer = weight.lend()
        self._held.pop(key, None)
        self._held[key] = weight.type.nbytes
        return buffer

    def _make_room(self, need: int, keep: set[Parameter]) -> None:
        """Drop weights, the last used first, but none in `keep`.

        A share is left free for what kernels make of weights for the moment; pinned ones go only
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
                    weight.drop()
