"""Converts again and again, killed with SIGKILL at the first, second, ... call that could matter.

Run as `python killed_conversion.py SRC DST`; prints, as JSON, what was at DST after each of the
runs: "old", "new", "none" or something else, and what but temporary files was beside it.
The last run ends by itself; it has to remove what those before it left.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gptrs.errors import GptrsError
from gptrs_runtime.converting import atomic_folder
from gptrs_runtime.converting.convert import convert

CALLS = (
    "open", "fdopen", "fsync", "fchmod", "replace", "rename", "unlink", "rmdir", "mkdir", "close",
    "listdir", "stat",
)  # fmt: skip
MOST = 500


def main() -> None:
    """Kill at every call, until a run comes to its end."""
    source, destination = Path(sys.argv[1]), Path(sys.argv[2])
    old = digest(destination)
    convert(source, destination.with_name("expected" + destination.suffix))
    expected = destination.with_name("expected" + destination.suffix)
    new = digest(expected)
    remove(expected)
    assert old != new
    backup = destination.parent.with_name("backup")
    copy(destination, backup)
    outcomes: list[str] = []
    for fatal in range(1, MOST):
        pid = os.fork()
        if pid == 0:
            run(source, destination, fatal)
        _, status = os.waitpid(pid, 0)
        ended = os.WIFEXITED(status)
        beside = left_beside(destination, temporary=ended)
        found = {old: "old", new: "new"}.get(digest(destination), "broken")
        outcomes.append("none" if found == "old" and old == "none" else found)
        if beside:
            outcomes.append(f"litter: {beside}")
        if ended:
            outcomes.append(f"ended with {os.WEXITSTATUS(status)}")
            break
        remove(destination)
        copy(backup, destination)
    print(json.dumps(outcomes))


def run(source: Path, destination: Path, fatal: int) -> None:
    """Convert in this process, which is killed at the call of number `fatal`."""
    calls = 0

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    def fdopen(*args: Any, **kwargs: Any) -> Any:
        return Watched(opened(*args, **kwargs), deadly)

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))
    opened, os.fdopen = os.fdopen, fdopen
    atomic_folder.exchange = deadly(atomic_folder.exchange)
    try:
        convert(source, destination, force=True)
    except GptrsError as error:
        print(error, file=sys.stderr)
        os._exit(1)
    os._exit(0)


class Watched:
    """A file each write to which is a call."""

    def __init__(self, file: Any, deadly: Callable[..., Any]) -> None:
        self._file = file
        self.write = deadly(file.write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


def left_beside(destination: Path, *, temporary: bool) -> list[str]:
    """What is beside the destination, with or without what has a temporary name."""
    beside = sorted(set(os.listdir(destination.parent)) - {destination.name})
    return [name for name in beside if temporary or not name.endswith(".partial")]


def digest(path: Path) -> str:
    """Of a file, or of all in a folder; "none" if there is nothing."""
    if not path.exists():
        return "none"
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    parts = [f"{p.relative_to(path)} {hashlib.sha256(p.read_bytes()).hexdigest()}" for p in files]
    return "\n".join(parts)


def remove(path: Path) -> None:
    """The file or folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy(path: Path, target: Path) -> None:
    """The file or folder, if there is one."""
    if path.is_dir():
        shutil.copytree(path, target)
    elif path.exists():
        shutil.copyfile(path, target)


if __name__ == "__main__":
    main()
