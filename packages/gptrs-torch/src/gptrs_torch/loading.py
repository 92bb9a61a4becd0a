"""Programs of torch.export, out of files and out of memory, and which operators are converted."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from torch._export.serde import schema, serialize
from torch.export import ExportedProgram

from gptrs.api import GptrsError, ModelError
from gptrs.api.backends import Backend
from gptrs_torch import ops
from gptrs_torch.archive import read_archive
from gptrs_torch.model import TorchModel
from gptrs_torch.registry import CONVERTERS

_torch_logger = logging.getLogger("torch._subclasses.fake_tensor")
assert ops  # its modules register the converters


def load(
    program: ExportedProgram | str | os.PathLike[str], backend: str | Backend | None = None
) -> TorchModel:
    """Return an exported program, or the one in a `.pt2` file, ready to be called.

    `backend` is a name, a backend, or None for the default. Nothing in a file is unpickled or
    evaluated. ModelError for a file that is damaged or no such program, UnsupportedError for
    what is not converted.
    """
    if isinstance(program, ExportedProgram):
        return TorchModel(program, backend, "the exported program", shared=True)
    with _one_line(program):
        return TorchModel(_deserialized(program), backend, Path(program).name)


def read_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Return the program in a `.pt2` file as torch sees it, before it is converted.

    Errors are those of `load`.
    """
    with _one_line(path):
        return _deserialized(path)


@contextmanager
def _one_line(path: str | os.PathLike[str]) -> Generator[None]:
    """Turn what torch raises, about a file that says what it cannot mean, into a ModelError."""
    _torch_logger.addFilter(_nothing)  # it logs a traceback of what it raises
    try:
        yield
    except (GptrsError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        line = ascii(" ".join(f"{type(error).__name__}: {error}".split())[:200])[1:-1]
        shown = ascii(Path(path).name)[1:-1]
        raise ModelError(f"`{shown}` cannot be read: {line}") from error
    finally:
        _torch_logger.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    del record
    return False


def _deserialized(path: str | os.PathLike[str]) -> ExportedProgram:
    archive = read_archive(path)
    described = cast("Any", serialize)._dict_to_dataclass(schema.ExportedProgram, archive.program)
    reader = serialize.ExportedProgramDeserializer(None)
    return reader.deserialize(described, archive.weights, archive.constants, cast("Any", None))


def supported_operators() -> list[str]:
    """Return the operators of ATen that are converted by themselves, in order.

    Those that torch takes apart into these are converted, too.
    """
    return sorted(name.removeprefix("aten.") for name in CONVERTERS)
