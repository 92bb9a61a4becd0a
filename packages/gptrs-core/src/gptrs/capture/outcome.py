"""Outcomes of runs: checked only when a result is read."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.backend.contract import SubmittedRun

MOST_UNCHECKED = 64
"""Most pending runs before the oldest is awaited: its results may never be read."""


class Outcome:
    """The outcome of a run and of the earlier runs whose results it reads.

    After success it holds nothing; an error is kept and raised for each reader.
    """

    __slots__ = ("_earlier", "_error", "_run", "length")

    def __init__(self, run: SubmittedRun | None, earlier: Sequence[Outcome]) -> None:
        self._run = run
        self._earlier = tuple(earlier)
        self._error: Exception | None = None
        self.length = 1 + max([each.length for each in earlier], default=0)
        """Runs in order whose success was unknown."""

    @property
    def good(self) -> bool:
        """Whether no check is pending and no run failed."""
        return self._run is None and not self._earlier and self._error is None

    def require(self) -> None:
        """Wait for the runs; raise the error of the first failure."""
        if self._error is not None:
            raise self._error
        try:
            for each in self._earlier:
                each.require()
            if self._run is not None:
                self._run.check()
        except Exception as error:
            self._error = error
            raise
        self._run, self._earlier, self.length = None, (), 0


def outcome_after(run: SubmittedRun | None, read: Sequence[Outcome | None]) -> Outcome | None:
    """Return the outcome of a run that read results with outcomes `read`; None if good."""
    earlier = [each for each in dict.fromkeys(read) if each is not None and not each.good]
    if run is None and len(earlier) <= 1:
        return earlier[0] if earlier else None
    made = Outcome(run, earlier)
    if made.length > MOST_UNCHECKED:
        for each in earlier:
            each.require()
        return Outcome(run, ())
    return made
