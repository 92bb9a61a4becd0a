"""Steering vectors: what is added to the residual stream, in files and for a model."""

from __future__ import annotations

import os
import re
from contextlib import closing
from typing import Final

import numpy as np

from gptrs.checkpoint.formats.gguf import GgufFile, TensorMapping
from gptrs.checkpoint.formats.tensor_archive import TensorArchive, first_bytes, open_archive
from gptrs.errors import CheckpointError
from gptrs.quoting import listed, quoted

_DIRECTION: Final = re.compile(r"direction\.(\d+)")
"""Names of control vectors of llama.cpp and repeng: added to what layer N returns."""


def read_vectors(
    path: str | os.PathLike[str], layer: str | None = None, scale: float = 1.0
) -> dict[str, np.ndarray]:
    """Return the steering vectors of a file, f32 [C] each, by the names that `Hooks` takes.

    Formats are those of `open_archive`, and GGUF. Tensors are called as what they are added to, or
    `direction.N` (block N returns it). A file of one tensor may call it anything if `layer` is
    given. CheckpointError for a file without tensors, for tensors that are not finite vectors, and
    as of `open_archive`.
    """
    with closing(_opened(path)) as archive:
        arrays = {name: archive.read(name) for name in archive.names()}
    if not arrays:
        raise CheckpointError(f"`{path}` has no steering vectors")
    if layer is not None:
        if len(arrays) > 1 and layer not in arrays:
            raise CheckpointError(
                f"`{path}` has {len(arrays)} tensors, and none is called {quoted(layer)}",
                hint=f"there are {listed(arrays, 8)}",
            )
        arrays = {layer: arrays[layer] if layer in arrays else next(iter(arrays.values()))}
    return {_named(name): _vector(path, name, array) * np.float32(scale)
            for name, array in arrays.items()}  # fmt: skip


def _opened(path: str | os.PathLike[str]) -> TensorArchive:
    if not first_bytes(path).startswith(b"GGUF"):
        return open_archive(path)
    return GgufFile.open(
        path, lambda header: {t.name: TensorMapping(t.name) for t in header.tensors}
    )


def _named(name: str) -> str:
    match = _DIRECTION.fullmatch(name)
    return f"blocks.{match[1]}.hook_resid_post" if match else name


def _vector(path: str | os.PathLike[str], name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fV" or array.squeeze().ndim != 1:
        raise CheckpointError(
            f"{quoted(name)} in `{path}` is {array.dtype}{list(array.shape)}, not a vector of"
            " floating-point numbers"
        )
    vector = array.squeeze().astype(np.float32)
    if not np.isfinite(vector).all():
        raise CheckpointError(f"{quoted(name)} in `{path}` has numbers that are not finite")
    return vector
