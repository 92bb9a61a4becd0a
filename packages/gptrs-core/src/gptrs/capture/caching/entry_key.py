"""Names of entries on disk: digests of everything that decides what is in them."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from pathlib import Path

from gptrs.backend.contract import Backend, InputRole
from gptrs.capture.caching.source_identity import package_of, packages_digest
from gptrs.ir.printer import print_program
from gptrs.ir.program import Program


def entry_key(known: object, backend: Backend, packages: Iterable[str] = ()) -> str | None:
    """Return the name on disk of what `known`, the code and this machine decide for `backend`.

    `known` must have a `repr` that tells everything else apart. The code is that of gptrs, of the
    package of the backend, and of `packages`; the processor counts, since backends fuse for it.
    None where sources do not tell versions apart, see `packages_digest`.
    """
    kind = type(backend)
    code = packages_digest({"gptrs", package_of(kind.__module__), *packages})
    if code is None or "<locals>" in kind.__qualname__:
        return None
    engine = backend.name, kind.__module__, kind.__qualname__
    everything = known, engine, code, sys.flags.optimize, _machine()
    return hashlib.blake2b(repr(everything).encode(), digest_size=20).hexdigest()


def optimization_key(
    program: Program, backend: Backend, roles: Sequence[InputRole], settings: Hashable, fold: bool
) -> str | None:
    """Return the name of what is made of `program` on `backend` under `settings`.

    `fold`: parameters are folded.
    """
    known = print_program(program), [role.value for role in roles], settings, fold
    return entry_key(known, backend)


@cache
def _machine() -> str:
    """Return what tells this processor from others: backends fuse for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kept = [line for line in lines.splitlines() if line.startswith(("model name", "flags"))]
    return "\n".join(kept)
