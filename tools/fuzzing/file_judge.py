"""What becomes of a mutated file: read as it says, or refused with one error; nothing else."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Literal

from fuzzing.file_formats import FileFormat
from fuzzing.judge import Flaw, TimeIsUp, time_limit
from gptrs.errors import GptrsError
from gptrs_conformance.program_generator.dice import Dice

Outcome = Literal["read", "refused"]

SECONDS = 10
LONGEST_MESSAGE = 1500
_FORBIDDEN = frozenset({"pickle.find_class", "socket.connect", "subprocess.Popen", "os.exec",
                        "os.posix_spawn", "os.system"})  # fmt: skip

_OF_THE_SYSTEM = ("/proc/", "/sys/fs/cgroup/")
"""Where it is asked how much memory there is."""
_CODE = re.compile(r".*\.py(c(\.\d+)?)?|.*\.(dist|egg)-info/[\w.]+")
"""Modules that are imported only where something is wrong, the lines of a traceback, and what is
installed: an error that names a package asks for that."""


class Watch:
    """Notes, once it is set, what is opened outside of a folder, and what else no file may start.

    A hook of the interpreter cannot be taken away: there is one for the whole process.
    """

    def __init__(self, folder: Path) -> None:
        self._inside = os.path.join(os.path.realpath(folder), "")
        self._is_set = False
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def __enter__(self) -> Watch:
        self.seen.clear()
        self._is_set = True
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_set = False

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._is_set:
            return
        if event in _FORBIDDEN:
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            allowed = path.startswith((self._inside, *_OF_THE_SYSTEM)) or _CODE.fullmatch(path)
            allowed = allowed or path in sys.path  # an archive, where an import looks for modules
            if not allowed:
                self.seen.append(f"open {path!r}")


def judge(form: FileFormat, path: Path, dice: Dice, watch: Watch) -> Outcome:
    """Read the file; Flaw for an answer that no file may get.

    Those are any exception but a GptrsError, an endless message, a file outside of the folder that
    is opened, a program or connection that is started, and anything that takes too long.
    """
    outcome: Outcome = "read"
    try:
        with watch, time_limit(SECONDS):
            form.read(path, dice)
    except TimeIsUp:
        raise Flaw(f"reading took more than {SECONDS} s") from None
    except GptrsError as error:
        if len(str(error)) > LONGEST_MESSAGE:
            raise Flaw(f"a message of {len(str(error))} characters") from error
        outcome = "refused"
    seen = [each for each in watch.seen if not each.startswith(form.may)]
    if seen:
        raise Flaw(f"outside of the folder: {seen[0]}")
    return outcome
