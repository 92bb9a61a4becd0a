"""The processes that compile kernels for this one; they end when it does, or without work."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from gptrs.backend.memory import memory_bytes
from gptrs.backend.process_limits import granted_cpus
from gptrs.errors import UsageError

VARIABLE: Final = "GPTRS_NUMBA_COMPILERS"
"""The environment variable with the most processes that compile kernels, this one included."""
_MOST = 4
"""Unless the variable says otherwise: one large kernel takes as long as a quarter of the others."""
_ROOM = 1 << 30
"""Bytes of memory that the machine must have for each process; one takes a quarter of it."""
_CODE = "from gptrs_backend_numba.compiling.worker import serve; serve()"


def worker_count() -> int:
    """Return how many processes may compile kernels beside this one.

    UsageError if the variable is not a number from 1 to 64.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if text:
        number = int(text) if re.fullmatch("[0-9]{1,2}", text) else 0
        if not 1 <= number <= 64:
            raise UsageError(
                f"`{VARIABLE}` must be from 1 to 64, got `{text:.60}`",
                hint="unset it for as many as there are CPUs, 4 at most",
            )
        return number - 1
    memory = memory_bytes()
    room = _MOST if memory is None else memory // _ROOM
    return max(0, min(granted_cpus(), room, _MOST) - 1) if sys.executable else 0


class Workers:
    """The processes that were started, and the pipes that they read their work from."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._forget)

    def _forget(self) -> None:
        """Close the pipes, whereupon the workers of this process end."""
        for worker in self._started:
            _close(worker)
        self._started.clear()

    def send(self, specs: Sequence[object]) -> None:
        """Have all processes look at kernels in this order; start those that are not there.

        Where none can be started this process compiles alone.
        """
        line = json.dumps(specs).encode() + b"\n"
        with contextlib.suppress(OSError):
            self._start()
        for worker in self._started:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                assert worker.stdin is not None
                worker.stdin.write(line)
                worker.stdin.flush()

    def _start(self) -> None:
        for worker in self._started:
            if worker.poll() is not None:
                _close(worker)
        self._started[:] = [worker for worker in self._started if worker.returncode is None]
        while len(self._started) < worker_count():
            self._started.append(
                subprocess.Popen(
                    [sys.executable, "-c", _CODE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    start_new_session=True,  # Ctrl-C is for the process that asked
                )
            )


def _close(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(OSError):  # bytes that it has not taken
        worker.stdin.close()


WORKERS = Workers()
"""The workers of this process."""
