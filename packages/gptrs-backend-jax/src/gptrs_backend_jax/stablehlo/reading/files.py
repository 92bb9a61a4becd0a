"""Files of StableHLO, read by a process of their own: a parser that crashes takes only that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, cast

import numpy as np

from gptrs.api import ModelError, UnsupportedError
from gptrs_backend_jax.stablehlo.reading.document import CONSTANTS, DOCUMENT, ERROR, read_module
from gptrs_backend_jax.stablehlo.reading.module import StableHlo, shown

MAX_BYTES: Final = 2**31
"""Most bytes of a file: what MLIR takes."""
_SECONDS: Final = 300
_MODULE: Final = "gptrs_backend_jax.stablehlo.reading.child"


def read_file(path: str | os.PathLike[str]) -> StableHlo:
    """Return the module in a file: text or bytecode of MLIR, or an artifact of `jax.export`.

    ModelError for a file that is not there, is too large, damaged, or none of these;
    UnsupportedError for a module that is not converted.
    """
    source, name = Path(path), shown(os.path.basename(path))
    if not source.is_file():
        raise ModelError(f"{os.fspath(path)!a} is no file")
    size = source.stat().st_size
    if not 0 < size <= MAX_BYTES:
        raise ModelError(f"`{name}` has {size} bytes, 1 to {MAX_BYTES} are read")
    with tempfile.TemporaryDirectory() as folder:
        code = _run(source, folder)
        place = Path(folder)
        if (place / ERROR).exists():
            raise _error(name, place / ERROR)
        if code != 0:
            raise ModelError(f"`{name}` is damaged: MLIR's reader ended by {_end(code)}")
        constants = np.fromfile(place / CONSTANTS, np.uint8)
        constants.flags.writeable = False
        return read_module((place / DOCUMENT).read_bytes(), constants)


def _run(source: Path, folder: str) -> int | None:
    """Return the exit code of the process that reads a file, None if it took too long."""
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    try:
        return subprocess.run(
            [sys.executable, "-m", _MODULE, os.path.abspath(source), folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def _error(name: str, path: Path) -> ModelError | UnsupportedError:
    held = cast("dict[str, str | None]", json.loads(path.read_text()))
    kind = UnsupportedError if held["kind"] == "unsupported" else ModelError
    return kind(f"`{name}` is not read: {held['message']}", hint=held["hint"])


def _end(code: int | None) -> str:
    if code is None:
        return f"the limit of {_SECONDS} s"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
