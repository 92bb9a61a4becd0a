"""Calls go over from parts to their fused kernel once that is compiled."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gptrs_backend_numba.codegen.compiled import stored
from gptrs_backend_numba.compiling.workers import compile_beside
from gptrs_backend_numba.parts import use_of_parts
from gptrs_backend_numba.run.assembly import Takeover

_FIRST_LOOK_S, _LAST_LOOK_S = 0.1, 5.0
"""Seconds between looks for kernels that are being compiled; each look without one doubles them.
Every kernel that lacks costs a look 10 us."""


class Takeovers:
    """The calls of a program that run on parts. `look` is called before each run."""

    def __init__(self, takeovers: Sequence[Takeover], words: memoryview[int]) -> None:
        self._waiting = [] if use_of_parts() == "only" else list(takeovers)
        self._words = words
        self._runs = 0
        self._next_look = 0.0
        self._pause = _FIRST_LOOK_S

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def look(self) -> None:
        """Have the kernels compiled when the program runs again; go over to those that are there.

        A program that runs once, as one that folds constants, causes no compilation. The caller
        holds the lock of runs.
        """
        self._runs += 1
        if self._runs == 2:
            compile_beside([each.wanted for each in self._waiting])
        now = time.monotonic()
        if self._runs < 2 or now < self._next_look:
            return
        waiting = [each for each in self._waiting if not self._goes_over(each)]
        found = len(waiting) < len(self._waiting)
        self._pause = _FIRST_LOOK_S if found else min(2 * self._pause, _LAST_LOOK_S)
        self._next_look = now + self._pause
        self._waiting = waiting

    def _goes_over(self, takeover: Takeover) -> bool:
        kernel = stored(takeover.wanted)
        if kernel is None:
            return False
        self._words[takeover.address] = kernel.address
        self._words[takeover.jump] = takeover.target
        return True
