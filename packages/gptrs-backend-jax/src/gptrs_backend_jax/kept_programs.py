"""Compiled XLA programs on disk: JAX's cache folder, its budget, and removal."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import jax
import msgspec
from msgspec import Struct

from gptrs.api.backends import CachePart, CacheReport, Entries, InputRole, private_folder
from gptrs.api.programs import Program, print_program
from gptrs.disk_cache import Found, budget_bytes, make_room, remove
from gptrs_backend_jax.client import Device, change_setting, platform_version, setting
from gptrs_backend_jax.devices import parallelism
from gptrs_backend_jax.walk import Message

_LEAST_SECONDS = 0.1
"""Programs that compile faster are not worth a file."""
_FOLDER = "jax"
_ENDING, _PARTIAL = "-cache", ".new"
"""Suffixes of stored programs, ours and JAX's, and of files that are being written."""
_FOLDER_SETTING = "jax_compilation_cache_dir"


def keep_compiled_programs(*, whole: bool) -> None:
    """Keep what XLA compiles in a folder of our cache, unless the user gave JAX another.

    We store `whole` programs, or JAX stores their parts, and then traces each program again. Those
    unused for longest are removed until the others fit into the budget.
    """
    budget = budget_bytes()
    if setting(_FOLDER_SETTING) is not None or not budget:
        return
    with suppress(OSError):  # nothing can be stored here: each process compiles again
        folder = _folder()
        make_room((each for found in folder.parent.iterdir() for each in _programs(found)), budget)
        if whole:
            return
        change_setting(_FOLDER_SETTING, str(folder))
        change_setting("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)


def keeps_executables() -> bool:
    """Return whether whole programs are stored: JAX cannot serialize a loaded program."""
    return setting(_FOLDER_SETTING) is None and bool(budget_bytes())


def read_executable(key: str) -> bytes:
    """Return the program stored under `key`, and mark it as used; empty if it is missing."""
    with suppress(OSError):
        path = _folder() / f"{key}{_ENDING}"
        data = path.read_bytes()
        os.utime(path)
        return data
    return b""


def keep_executable(key: str, write: Callable[[], bytes | None], seconds: float) -> None:
    """Keep the bytes that `write` returns under `key`; compiling the program took `seconds`."""
    data = write() if seconds >= _LEAST_SECONDS else None
    if data is None:
        return
    with suppress(OSError):
        folder = _folder()
        descriptor, partial = tempfile.mkstemp(dir=folder, suffix=_PARTIAL)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(partial).replace(folder / f"{key}{_ENDING}")


class KeptPrograms:
    """The part of the backend that knows its programs on disk."""

    def cache_report(self) -> CacheReport:
        """Return a report of stored programs by version of JAX; changes nothing."""
        budget = budget_bytes()
        if not budget:
            return CacheReport(None, 0, [])
        try:
            folder = _folder()
        except OSError:
            return CacheReport(None, budget, [])
        parts = [
            CachePart(f"JAX {found.name}", _is_used(found), sum(held, Entries()))
            for found in sorted(folder.parent.iterdir())
            if (held := [Entries(1, each.nbytes) for each in _programs(found)])
        ]
        return CacheReport(folder.parent, budget, parts)

    def clear_cache(self, *, stale_only: bool = False) -> Entries:
        """Remove all programs, or those of other versions; ExecutionError on failure."""
        try:
            folder = _folder()
        except OSError:
            return Entries()
        removed = Entries()
        for found in folder.parent.iterdir():
            if stale_only and _is_used(found):
                continue
            removed += remove(list(_programs(found)))
        return removed


def _folder() -> Path:
    """Return the folder of this version of JAX; OSError if nothing can be stored."""
    return private_folder(_FOLDER, jax.__version__)


def _is_used(folder: Path) -> bool:
    """Return whether this process reads programs from `folder`."""
    given = setting(_FOLDER_SETTING)
    return folder.name == jax.__version__ if given is None else given == str(folder)


def _programs(folder: Path) -> Iterator[Found]:
    """Return each program in `folder`; JAX marks reads only by the time of access."""
    for path in folder.glob(f"*{_ENDING}"):
        with suppress(FileNotFoundError):  # another process was faster
            status = path.lstat()
            yield Found(path, status.st_size, max(status.st_atime, status.st_mtime))


# Compiled programs as bytes: XLA's executable, the errors of the program, and its key.


_FORMAT = "gptrs-jax 1"
_DIGEST_BYTES = hashlib.sha256().digest_size
_LENGTH_BYTES = 4


class SerializedProgram(Struct, frozen=True):
    """The executable of XLA as JAX writes it, and the errors that the program may fail with."""

    code: bytes
    messages: Sequence[Message]

    def sealed(self, key: str) -> bytes:
        """Return it as bytes that hold under `key` only."""
        head = msgspec.json.encode(self.messages)
        content = len(head).to_bytes(_LENGTH_BYTES, "little") + head + self.code
        return _seal(key, content) + content


def unsealed(data: bytes, key: str) -> SerializedProgram | None:
    """Return the content `sealed` under `key`, None if it is damaged or has another key."""
    content = data[_DIGEST_BYTES:]
    if data[:_DIGEST_BYTES] != _seal(key, content):
        return None
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    messages = msgspec.json.decode(content[_LENGTH_BYTES:start], type=list[Message])
    return SerializedProgram(content[start:], messages)


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(f"{_FORMAT}\n{key}\n".encode() + content).digest()


def program_key(
    program: Program,
    roles: Sequence[InputRole],
    device: Device,
    options: Mapping[str, bool | str],
) -> str:
    """Return a digest of everything that affects XLA's result for a program, and where it runs."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("XLA_")}
    parts = (
        *(_FORMAT, jax.__version__, version("jaxlib"), _our_sources()),
        *(str(device), device.device_kind, platform_version(device)),
        *(_processor(), parallelism(device)),
        json.dumps([sorted(options.items()), sorted(settings.items())]),
        ",".join(role.value for role in roles),
        print_program(program),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def _our_sources() -> str:
    """Return a digest of the code of this package: a lowering may have changed."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _processor() -> str:
    """Return the features of the processor: machines that share a cache folder over a network may
    differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
