"""Directories and files of a cache that nobody but this user can have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""No link is followed, and a pipe in the place of a file does not block."""
PARTIAL = ".new-"
"""The beginning of the names of files that are being written."""
ABANDONED_S = 3600.0
"""After so many seconds nobody writes to a partial file any more: its writer was killed."""


def private_folder(*names: str) -> Path:
    """Return a directory below `GPTRS_CACHE_DIR`, else below the user's cache directory.

    It is made with mode 0700 if it is missing, and so are those above it. OSError if it belongs to
    somebody else, is a link, or cannot be made private.
    """
    folder = Path(os.environ.get("GPTRS_CACHE_DIR") or platformdirs.user_cache_dir("gptrs"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        folder /= name
        make_private(folder)
    return folder


def make_private(folder: Path) -> None:
    """Make a directory that is closed to others, or close it; OSError as in `private_folder`."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        reason = "it must be a directory that belongs to this user"
        raise PermissionError(0, reason, str(folder))
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)


def require_own(status: os.stat_result) -> None:
    """Raise PermissionError for a file of another user, or one that others may write to."""
    if status.st_uid != os.geteuid():
        raise PermissionError(0, "it belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise PermissionError(0, "other users may write to it")


def remove_abandoned(folder: Path, before: float) -> None:
    """Remove the partial files that were last written to before a time, in seconds."""
    for path in folder.glob(f"{PARTIAL}*"):
        try:
            if path.lstat().st_mtime < before:
                path.unlink()
        except OSError:
            continue
