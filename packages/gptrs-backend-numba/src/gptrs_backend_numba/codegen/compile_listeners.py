"""The listeners that are told of each kernel before it is compiled."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from gptrs.backend.contract import Compiling


class CompileListeners:
    """The functions to call before a kernel is compiled, each with the number of its calls."""

    def __init__(self) -> None:
        self._heard: dict[Compiling, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def told(self, tell: Compiling) -> Generator[None]:
        """Scope in which `tell` is called before each kernel that is compiled, from 1."""
        with self._lock:
            self._heard[tell] = 0
        try:
            yield
        finally:
            with self._lock:
                self._heard.pop(tell, None)

    def kernel(self) -> None:
        """Tell the listeners that a kernel is about to be compiled; the total is unknown."""
        with self._lock:
            for tell in self._heard:
                self._heard[tell] += 1
            heard = list(self._heard.items())
        for tell, number in heard:
            tell(number, None)


LISTENERS = CompileListeners()
"""The listeners of this process."""
