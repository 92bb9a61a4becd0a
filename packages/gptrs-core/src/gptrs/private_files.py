"""Directories and files of a cache that only this user, or root, can have written."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

ELSEWHERE = "set `GPTRS_CACHE_DIR` to a writable folder, or every process repeats this work"
"""Advice for a cache that cannot be kept."""
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags that refuse symbolic links and do not block on a pipe."""
SEAL_BYTES = hashlib.sha256().digest_size
"""Bytes that `sealed` prepends."""
_PARTIAL = ".new-"
"""Prefix of the names of files being written."""
_ABANDONED_S = 3600.0
"""Age in seconds after which a partial file counts as abandoned by a killed writer."""


def private_folder(*names: str) -> Path:
    """Return a directory below `GPTRS_CACHE_DIR`, else below the user's cache directory.

    The user's cache directory is also used where GPTRS_CACHE_DIR is a `shared_folder`. Missing
    directories, parents included, are created with mode 0700. OSError if the directory belongs to
    somebody else, is a link, or cannot be made private.
    """
    own = Path(platformdirs.user_cache_dir("gptrs"))
    folder = own if shared_folder(*names) is not None else _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        folder /= name
        make_private(folder)
    return folder


def shared_folder(*names: str) -> Path | None:
    """Return the directory of a cache filled in advance for users who cannot write to it.

    None if there is none, if this user can write there, or if anybody but root and this user could
    have replaced it: each directory of its path must belong to one of them, and be sticky or not
    writable by others.
    """
    folder = _cache_folder().joinpath(*names)
    try:
        if folder.is_symlink() or not folder.is_dir() or os.access(folder, os.W_OK):
            return None
        for each in (folder, *folder.resolve(strict=True).parents):
            # In a sticky parent such as /tmp only owners can replace their entries; in the folder
            # itself, even an added file would be an entry.
            _require_trusted(each.stat(), sticky=each != folder)
    except OSError:
        return None
    return folder


def _cache_folder() -> Path:
    return Path(os.environ.get("GPTRS_CACHE_DIR") or platformdirs.user_cache_dir("gptrs"))


def make_private(folder: Path) -> None:
    """Create a directory closed to others, or close an existing one; OSError as in
    `private_folder`."""
    folder.mkdir(mode=0o700, exist_ok=True)
    # `lstat`: a link could lead into a folder of another user.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        reason = "it must be a directory that belongs to this user"
        raise PermissionError(0, reason, str(folder))
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)


def require_own(status: os.stat_result) -> None:
    """Raise PermissionError for a file that somebody else than this user or root may have written.

    Such a file belongs to another user, or others may write to it.
    """
    _require_trusted(status)


def _require_trusted(status: os.stat_result, *, sticky: bool = False) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(0, "it belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o022 and not (sticky and status.st_mode & stat.S_ISVTX):
        raise PermissionError(0, "other users may write to it")


def read_own(path: Path, most: int) -> bytes | None:
    """Return the content of a file that only this user, or root, can have written; mark it as used.

    None if it is not a regular file, or has more than `most` bytes. PermissionError as in
    `require_own`, other OSErrors as `open` raises them.
    """
    # Checked on the open descriptor: between a check by name and `open`, the file could be
    # replaced.
    with os.fdopen(os.open(path, OPEN_FLAGS), "rb") as file:
        status = os.fstat(file.fileno())
        require_own(status)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        data = file.read(most)
        with suppress(PermissionError):  # a file that root owns is left as it is
            os.utime(file.fileno())
        return data


def sealed(name: str, content: bytes) -> bytes:
    """Prepend a seal of `SEAL_BYTES`, valid for this content under this name only, for `unsealed`.

    The name of a cache entry is its key, so swapped entries are detected.
    """
    return _seal(name, content) + content


def unsealed(name: str, data: bytes) -> bytes | None:
    """Return the content that was `sealed`; None if it is damaged or was sealed under another
    name."""
    content = data[SEAL_BYTES:]
    return content if data[:SEAL_BYTES] == _seal(name, content) else None


def _seal(name: str, content: bytes) -> bytes:
    # The length in front keeps names and contents apart: no other pair has the same bytes.
    digest = hashlib.sha256(f"{len(name.encode())}:{name}\n".encode())
    digest.update(content)
    return digest.digest()


@contextmanager
def whole_file(path: Path) -> Generator[int]:
    """Yield a descriptor; the data written to it becomes the file `path` when the scope ends.

    After an exception there is no file. A power failure may leave a truncated file, which readers
    must be able to detect.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=_PARTIAL)
    try:
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        # Not synced: a lost entry is only made again, and the seal detects a truncated one.
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes, in several calls if the system accepts only some at a time."""
    left = memoryview(data)
    while left.nbytes:
        left = left[os.write(descriptor, left) :]


def remove_abandoned(folder: Path) -> None:
    """Remove the partial files of killed writers, recognized by their age."""
    before = time.time() - _ABANDONED_S
    for path in folder.glob(f"{_PARTIAL}*"):
        try:
            if path.lstat().st_mtime < before:
                path.unlink()
        except OSError:
            continue
