"""Models out of files of StableHLO, and which operations are converted."""

from __future__ import annotations

import os

from gptrs.api.backends import Backend
from gptrs_backend_jax.stablehlo import ops
from gptrs_backend_jax.stablehlo.model import StableHloModel
from gptrs_backend_jax.stablehlo.reading.files import read_file
from gptrs_backend_jax.stablehlo.registry import CONVERTERS

assert ops  # its modules register the converters


def load(path: str | os.PathLike[str], backend: str | Backend | None = None) -> StableHloModel:
    """Return the module in a file, ready to be called.

    The file is text or bytecode of StableHLO, or what `jax.export` serialized. `backend` is a
    name, a backend, or None for the default. ModelError for a file that is none of these or is
    damaged; UnsupportedError that lists the operations which are not converted.
    """
    return StableHloModel(read_file(path), backend, os.fspath(path))


def supported_operations() -> list[str]:
    """Return the operations that are converted, with their dialects, in order."""
    return sorted(name for name in CONVERTERS if "." in name)
