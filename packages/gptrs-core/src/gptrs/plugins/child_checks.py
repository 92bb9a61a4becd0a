"""Check plugins in a child process: one that hangs, exits or crashes is one finding, no more.

The child answers with one line for each plugin, in order, on a pipe of its own: standard output
belongs to the plugins. After a plugin that it did not survive, a new child goes on with the next.
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
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from gptrs.plugins.manager import PluginManager
from gptrs.plugins.state import PluginRecord, PluginState

SECONDS = 20.0
"""The time for each plugin; importing and starting our slowest backend takes 1 to 2."""
_CODE = "import sys; from gptrs.plugins.checked_child import main; main(int(sys.argv[1]))"
_START_S = 60.0
_LONGEST_ANSWER = 1 << 16


def check_plugins(plugins: PluginManager, seconds: float = SECONDS) -> None:
    """Import every description and make every backend in a child process, for their records.

    Each has so many `seconds`. What hangs or ends the process counts as broken afterwards.
    """
    usable = [record for record in plugins.installed() if record.state.usable]
    plugins.take_over(list(_checked(usable, plugins.selection.disabled, seconds)))


def _checked(
    plugins: Sequence[PluginRecord], disabled: Collection[str], seconds: float
) -> Iterator[PluginRecord]:
    """Yield the record of each plugin as the child finds it."""
    left = list(plugins)
    while left:
        with _child(left, disabled) as child:
            # The first line says that the child itself is up; only then a plugin is to blame.
            blamed = "its import" if child.answer(_START_S) else "a process that checks it"
            while left:
                answer = child.answer(seconds)
                if answer is None:
                    break
                yield _answered(left.pop(0), answer)
            else:
                return
            ending = child.ending(seconds)
        hint = f"update or reinstall `{left[0].distribution}`, or leave it out by"
        hint += f" `-p no:{left[0].kind}:{left[0].name}`"
        reason = f"{blamed} {ending}"
        yield replace(left.pop(0), state=PluginState.BROKEN, reason=reason, hint=hint)


def _answered(record: PluginRecord, answer: bytes) -> PluginRecord:
    fields = cast("dict[str, str]", json.loads(answer))
    return replace(record, **{**fields, "state": PluginState(fields["state"])})


@contextlib.contextmanager
def _child(plugins: Sequence[PluginRecord], disabled: Collection[str]) -> Generator[_Child]:
    reader, writer = os.pipe()
    try:
        with tempfile.TemporaryFile() as asked:
            names = [(record.kind, record.name) for record in plugins]
            asked.write(json.dumps({"plugins": names, "disabled": sorted(disabled)}).encode())
            asked.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(writer)],
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
        yield _Child(process, reader)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the plugin has started
        process.wait()


@dataclass
class _Child:
    """A running child, and the end of the pipe on which it answers."""

    process: subprocess.Popen[bytes]
    reader: int
    _received: bytes = b""

    def answer(self, seconds: float) -> bytes | None:
        """Return the next line; None if the child ended, or said nothing for so long."""
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
        return line

    def ending(self, seconds: float) -> str:
        """Say how a child ended that gives no answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(0.5)
            if code < 0:
                return f"was ended by {signal.Signals(-code).name}"
            return f"ended the process with exit code {code}"
        return f"takes longer than {seconds:g} s, or does not let the process answer"
