"""A model in one `GPTRSCHK` file, with all that lies in a folder otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import cast

import numpy as np
from typing_extensions import override

from gptrs.checkpoint.files.open_file import is_plain
from gptrs.checkpoint.formats.gptrschk import CheckpointSettings, GptrschkFile
from gptrs.checkpoint.param_source import FileSource
from gptrs.errors import CheckpointError, ModelError
from gptrs.quoting import quoted
from gptrs_runtime.sources.model_source import CONFIG, MAX_SETTINGS_BYTES, ModelSource


class GptrschkModel(ModelSource):
    """The settings of a checkpoint, read when it is opened, and its weights, read when used.

    Tensors called `FOLDER/NAME` are those of `model.safetensors` in the subfolder, all others the
    model's.
    """

    def __init__(self, file: GptrschkFile) -> None:
        super().__init__(file.path, file.path.stem)
        self._file = file
        self.config = MappingProxyType(config_of(file.settings, file.path))
        self.generation_config = self.read_generation_config()
        self.settings_bytes = 0  # they are in the header of the file

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GptrschkModel:
        """Read and check all that precedes the data; CheckpointError says what is wrong with it."""
        return cls(GptrschkFile.open(path))

    @override
    def open_weights(self) -> FileSource:
        own = [name for name in self._file.names() if "/" not in name]
        return FileSource(dict.fromkeys(own, self.path.name), lambda _: self._file, str(self.path))

    @override
    def has_file(self, name: str, subfolder: str = "") -> bool:
        return _place(name, subfolder) in self._file.settings.files

    @override
    def read_bytes(
        self, name: str, subfolder: str = "", limit: int = MAX_SETTINGS_BYTES
    ) -> bytes | None:
        text = self._file.settings.files.get(_place(name, subfolder))
        if text is None:
            return None
        data = text.encode("utf-8")
        if len(data) > limit:
            shown = quoted(str(self.path / _place(name, subfolder)), 200)
            raise ModelError(f"{shown} is larger than {limit} bytes")
        return data

    @override
    def file_names(self) -> Sequence[str]:
        return tuple(self._file.settings.files)

    @override
    def tensor_folders(self) -> Sequence[str]:
        folders = (name.rpartition("/")[0] for name in self._file.names())
        return tuple(dict.fromkeys(folder for folder in folders if folder))

    @override
    def tensors_in(self, subfolder: str) -> Mapping[str, np.ndarray] | None:
        prefix = f"{_place(subfolder, '')}/"
        names = [name for name in self._file.names() if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._file.read(name) for name in names} or None


def config_of(settings: CheckpointSettings, path: Path) -> dict[str, object]:
    """Return the `config.json` that a folder of the same model has."""
    config = {"model_type": settings.kind, **settings.config}
    if settings.runtime:
        if "runtime" in config:
            shown = quoted(str(path), 200)
            raise CheckpointError(
                f"{shown}: both its settings and its `config` have `runtime`",
                hint="write the file anew with one of them",
            )
        config["runtime"] = dict(settings.runtime)
    return config


def settings_of(config: Mapping[str, object], files: Mapping[str, str]) -> CheckpointSettings:
    """Return the settings for a `config.json` and the files beside it."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"`{CONFIG}` must name the kind of model in `model_type`")
    runtime = config.get("runtime")
    if not isinstance(runtime, dict):
        return CheckpointSettings(kind, config, files=files)
    if "files" in runtime:
        raise ModelError(f"`runtime` in `{CONFIG}` has `files`, which no model can have there")
    own = {name: value for name, value in config.items() if name != "runtime"}
    return CheckpointSettings(kind, own, cast("dict[str, object]", runtime), files)


def _place(name: str, subfolder: str) -> str:
    """Return the key of a file in `files`; ModelError for names that lead out of a folder."""
    for part in (name, subfolder) if subfolder else (name,):
        if not is_plain(part):
            raise ModelError(f"{quoted(part)} is not a plain file name")
    return f"{subfolder}/{name}" if subfolder else name
