"""Names of what is being written, and who removes what has such a name when its writer is killed.

A file or folder `.gptrs-*.partial` belongs to a writer that holds a lock on it. Where a writer
needs such a name, for the instant before it becomes the final one, a small process waits for the
end of the writer and removes what has the name still; that process survives `kill -9` of the
writer, but not the end of the machine. What stays then is removed by the next write to the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil

_PREFIX = ".gptrs-"
_SUFFIX = ".partial"
_SHELL = "/bin/sh"
_WAIT = "trap '' HUP INT TERM; read -r _ || rm -rf -- \"$1\""
"""Nothing to read means that the writer is gone: it would have written a line."""


def new_partial_name() -> str:
    """A name that nothing else has."""
    return f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"


def is_same_file(folder: int, name: str, descriptor: int) -> bool:
    """Whether `name` in the open `folder` is what `descriptor` is open on."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def remove_abandoned(folder: int) -> None:
    """Remove what writers left in the open `folder` that are gone; never what is being written."""
    for name in os.listdir(folder):
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
            with contextlib.suppress(OSError):  # in use, gone meanwhile, or another user's
                _remove_unlocked(folder, name)


def remove(folder: int, name: str) -> None:
    """Remove the file or whole folder `name` in the open `folder`, as far as that is possible."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
        return
    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def _remove_unlocked(folder: int, name: str) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_same_file(folder, name, descriptor):
            remove(folder, name)
    finally:
        os.close(descriptor)


class LitterGuard:
    """A process that removes `name` in the open `folder` should this one end before `release`."""

    def __init__(self, folder: int, name: str) -> None:
        self._alarm = -1
        self._process = -1
        # Where there is no shell or no /proc, the next write has to do.
        with contextlib.suppress(OSError):
            self._start(os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name))

    def release(self) -> None:
        """What has the name is no litter any more, or has been removed."""
        if self._process >= 0:
            with contextlib.suppress(OSError):
                os.write(self._alarm, b"\n")
            os.close(self._alarm)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._process, 0)
            self._process = -1

    def _start(self, path: str) -> None:
        waiting, alarm = os.pipe()
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        try:
            self._process = os.posix_spawn(
                _SHELL,
                ["sh", "-c", _WAIT, "gptrs-litter-guard", path],
                {"PATH": os.defpath},
                file_actions=[(os.POSIX_SPAWN_DUP2, waiting, 0), *quiet],
                setsid=True,
            )
            self._alarm = alarm
        except OSError:
            os.close(alarm)
            raise
        finally:
            os.close(waiting)
