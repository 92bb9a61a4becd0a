"""The name of what the optimizer makes of a program: a digest of all that decides it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path

from gptrs.backend.protocol import Backend, InputRole
from gptrs.capture.caching.source_identity import package_of, packages_digest
from gptrs.ir.printer import print_program
from gptrs.ir.program import Program


def optimization_key(
    program: Program, backend: Backend, roles: Sequence[InputRole], settings: Hashable, fold: bool
) -> str | None:
    """Return the name of what is made of `program` on `backend` under `settings`.

    `fold`: parameters are folded. The sources of gptrs and of the package of the backend count, and
    so does the processor: it decides what a backend fuses. None where sources do not tell versions
    apart, see `packages_digest`.
    """
    kind = type(backend)
    code = packages_digest({"gptrs", package_of(kind.__module__)})
    if code is None:
        return None
    known = (
        print_program(program),
        [role.value for role in roles],
        backend.name,
        kind.__qualname__,
        repr(settings),
        fold,
        code,
        machine(),
    )
    return hashlib.blake2b(repr(known).encode(), digest_size=20).hexdigest()


@cache
def machine() -> str:
    """Return what tells this processor from others: backends fuse for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kept = [line for line in lines.splitlines() if line.startswith(("model name", "flags"))]
    return "\n".join(kept)
