"""Models on this disk: what they are, and whether they run here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from gptrs.errors import GptrsError, MissingLibraryError, ModelError
from gptrs.plugins.descriptions import DemoModelPlugin
from gptrs.plugins.manager import manager
from gptrs.quoting import quoted
from gptrs_cli.models.head import architecture
from gptrs_cli.models.hub_cache import cached_revisions
from gptrs_cli.terminal.stderr import note
from gptrs_runtime.sources.find_model import find_model, is_checkpoint
from gptrs_runtime.sources.model_source import CONFIG

_DEEPEST = 3
"""Folders below a given one that are searched."""


Source = Literal["bundled", "hub", "folder"]


class DiskModel(Struct, frozen=True, rename={"nbytes": "bytes"}):
    """A model on this disk: the name that `--model` takes, and where it lies.

    `source` is `bundled`, `hub` or `folder`; `problem` says why it does not run, None if it does.
    `architecture` is the class of transformers that config.json names: its head.
    """

    name: str
    source: Source
    kind: str | None
    architecture: str | None
    nbytes: int
    path: str
    problem: str | None = None


def disk_models(folders: Iterable[Path]) -> Iterator[DiskModel]:
    """Yield the bundled models, those in the cache of the hub, and those in `folders`.

    ModelError for a folder that is none.
    """
    for record in manager().records(DemoModelPlugin):
        try:
            path = manager().demo_model_path(record.name)
        except GptrsError as error:
            yield DiskModel(record.name, "bundled", None, None, 0, ".", error.message)
            continue
        yield _examined(record.name, "bundled", path)
    try:
        for revision in cached_revisions():
            yield _examined(revision.name, "hub", revision.path)
    except MissingLibraryError as error:
        note(f"{error.message}: it is not listed")
    for folder in folders:
        if not folder.is_dir():
            raise ModelError(f"{quoted(str(folder), 200)} is no folder")
        for path in _models_in(folder, _DEEPEST):
            yield _examined(str(path), "folder", path)


def _models_in(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the model folders and files in `folder`, itself or below, without hidden folders."""
    if (folder / CONFIG).is_file():
        yield folder
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.suffix == ".gptrschk" and is_checkpoint(entry):
            yield entry
        elif depth > 0 and entry.is_dir() and not entry.name.startswith("."):
            yield from _models_in(entry, depth - 1)


def _examined(name: str, source: Source, path: Path) -> DiskModel:
    kind, head, size = None, None, _size(path)
    try:
        model = find_model(path)
        kind, head = model.model_type, architecture(model)
        manager().model_plugin(kind)
        model.weights.names()
    except GptrsError as error:
        return DiskModel(name, source, kind, head, size, str(path), error.message)
    return DiskModel(name, source, kind, head, size, str(path))


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder."""
    files = [path] if path.is_file() else [Path(top, n) for top, _, ns in os.walk(path) for n in ns]
    total = 0
    for file in files:
        try:
            total += file.stat().st_size
        except OSError:  # a link into nowhere
            continue
    return total
