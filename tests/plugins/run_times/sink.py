"""Adds up how long programs run, and prints it when the process ends, the slowest first."""

import atexit
import sys
import threading
from collections import Counter

from gptrs.api.programs import CompileStart, ExecutionTraceSink, RunEnd


class RunTimes(ExecutionTraceSink):
    """Seconds by program; called from any thread."""

    def __init__(self) -> None:
        self._origins: dict[int, str] = {}
        self._seconds = Counter[int]()
        self._lock = threading.Lock()

    def before_program(self, event: CompileStart) -> None:
        """Remember what the number stands for."""
        self._origins[event.number] = event.origin

    def after_run(self, event: RunEnd) -> None:
        """Add the run to those of its program."""
        with self._lock:
            self._seconds[event.number] += event.seconds

    def report(self) -> None:
        """Print a line for each program."""
        for number, seconds in self._seconds.most_common():
            origin = self._origins.get(number, "compiled before")
            print(f"{seconds:.6f} s  program {number}, {origin}", file=sys.stderr)


def create() -> RunTimes:
    """What the description names as the factory."""
    sink = RunTimes()
    atexit.register(sink.report)
    return sink
