"""A process that reads one file: MLIR's parsers can crash on damaged ones.

`python -m gptrs_backend_jax.stablehlo.reading.child FILE FOLDER` writes the module, or the error,
to FOLDER.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Final

from gptrs.api import GptrsError, ModelError
from gptrs_backend_jax.stablehlo.reading.document import (
    CONSTANTS,
    DOCUMENT,
    ERROR,
    read_artifact,
    write_module,
)

_ROOM: Final = 8 * 2**30
"""Most bytes of memory beyond the import of JAX, and per byte of the file."""
_GROWTH: Final = 24


def main(file: str, folder: str) -> None:
    """Read `file`, and write its contents, or the error, to `folder`."""
    path, target = Path(file), Path(folder)
    try:
        _limit_memory(path.stat().st_size)
        module = read_artifact(path.read_bytes())
        with open(target / DOCUMENT, "wb") as document, open(target / CONSTANTS, "wb") as constants:
            write_module(module, document, constants)
    except GptrsError as error:
        kind = "model" if isinstance(error, ModelError) else "unsupported"
        _report(target, kind, error.message, error.hint)
    except MemoryError:
        _report(target, "model", "it needs more memory than a file of its size may use", None)
    except RecursionError:
        _report(target, "model", "it is nested too deeply", None)
    except Exception as error:
        reason = ascii(" ".join(str(error).split())[:200])[1:-1]
        _report(target, "model", f"{type(error).__name__}: {reason}", None)


def _report(folder: Path, kind: str, message: str, hint: str | None) -> None:
    (folder / ERROR).write_text(json.dumps({"kind": kind, "message": message, "hint": hint}))


def _limit_memory(size: int) -> None:
    status = Path("/proc/self/statm")
    mapped = int(status.read_text().split()[0]) * resource.getpagesize() if status.exists() else 0
    limit = mapped + _ROOM + _GROWTH * size
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    if sys.platform != "darwin":  # refuses to limit the address space
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(*sys.argv[1:])
