"""Checks of plugins in a child process: a hang, an exit or a crash is only a finding.

The child answers in lines on a separate pipe, since plugins may write to standard output.
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
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import GptrsError
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.discovery import SEVERAL
from gptrs.plugins.entry_points import load_reference
from gptrs.plugins.hookspecs import EXTENSION_POINTS
from gptrs.plugins.manager import PluginManager, configure
from gptrs.plugins.selection import canonical
from gptrs.plugins.state import PluginRecord, PluginState

Tell = Callable[[Mapping[str, object]], None]
"""Sends an answer to the parent."""
KITS = (
    "backend",
    "model",
    "functional",
    "command",
    "trace_sink",
    "importer",
    "exporter",
    "reference",
)
"""The kinds of plugins with a kit, which is the last step of a check."""
START_S = 60.0
"""Seconds for the first answer: Python starts slowly on a busy machine."""
SECONDS = 20.0
"""Seconds for each plugin; importing and starting our slowest backend takes 1 to 2."""
_CODE = "import sys; from gptrs_cli.plugin_check.children import serve; serve(*sys.argv[1:])"
_LONGEST_ANSWER = 1 << 16


@contextlib.contextmanager
def child_process(reference: str, question: object) -> Generator[Child]:
    """Scope of a child that calls `reference`, "module:function", with (question, tell).

    `question` is plain data. When the scope ends, the child and its own children are killed.
    """
    reader, writer = os.pipe()
    try:
        with tempfile.TemporaryFile() as asked:
            # A file, not a pipe: a child that hangs before it reads would block a large question.
            asked.write(json.dumps(question).encode())
            asked.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-c", _CODE, reference, str(writer)],
                stdin=asked,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[writer],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # A group of its own, so that the kill at the end reaches children of the plugin,
                # and Ctrl-C reaches only the parent.
                start_new_session=True,
            )
    except BaseException:
        os.close(reader)
        raise
    finally:
        # The parent's end must go: otherwise reading would never see the end of a dead child.
        os.close(writer)
    try:
        yield Child(process, reader)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and the children of the plugin
        process.wait()


def serve(reference: str, writer: str) -> None:
    """Run the child: answer the question on standard input, then exit at once."""

    def tell(answer: Mapping[str, object]) -> None:
        # One unbuffered write: a plugin that crashes right after must not take the answer with it.
        os.write(int(writer), json.dumps(answer).encode() + b"\n")

    question = json.load(sys.stdin)
    cast("Callable[[Any, Tell], None]", load_reference(reference))(question, tell)
    os._exit(0)  # skips the exit handlers of plugins


class Child(Struct):
    """A running child, and the end of the pipe on which it answers."""

    process: subprocess.Popen[bytes]
    reader: int
    _received: bytes = b""
    _closed: bool = False

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """Return the next answer; None if the child ended, or none came within `seconds`."""
        deadline = time.monotonic() + seconds
        # Bounded, as plugins inherit the pipe and may write to it forever.
        while b"\n" not in self._received and len(self._received) < _LONGEST_ANSWER:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reader], [], [], left)[0]:
                return None
            part = os.read(self.reader, _LONGEST_ANSWER)
            if not part:
                self._closed = True
                return None
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return cast("dict[str, Any]", json.loads(line))

    def ending(self, seconds: float) -> str:
        """Return how a child ended that gives no answer within `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A process that exits closes its pipe first: on a busy machine the rest takes a while.
            # The pipe closes a moment before the exit code is there.
            code = self.process.wait(seconds if self._closed else 0)
            if code < 0:
                return f"was ended by {signal.Signals(-code).name}"
            return f"ended the process with exit code {code}"
        return f"takes longer than {seconds:g} s, or does not let the process answer"


def check_plugins(plugins: PluginManager, seconds: float = SECONDS) -> None:
    """Import every description and create every backend in a child process, for their records.

    Each may take `seconds`. A plugin that hangs or ends the process is marked broken.
    """
    usable = [record for record in plugins.installed() if record.state.usable]
    plugins.take_over(list(_checked(usable, plugins.selection.disabled, seconds)))


def not_survived(record: PluginRecord, reason: str) -> PluginRecord:
    """Return the broken `record` of a plugin that ended the child."""
    hint = f"update or reinstall `{record.distribution}`, or leave it out by"
    hint += f" `-p no:{record.kind}:{record.name}`"
    return replace(record, state=PluginState.BROKEN, reason=reason, hint=hint)


def findings(record: PluginRecord) -> dict[str, object]:
    """Return the fields of a record that are known only after the import."""
    return {name: getattr(record, name) for name in ("state", "reason", "hint", "api", "summary")}


def answered(record: PluginRecord, found: dict[str, Any]) -> PluginRecord:
    """Return `record` with the `findings` of the child."""
    return replace(record, **{**found, "state": PluginState(found["state"])})


def _name(record: PluginRecord) -> str:
    """Return the name of a plugin in the child; several plugins go by their package."""
    if record.name != SEVERAL:
        return record.name
    return f"{canonical(record.distribution or '')}:{SEVERAL}"


def _checked(
    plugins: Sequence[PluginRecord], disabled: Collection[str], seconds: float
) -> Iterator[PluginRecord]:
    """Yield the record of each plugin with the findings of the child.

    When a plugin ends the child, a new child continues with the next plugin.
    """
    left, fatal = list(plugins), set[str]()
    while left:
        names = [(record.kind, _name(record)) for record in left]
        question = {"plugins": names, "disabled": sorted({*disabled, *fatal})}
        with child_process(f"{__name__}:import_all", question) as child:
            # The first line says that the child is up; only after it can a plugin be to blame.
            up = child.answer(START_S) is not None
            while left:
                answer = child.answer(seconds)
                if answer is None:
                    break
                yield answered(left.pop(0), answer)
            else:
                return
            ending = child.ending(seconds)
        blamed = "its import" if up else "a process that checks it"
        if left[0].name == SEVERAL:
            # Otherwise it would be imported with every other plugin of its kind.
            fatal.add(_name(left[0]))
        yield not_survived(left.pop(0), f"{blamed} {ending}")


def import_all(asked: Mapping[str, Any], tell: Tell) -> None:
    """Run in the child of `check_plugins`: answer {} first, then with `findings` of each plugin."""
    plugins = configure(asked["disabled"])
    plugins.discover()
    tell({})
    for kind, name in asked["plugins"]:
        tell(findings(_imported(plugins, kind, name)))


def _imported(plugins: PluginManager, kind: str, name: str) -> PluginRecord:
    """Return the record of a plugin after reading its description or creating its backend."""
    point = next(point.description for point in EXTENSION_POINTS if point.kind == kind)
    with contextlib.suppress(GptrsError):  # the record has the reason
        plugins.find(point, name)
        if point is BackendPlugin:
            plugins.get_backend(name)
    if name.endswith(f":{SEVERAL}"):
        return plugins.record(point, name)
    found = [record for record in plugins.installed(point) if record.name == name]
    return next((record for record in found if record.state.usable), found[0])
