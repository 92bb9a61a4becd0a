"""A child process that answers in lines: what it imports can hang, exit or crash only there.

It answers on a pipe of its own, as standard output belongs to the plugins.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, cast

from gptrs.plugins.entry_points import load_reference
from gptrs.quick_dataclass import dataclass

Tell = Callable[[Mapping[str, object]], None]
"""Sends an answer to the parent."""
START_S = 60.0
"""How long the first answer may take: the start of Python on a busy machine."""
_CODE = "import sys; from gptrs.plugins.child_process import serve; serve(*sys.argv[1:])"
_LONGEST_ANSWER = 1 << 16


@contextlib.contextmanager
def child_process(reference: str, question: object) -> Generator[Child]:
    """Scope of a child that calls `reference`, "module:function", with (question, tell).

    `question` is plain data. At the end of the scope the child is killed with all it has started.
    """
    reader, writer = os.pipe()
    try:
        with tempfile.TemporaryFile() as asked:
            asked.write(json.dumps(question).encode())
            asked.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-c", _CODE, reference, str(writer)],
                stdin=asked,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[writer],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    try:
        yield Child(process, reader)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the plugin has started
        process.wait()


def serve(reference: str, writer: str) -> None:
    """Run the child: answer the question on standard input, then end at once."""

    def tell(answer: Mapping[str, object]) -> None:
        os.write(int(writer), json.dumps(answer).encode() + b"\n")

    question = json.load(sys.stdin)
    cast("Callable[[Any, Tell], None]", load_reference(reference))(question, tell)
    os._exit(0)  # without what plugins do at the exit of a process


@dataclass()
class Child:
    """A running child, and the end of the pipe on which it answers."""

    process: subprocess.Popen[bytes]
    reader: int
    _received: bytes = b""

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """Return the next answer; None if the child ended, or said nothing for so long."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._received and len(self._received) < _LONGEST_ANSWER:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reader], [], [], left)[0]:
                return None
            part = os.read(self.reader, _LONGEST_ANSWER)
            if not part:
                return None
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return cast("dict[str, Any]", json.loads(line))

    def ending(self, seconds: float) -> str:
        """Say how a child ended that gives no answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(0.5)
            if code < 0:
                return f"was ended by {signal.Signals(-code).name}"
            return f"ended the process with exit code {code}"
        return f"takes longer than {seconds:g} s, or does not let the process answer"
