"""An optional protocol of executables: runs whose errors are told when somebody waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gptrs.backend.bound_inputs import BoundInputs
from gptrs.backend.protocol import Buffer


class SubmittedRun(Protocol):
    """A run that may still be going on, and may still fail."""

    def check(self) -> None:
        """Wait until it is known whether the run failed; raise what `run` would have raised.

        It may be called more than once, from any thread, and says the same each time.
        """
        ...


@runtime_checkable
class SubmittingExecutable(Protocol):
    """An executable that starts a run and does not wait for it, though the program can fail."""

    def submit(
        self, inputs: Sequence[Buffer], bound: BoundInputs | None
    ) -> tuple[list[Buffer], SubmittedRun | None]:
        """Return the results of a run that has begun, and the run; None if it cannot fail.

        The inputs are those of `run`, or of `run_bound` with `bound`. The results can be inputs of
        other runs at once, even where this one fails: they have the promised types then, and any
        elements. `check` is called before anybody reads them. Wrong inputs are raised here, and
        any error that is known at once may be.
        """
        ...
