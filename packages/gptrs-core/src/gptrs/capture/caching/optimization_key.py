"""The name of what the optimizer makes of a program: a digest of all that decides it."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from gptrs.backend.protocol import Backend, InputRole
from gptrs.ir.printer import print_program
from gptrs.ir.program import Program


def optimization_key(
    program: Program, backend: Backend, roles: Sequence[InputRole], settings: Hashable, fold: bool
) -> str | None:
    """Return the name of what is made of `program` on `backend` under `settings`.

    `fold`: parameters are folded. The sources of gptrs and of the package of the backend count by
    their sizes and times, and so does the processor: it decides what a backend fuses. None for
    a backend without source files, since nothing would tell its versions apart.
    """
    code = _code(type(backend).__module__.partition(".")[0])
    if code is None:
        return None
    known = (
        print_program(program),
        [role.value for role in roles],
        backend.name,
        repr(settings),
        fold,
        code,
        _machine(),
    )
    return hashlib.blake2b(repr(known).encode(), digest_size=20).hexdigest()


@cache
def _code(backend: str) -> str | None:
    """Return a digest of the sources of gptrs and of a backend, None if one has no files."""
    digest = hashlib.blake2b(sys.version.encode(), digest_size=16)
    for package in ("gptrs", backend):
        sources = sorted(_sources(sys.modules[package]))
        if not sources:
            return None
        for path in sources:
            found = path.stat()
            digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _sources(package: ModuleType) -> Iterator[Path]:
    folders = list(getattr(package, "__path__", ()))
    file = getattr(package, "__file__", None)
    if not folders and file is not None:
        yield Path(file)
    for folder in folders:
        yield from Path(folder).rglob("*.py")


@cache
def _machine() -> str:
    """Return what tells this processor from others: backends fuse for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kept = [line for line in lines.splitlines() if line.startswith(("model name", "flags"))]
    return "\n".join(kept)
