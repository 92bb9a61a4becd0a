"""A process that compiles kernels for another: it reads lines of kernels, and fills the store."""

from __future__ import annotations

import json
import os
import select
import sys
from collections import deque
from contextlib import suppress
from typing import cast

from gptrs_backend_numba.codegen.compiled import WantedKernel, compile_if_free
from gptrs_backend_numba.compiling.workers import kernel_of

_IDLE_S = 20.0
"""How long to wait for more work: until a model that is being loaded is compiled."""


def serve() -> None:
    """Compile what standard input names, until it ends or nothing has come for a while."""
    waiting: deque[object] = deque()
    lines = _Lines(sys.stdin.fileno())
    while True:
        more = lines.read(0.0 if waiting else _IDLE_S)
        if more is None or not (more or waiting):
            return
        for line in more:
            waiting.extend(json.loads(line))
        if waiting:
            _compile(waiting.popleft())


def _compile(spec: object) -> None:
    # The process that asked compiles what fails here, and has the error for its own.
    with suppress(Exception):
        source, fastmath = cast("tuple[object, list[str]]", spec)
        compile_if_free(WantedKernel(kernel_of(source), tuple(fastmath)))


class _Lines:
    """Whole lines of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    def read(self, seconds: float) -> list[bytes] | None:
        """Return lines that come within `seconds`, as soon as there are any; None at the end."""
        lines: list[bytes] = []
        while not lines and select.select([self._descriptor], [], [], seconds)[0]:
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                return None
            *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
