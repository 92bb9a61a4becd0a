"""Steering vectors, which are added to values inside a model: learned from pairs, and in files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats.gguf import GgufFile, TensorMapping
from gptrs.checkpoint.formats.tensor_archive import TensorArchive, first_bytes, open_archive
from gptrs.errors import CheckpointError, UsageError
from gptrs.quoting import listed, quoted
from gptrs_observe.hooks import Hooks
from gptrs_observe.sites import Site, Sites
from gptrs_runtime.loaded_model import LoadedModel

_DIRECTION: Final = re.compile(r"direction\.(\d+)")
"""Names of control vectors of llama.cpp and repeng: added to what layer N returns."""


class LearnedVector(Struct, frozen=True):
    """A direction at one value of a model."""

    vector: np.ndarray
    """f32 [C], the mean of the differences."""
    separated: float
    """Share of the pairs, each left out in turn, whose first text lies farther along the mean of
    the others: 0.5 is chance."""


def learn_vectors(
    model: LoadedModel, pairs: Sequence[tuple[str, str]], names: Sequence[str] = ()
) -> dict[str, LearnedVector]:
    """Return, for each value, the mean difference between first and second texts at their ends.

    Difference of means (Panickssery et al. 2023, contrastive activation addition; Turner et al.
    2023): the row of the last token of each text. `names` are those of `Hooks`, without any the
    output of the middle block. Added to the same value by `Hooks`, a vector moves texts towards the
    first ones. UsageError for no pairs, names that the model does not have, and values without a
    vector for each token; ContextLengthError for a text that is too long.
    """
    if not pairs:
        raise UsageError("there are no pairs to learn from")
    sites = Sites(model)
    if not names:
        if not sites.blocks:
            raise UsageError("the model has no single list of blocks", hint="name a layer")
        names = [f"blocks.{len(sites.blocks) // 2}.hook_resid_post"]
    found = {name: sites.site(name) for pattern in names for name in sites.names(pattern)}
    hooks = Hooks(model, [str(site) for site in found.values()])
    differences: dict[str, list[np.ndarray]] = {name: [] for name in found}
    for first, second in pairs:
        ends = [_last_rows(model, hooks, text, found) for text in (first, second)]
        for name, rows in differences.items():
            rows.append(ends[0][name] - ends[1][name])
    return {name: _learned(np.stack(rows)) for name, rows in differences.items()}


def _last_rows(
    model: LoadedModel, hooks: Hooks, text: str, found: dict[str, Site]
) -> dict[str, np.ndarray]:
    """Return the rows of the last token of a text, f64 [C]."""
    tokens = np.array([model.prompt_tokens(text)], np.int64)
    with hooks:
        model.hidden_states(tokens)
    rows: dict[str, np.ndarray] = {}
    for name, site in found.items():
        try:
            value = hooks[str(site)]
        except KeyError as error:
            raise UsageError(f"{quoted(name)} is not a tensor") from error
        if value.ndim != 2 or len(value) != tokens.size:
            raise UsageError(f"{quoted(name)} has no vector for each token")
        # In f64: a mean of differences of large, nearly equal numbers loses digits in f32.
        rows[name] = value[-1].astype(np.float64)
    return rows


def _learned(rows: np.ndarray) -> LearnedVector:
    mean, count = rows.mean(axis=0), len(rows)
    # Each pair is left out of the mean that judges it; else even random pairs would look separated.
    others = (rows.sum(axis=0) - rows) / max(1, count - 1)
    ahead = (rows * (others if count > 1 else rows)).sum(axis=1) > 0
    return LearnedVector(mean.astype(np.float32), float(ahead.mean()))


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
    # `V` is how NumPy sees bf16 and the floats of 8 bits.
    if array.dtype.kind not in "fV" or array.squeeze().ndim != 1:
        raise CheckpointError(
            f"{quoted(name)} in `{path}` is {array.dtype}{list(array.shape)}, not a vector of"
            " floating-point numbers"
        )
    vector = array.squeeze().astype(np.float32)
    if not np.isfinite(vector).all():
        raise CheckpointError(f"{quoted(name)} in `{path}` has numbers that are not finite")
    return vector
