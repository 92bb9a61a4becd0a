"""The process that renders chat templates: started on first use, replaced after any problem."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Final, cast

_SCRIPT: Final = Path(__file__).with_name("render.py")


_AT_ONCE: Final = 500
"""Most entries of a list that are written at once."""
_LEVELS: Final = 6
"""Down to the entries of a list among the variables of a conversation."""


def json_of(value: object, *, allow_nan: bool = True, levels: int = _LEVELS) -> str:
    """Return JSON as `json.dumps` does, which would keep the streams of a server waiting.

    It holds the interpreter's lock to its end: 0.1 s for a list of 400,000 numbers.
    """
    portions = partial(json_of, allow_nan=allow_nan, levels=levels - 1)
    named = cast("dict[object, object]", value) if isinstance(value, dict) else {}
    if levels and named and all(isinstance(name, str) for name in named):
        inner = [f"{json.dumps(name)}: {portions(each)}" for name, each in named.items()]
        return f"{{{', '.join(inner)}}}"
    if levels and isinstance(value, list):
        rows = cast("list[object]", value)
        if len(rows) <= _AT_ONCE:
            return f"[{', '.join([portions(each) for each in rows])}]"
        parts = (rows[at : at + _AT_ONCE] for at in range(0, len(rows), _AT_ONCE))
        return f"[{', '.join([json.dumps(part, allow_nan=allow_nan)[1:-1] for part in parts])}]"
    return json.dumps(value, allow_nan=allow_nan)


class WorkerError(Exception):
    """The process ended before it answered; the message says why."""


class RenderWorker:
    """One process for the templates of all threads, which take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, object], timeout: float) -> dict[str, object]:
        """Return the answer of the worker to `request`; WorkerError if there is none.

        After `timeout` seconds, or when it reports a problem, the process is replaced, so that
        leftovers of a hostile template, such as fragmented memory, do not affect the next one.
        """
        line = json_of(request).encode("ascii") + b"\n"
        with self._lock:
            process = self._running()
            try:
                answer = _exchange(process, line, timeout)
            except BaseException:  # an interrupted exchange leaves half an answer in the pipe
                self._stop()
                raise
            if "problem" in answer:
                self._stop()
            return answer

    def close(self) -> None:
        """End the process; a later request starts another."""
        with self._lock:
            self._stop()

    def forget(self) -> None:
        """Drop the parent's process after a fork."""
        process, self._process = self._process, None
        self._lock = threading.Lock()
        if process is not None:
            _close_pipes(process)
            process.returncode = 0  # not a child of this process: nothing to wait for

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "utf8", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,  # no buffer whose lock a fork could copy while it is held
                start_new_session=True,  # Ctrl-C goes to this process, which then ends it
            )
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def _exchange(process: subprocess.Popen[bytes], line: bytes, timeout: float) -> dict[str, object]:
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(timeout, stop)
    timer.daemon = True
    timer.start()
    try:
        answer = _transfer(process, line)
    finally:
        timer.cancel()
    if answer.endswith(b"\n"):
        return cast("dict[str, object]", json.loads(answer))
    code = process.wait()
    if late.is_set() or code == -signal.SIGXCPU:
        raise WorkerError("it takes too long")
    raise WorkerError(f"its process ended with code {code}")


def _transfer(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Write the request and return the line that answers it, cut short if the process ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    answer = bytearray()
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(process.stdin.fileno(), rest) :]
        while not answer.endswith(b"\n"):
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                break
            answer += piece
    except BrokenPipeError:
        answer.clear()
    return bytes(answer)


worker = RenderWorker()
"""The worker of this process."""
os.register_at_fork(after_in_child=worker.forget)
atexit.register(worker.close)
