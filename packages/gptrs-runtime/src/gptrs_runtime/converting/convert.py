"""Writing a model, or tensors, anew: in another format, another type, other files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

from gptrs.checkpoint.formats.foreign_files import ForeignFormat, foreign_format
from gptrs.checkpoint.formats.tensor_archive import ARCHIVE_SUFFIXES
from gptrs.checkpoint.formats.tensor_index import stored_bytes
from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.progress import StepProgress
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted
from gptrs_runtime.converting.destination import (
    WRITERS,
    Destination,
    Form,
    require_apart,
    require_free,
    watched,
)
from gptrs_runtime.converting.model_content import in_dtype, open_stored

CHECKPOINT_SUFFIX = ".gptrschk"
_DTYPE_KEYS = ("dtype", "torch_dtype")
_DTYPE_NAMES = {dtypes.f32: "float32", dtypes.f16: "float16", dtypes.bf16: "bfloat16"}
"""The names in config.json of the types that weights are rounded to."""


@dataclass(frozen=True)
class Converted:
    """A report: `files` in a folder, else those written; `rounded` tensors changed type.

    `form` is `hf`, `gptrschk` or `tensors`, or the name of an exporter.
    `left_out` names files beside the weights that were not carried over.
    """

    form: str
    kind: str | None
    files: tuple[str, ...]
    tensors: int
    parameters: int
    nbytes: int
    rounded: int
    left_out: tuple[str, ...]
    limits: tuple[str, ...] = ()
    """Conditions on the free sizes of an exported model, `sequence <= 512`."""


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: Literal["hf", "gptrschk"] | None = None,
    dtype: str | None = None,
    shard_size: int | None = None,
    force: bool = False,
    progress: StepProgress | None = None,
) -> Converted:
    """Write the model or file of tensors `source` to `destination`, whole or not at all.

    Without `to`, the suffix of the destination says what it becomes: `.gptrschk` one file for all,
    that of a format of tensors only these, any other a folder. Weights are rounded to `dtype`,
    f32, f16 or bf16, and those of a folder split into files of `shard_size` bytes. `force` replaces
    what is there: a file, or a folder that holds a model.

    UsageError for arguments that do not fit together, and for a destination that exists; ModelError
    and CheckpointError for sources that cannot be read and destinations that cannot be written.
    """
    form = _form(destination, to, shard_size)
    wanted = None if dtype is None else _weight_dtype(dtype)
    require_free(Path(destination), form, force)
    stored = open_stored(source)
    require_apart(stored.path, Path(destination))
    tensors = [tensor if wanted is None else in_dtype(tensor, wanted) for tensor in stored.tensors]
    rounded = sum(a.type != b.type for a, b in zip(tensors, stored.tensors, strict=True))
    config = stored.config
    if config is not None and wanted is not None:
        config = _with_dtype(config, _DTYPE_NAMES[wanted])
    tensors = watched(tensors, progress)
    ready = replace(stored, tensors=tensors, config=config)
    target = Destination(Path(destination), shard_size, force)
    files, left_out = WRITERS[form](ready, target)
    return Converted(
        form=form,
        kind=cast("str | None", config.get("model_type") if config else None),
        files=tuple(files),
        tensors=len(tensors),
        parameters=sum(tensor.type.size for tensor in tensors),
        nbytes=sum(stored_bytes(tensor.type) for tensor in tensors),
        rounded=rounded,
        left_out=tuple(left_out),
    )


def _weight_dtype(name: str) -> DType:
    """Return the type called `name`; UsageError unless weights can be rounded to it."""
    for dtype in _DTYPE_NAMES:
        if dtype.name == name:
            return dtype
    known = " ".join(dtype.name for dtype in _DTYPE_NAMES)
    raise UsageError(f"weights cannot be converted to {quoted(name)}", hint=f"choose from {known}")


def _form(path: str | os.PathLike[str], to: str | None, shard_size: int | None) -> Form:
    suffix = Path(path).suffix.lower()
    foreign = foreign_format(path)
    if foreign is not None and to is None:
        raise _not_written_here(path, foreign)
    form: Form = "hf"
    if suffix in ARCHIVE_SUFFIXES:
        form = "tensors"
    elif to == "gptrschk" or (to is None and suffix == CHECKPOINT_SUFFIX):
        form = "gptrschk"
    if to not in (None, form):
        raise UsageError(
            f"{quoted(str(path), 200)} names a file of tensors, `--to {to}` asks for a model",
            hint="leave out `--to`, or choose another name",
        )
    if shard_size is not None and form != "hf":
        raise UsageError(
            "only a model folder has several files of weights",
            hint="leave out `--shard-size`, or use `--to hf`",
        )
    return form


def _not_written_here(path: str | os.PathLike[str], found: ForeignFormat) -> UsageError:
    what = found.name.partition(",")[0]  # without what reading one would mean
    command = found.written_by
    if command is not None and found.missing:
        return UsageError(
            f"{quoted(str(path), 200)} would be {what}, which `{found.package}` writes",
            hint=found.missing,
        )
    if command is not None:
        return UsageError(
            f"{quoted(str(path), 200)} would be {what}, which another command writes",
            hint=f"`{command}`",
        )
    return UsageError(
        f"{quoted(str(path), 200)} would be {what}, which gptrs does not write",
        hint="`.gptrschk` writes one file, `.safetensors` tensors alone, a name without suffix a"
        " model folder, and so does `--to hf`, whatever the name",
    )


def _with_dtype(config: Mapping[str, object], name: str) -> dict[str, object]:
    """Return the config with the new type of its weights wherever it states one."""
    changed: dict[str, object] = {}
    for key, value in config.items():
        if key in _DTYPE_KEYS and value in _DTYPE_NAMES.values():
            changed[key] = name
        elif isinstance(value, dict):
            changed[key] = _with_dtype(cast("dict[str, object]", value), name)
        else:
            changed[key] = value
    return changed
