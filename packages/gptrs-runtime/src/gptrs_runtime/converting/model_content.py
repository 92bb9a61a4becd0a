"""The stored content of a model or a file of tensors, for conversion to another format."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.tensor_archive import TensorArchive, open_archive
from gptrs.checkpoint.formats.tensor_index import stored_bytes
from gptrs.errors import CheckpointError, ModelError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.quoting import quoted
from gptrs_runtime.sources.find_model import find_model, is_checkpoint
from gptrs_runtime.sources.hf_directory import WEIGHTS
from gptrs_runtime.sources.model_source import MAX_TOKENIZER_BYTES, ModelSource

CARRIED = (".json", ".jinja", ".txt", ".md", ".model")
"""Suffixes of the files that belong to a model besides its weights: settings, texts, tokenizers."""


class StoredModel(Struct, frozen=True):
    """The tensors (`FOLDER/NAME` in subfolders) and copied files by name.

    `config` is None for a file of tensors without a model. `left_out` names files that are not part
    of a model. `path` is its location.
    """

    path: Path
    tensors: Sequence[OutgoingTensor]
    config: Mapping[str, object] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    left_out: Sequence[str] = ()


def open_stored(name: str | os.PathLike[str]) -> StoredModel:
    """Return the model, or the file of tensors, that `name` means: a path or a hub id.

    Tensors are read when they are written. ModelError or CheckpointError describes any fault.
    """
    if os.path.isfile(name) and not is_checkpoint(name):
        archive = open_archive(name)
        return StoredModel(Path(name), [_of_archive(archive, tensor) for tensor in archive.names()])
    return stored_model(find_model(name))


def _of_archive(archive: TensorArchive, name: str) -> OutgoingTensor:
    def whole() -> tuple[np.ndarray]:
        return (archive.read(name),)

    return OutgoingTensor(name, archive.type_of(name), whole)


def stored_model(source: ModelSource) -> StoredModel:
    """Return all that is stored of a model that was opened."""
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    for name in source.file_names():
        data = _carried(source, name)
        if data is None:
            left_out.append(name)
        else:
            files[name] = data
    weights = source.weights
    tensors = [
        OutgoingTensor(name, weights.type_of(name), partial(weights.parts, name))
        for name in weights.names()
    ]
    for subfolder in source.tensor_folders():
        for name, array in (source.tensors_in(subfolder) or {}).items():
            tensors.append(OutgoingTensor.of(f"{subfolder}/{name}", array))
    return StoredModel(source.path, tensors, source.config, files, left_out)


def _carried(source: ModelSource, name: str) -> bytes | None:
    """Return the content of a file of the model; None for any other, or a link out of it."""
    if not name.lower().endswith(CARRIED):
        return None
    subfolder, _, plain = name.rpartition("/")
    try:
        return source.read_bytes(plain, subfolder, MAX_TOKENIZER_BYTES)
    except ModelError:
        return None


# Weights in another floating-point type: each value is rounded to nearest.


CONVERTIBLE = (dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16)
"""The types that weights are converted from; 8-bit floats have separate scales."""


def in_dtype(tensor: OutgoingTensor, dtype: DType) -> OutgoingTensor:
    """`tensor` with elements rounded to `dtype`; unchanged if its elements are of another kind.

    Of two values equally near, the even one is taken (IEEE 754, 4.3.1). Its parts raise
    CheckpointError for a finite value beyond the range of `dtype`, instead of giving infinity.
    """
    if tensor.type.dtype is dtype or tensor.type.dtype not in CONVERTIBLE:
        return tensor

    def parts():
        for part in tensor.parts():
            yield _checked(tensor.name, part, rounded(part, dtype), dtype)

    return OutgoingTensor(tensor.name, tensor.type.with_dtype(dtype), parts)


def rounded(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the elements rounded once to `dtype`, ties to even; infinity beyond its range."""
    with np.errstate(over="ignore", invalid="ignore"):
        if array.dtype == np.float64 and dtype is dtypes.bf16:
            array = _to_odd_f32(array)
        return array.astype(dtype.numpy)


def _to_odd_f32(array: np.ndarray) -> np.ndarray:
    """f64 to f32 rounded to odd: truncated, with the last bit set if the result is inexact.

    Rounding the result to a narrower type equals rounding directly (Boldo and Melquiond, Emulation
    of FMA and correctly rounded sums, IEEE Transactions on Computers 57, 2008).
    """
    nearest = array.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= np.abs(nearest) > np.abs(array)
    bits |= (nearest != array) & np.isfinite(array)
    return nearest


def _checked(name: str, before: np.ndarray, after: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # excludes signaling NaNs
        lost = np.isinf(after) & np.isfinite(before)
    if lost.any():
        largest = np.abs(before[lost].astype(np.float64)).max()
        raise CheckpointError(
            f"tensor {quoted(name)} has values up to {largest:.4g}, beyond the range of {dtype}",
            hint="convert to bf16 or f32, which have a wider range" if dtype is dtypes.f16
            else "convert to a wider type",
        )  # fmt: skip
    return after


# The tensors of a model in files of bounded size, named and indexed as transformers does it.


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Return bytes of `5GB`, `500MB` (powers of 1000) or `4GiB` (of 1024); else UsageError."""
    found = _SIZE.fullmatch(text.strip())
    if found:
        number, unit, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
        if size > 0:
            return size
    raise UsageError(f"{quoted(text)} is not a size of files", hint="write it as `5GB` or `500MB`")


def split(
    tensors: Sequence[OutgoingTensor], most: int | None
) -> Mapping[str, Sequence[OutgoingTensor]]:
    """Map file names to their tensors, at most `most` bytes each unless it is a single tensor."""
    groups: list[list[OutgoingTensor]] = [[]]
    size = 0
    for tensor in tensors:
        nbytes = stored_bytes(tensor.type)
        if most is not None and groups[-1] and size + nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += nbytes
    if len(groups) == 1:
        return {WEIGHTS: groups[0]}
    stem, suffix = WEIGHTS.split(".")
    return {
        f"{stem}-{number:05d}-of-{len(groups):05d}.{suffix}": group
        for number, group in enumerate(groups, start=1)
    }


def index_text(files: Mapping[str, Sequence[OutgoingTensor]]) -> str:
    """Return the index of several files."""
    total = sum(stored_bytes(tensor.type) for group in files.values() for tensor in group)
    weight_map = {tensor.name: name for name, group in files.items() for tensor in group}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2)
