"""Inputs of one run of a model: files of images or tensors, tokens, text, or random input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from gptrs.checkpoint.formats.tensor_archive import TensorArchive, open_archive
from gptrs.errors import UsageError
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import listed, quoted
from gptrs_runtime.images.decoding import read_image
from gptrs_runtime.loaded_model import LoadedModel

ARCHIVES = (".npy", ".npz", ".safetensors", ".gptrsten")
"""The suffixes of files of tensors; everything else is taken for an image."""
_RANDOM_EDGE = 224


class InputChoice(Struct, frozen=True):
    """The input that the user names: at most one of files, tokens and a text; else random input.

    `key` is the name of the tensor in files that have several. Random input from `seed` has `count`
    rows; rows of tokens have at most `length` tokens.
    """

    files: tuple[Path, ...] = ()
    key: str | None = None
    tokens: tuple[int, ...] | None = None
    prompt: str | None = None
    seed: int = 0
    count: int = 1
    length: int = 8

    def __post_init__(self) -> None:
        given = {"--input": self.files or None, "--tokens": self.tokens, "--prompt": self.prompt}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise UsageError(f"`{names[0]}` and `{names[1]}` exclude each other", hint="give one")
        if self.key is not None and not self.files:
            raise UsageError("`--input-key` names a tensor of a file", hint="add `--input FILE`")
        if self.seed < 0:
            raise UsageError(f"a seed is an integer >= 0, got {self.seed}")

    @property
    def is_random(self) -> bool:
        """Whether the user named no input."""
        return not self.files and self.tokens is None and self.prompt is None


class Batch(Struct, frozen=True):
    """An array that `LoadedModel.forward` takes, and the origin of each of its rows.

    `images` are the files by the row of rows that are images.
    """

    array: np.ndarray
    origins: tuple[str, ...]
    images: Mapping[int, Path] = field(default_factory=dict[int, Path])


def batch_of(model: LoadedModel, choice: InputChoice) -> Batch:
    """Return the input of the model.

    UsageError for tokens or text given to a model of images, for files that do not fit together and
    for tensors that the model cannot take; ModelError for files that cannot be read.
    """
    if choice.files:
        return _from_files(model, choice)
    takes_images = model.takes_images
    if takes_images and (choice.tokens is not None or choice.prompt is not None):
        raise UsageError(
            f"`{model.name}` takes images, not tokens or text", hint="give --input IMAGE"
        )
    if choice.prompt is not None:
        return Batch(_rows(model.prompt_tokens(choice.prompt)), ("prompt",))
    if choice.tokens is not None:
        return Batch(_rows(choice.tokens), ("tokens",))
    array = (_random_images if takes_images else _random_tokens)(model, choice)
    return Batch(array, tuple(f"random input {choice.seed}{row}" for row in _suffixes(len(array))))


def _suffixes(rows: int) -> list[str]:
    return [""] if rows == 1 else [f"[{row}]" for row in range(rows)]


def _rows(tokens: Sequence[int]) -> np.ndarray:
    return np.array([tokens], np.int64)


def _random_images(model: LoadedModel, choice: InputChoice) -> np.ndarray:
    """Return images of the `image_size` of config.json, else of a default size."""
    size = model.config.get("image_size")
    edge = size if isinstance(size, int) and 1 <= size <= 4096 else _RANDOM_EDGE
    shape = (choice.count, model.image_reader().channels, edge, edge)
    return np.random.default_rng(choice.seed).standard_normal(shape, np.float32)


def _random_tokens(model: LoadedModel, choice: InputChoice) -> np.ndarray:
    reader = model.token_reader()
    shape = (choice.count, min(choice.length, reader.context_length))
    return np.random.default_rng(choice.seed).integers(0, reader.vocab_size, shape)


def _from_files(model: LoadedModel, choice: InputChoice) -> Batch:
    parts = [_read(model, path, choice.key) for path in choice.files]
    for path, part in zip(choice.files, parts, strict=True):
        if part.shape[1:] != parts[0].shape[1:] or part.dtype != parts[0].dtype:
            raise UsageError(
                f"inputs of one batch need one size, got `{TensorType.of(parts[0])}` of"
                f" {quoted(str(choice.files[0]), 200)} and `{TensorType.of(part)}` of"
                f" {quoted(str(path), 200)}",
                hint="run them one by one",
            )
    rows = [
        (path, suffix)
        for path, part in zip(choice.files, parts, strict=True)
        for suffix in _suffixes(len(part))
    ]
    images = {row: path for row, (path, _) in enumerate(rows) if _is_image(path)}
    names = tuple(f"{path}{suffix}" for path, suffix in rows)
    return Batch(np.concatenate(parts), names, images)


def _read(model: LoadedModel, path: Path, key: str | None) -> np.ndarray:
    """Return a batch of at least one row."""
    if _is_image(path):
        if not model.takes_images:
            raise UsageError(
                f"{quoted(str(path), 200)} would be an image, which `{model.name}` does not take",
                hint=f"give tokens in a file of tensors, {' '.join(ARCHIVES)}",
            )
        make = model.image_processor
        return make(read_image(path, on_white=make.on_white))[np.newaxis]
    with closing(open_archive(path)) as archive:
        array = archive.read(_tensor_name(archive, path, key))
    row_rank = 3 if model.takes_images else 1
    array = array[np.newaxis] if array.ndim == row_rank else array
    if array.ndim != row_rank + 1 or 0 in array.shape:
        form = "[B, C, H, W] or [C, H, W]" if row_rank == 3 else "[B, T] or [T]"
        raise UsageError(
            f"`{model.name}` takes a tensor {form}, {quoted(str(path), 200)} has"
            f" `{TensorType.of(array)}`"
        )
    return array


def _is_image(path: Path) -> bool:
    return path.suffix.lower() not in ARCHIVES


def _tensor_name(archive: TensorArchive, path: Path, key: str | None) -> str:
    names = archive.names()
    if key is not None and key not in names:
        raise UsageError(
            f"{quoted(str(path), 200)} has no tensor {quoted(key)}", hint=f"it has {listed(names)}"
        )
    if key is None and len(names) != 1:
        raise UsageError(
            f"{quoted(str(path), 200)} has {len(names)} tensors",
            hint=f"name one with --input-key: {listed(names)}" if names else None,
        )
    return names[0] if key is None else key
