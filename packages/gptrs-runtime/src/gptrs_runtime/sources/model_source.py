"""A model as it is stored: its settings, the files beside them, and its weights."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, cast

import numpy as np
from msgspec import Meta, Struct
from typing_extensions import override

from gptrs.checkpoint.files.open_file import is_plain
from gptrs.checkpoint.formats.gptrschk import CheckpointSettings, GptrschkFile
from gptrs.checkpoint.param_source import FileSource
from gptrs.errors import CheckpointError, ModelError
from gptrs.plugins.exporters import LanguageModelFile
from gptrs.quoting import quoted, shown_value
from gptrs.strict_json import parse_list, parse_object, record_of

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"

_MOVED: Final = (
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
    *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"),
    *("num_return_sequences", "forced_bos_token_id", "forced_eos_token_id"),
    *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
)
"""Settings that config.json had before there was a generation_config.json."""
_NO_LENGTH: Final = 20
"""The `max_length` of files that had a value for each setting: transformers follows no such one."""

MAX_SETTINGS_BYTES = 10_000_000
MAX_TOKENIZER_BYTES = 100_000_000


class ModelSource(ABC):
    """A stored model: a folder, or one file that holds everything that a folder does.

    `path` is what the user named, `name` what the model is called without more of a path. Files are
    asked for by plain names, in the folder itself or in a `subfolder` directly inside.
    """

    config: Mapping[str, object]
    """The whole of `config.json`."""
    generation_config: Mapping[str, object]
    """The whole of `generation_config.json`, or what an older config.json has of it."""

    settings_bytes: int
    """Bytes read to open it, apart from the headers of the files of its weights."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name

    @cached_property
    def weights(self) -> FileSource:
        """The tensors of the model, which are read when they are used."""
        return self.open_weights()

    @property
    def model_file(self) -> LanguageModelFile | None:
        """The file of another format that the model is made of; None for a kind of gptrs."""
        return None

    @abstractmethod
    def open_weights(self) -> FileSource:
        """Open the tensors of the model: the value of `weights`."""

    @abstractmethod
    def has_file(self, name: str, subfolder: str = "") -> bool:
        """Return whether there is such a file; ModelError for names or links that lead out."""

    @abstractmethod
    def read_bytes(
        self, name: str, subfolder: str = "", limit: int = MAX_SETTINGS_BYTES
    ) -> bytes | None:
        """Return the content of a file, None if there is none of that name.

        ModelError for names or links that lead out, and for more than `limit` bytes.
        """

    def origin_of(self, name: str) -> str:
        """Return the name, for messages, of the file that the content of `name` comes from."""
        return name

    @abstractmethod
    def tensors_in(self, subfolder: str) -> Mapping[str, np.ndarray] | None:
        """Return the tensors of `model.safetensors` in a subfolder, None without it."""

    @abstractmethod
    def file_names(self) -> Sequence[str]:
        """`NAME` or `FOLDER/NAME` of all files but config.json and those of the weights."""

    @abstractmethod
    def tensor_folders(self) -> Sequence[str]:
        """Return the subfolders for which `tensors_in` has tensors."""

    @property
    def model_type(self) -> str:
        """The kind of model that the config names; ModelError if it names none."""
        kind = self.config.get("model_type")
        if not isinstance(kind, str):
            found = "no such key" if kind is None else shown_value(kind)
            shown = quoted(str(self.path / CONFIG), 200)
            named = self.config.get("architectures")
            hint = f"add the one of {quoted(str(named))}; `gptrs list models` shows all"
            raise ModelError(
                f"{shown} must name the kind of model in `model_type`, found {found}",
                hint=hint if named else None,
            )
        return kind

    def read_generation_config(self) -> Mapping[str, object]:
        """Return the content of generation_config.json; without it, what config.json has of it."""
        found = self.read_json(GENERATION_CONFIG)
        if found is None:
            found = {name: self.config[name] for name in _MOVED if name in self.config}
            if found.get("max_length") == _NO_LENGTH:
                del found["max_length"]
        return MappingProxyType(found)

    def read_json(self, name: str, subfolder: str = "") -> dict[str, object] | None:
        """Return the object in a JSON file such as `tokenizer_config.json`, None without it.

        ModelError if it is more than MAX_SETTINGS_BYTES long or not strict JSON.
        """
        data = self.read_bytes(name, subfolder)
        return None if data is None else parse_object(data, str(self.path / subfolder / name))

    def read_json_list(self, name: str) -> list[object] | None:
        """Return the list in a JSON file such as `modules.json`, None without it."""
        data = self.read_bytes(name)
        return None if data is None else parse_list(data, str(self.path / name))


# A model in one `GPTRSCHK` file, with all that lies in a folder otherwise.


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
        """Read and check everything before the data; CheckpointError describes any fault."""
        return cls(GptrschkFile.open(path))

    @override
    def open_weights(self) -> FileSource:
        own = [name for name in self._file.names() if "/" not in name]
        return FileSource(dict.fromkeys(own, self.path.name), lambda _: self._file, str(self.path))

    @override
    def has_file(self, name: str, subfolder: str = "") -> bool:
        return inner_path(name, subfolder) in self._file.settings.files

    @override
    def read_bytes(
        self, name: str, subfolder: str = "", limit: int = MAX_SETTINGS_BYTES
    ) -> bytes | None:
        text = self._file.settings.files.get(inner_path(name, subfolder))
        if text is None:
            return None
        data = text.encode("utf-8")
        if len(data) > limit:
            shown = quoted(str(self.path / inner_path(name, subfolder)), 200)
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
        prefix = f"{inner_path(subfolder, '')}/"
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
                hint="write the file again with one of them",
            )
        config["runtime"] = dict(settings.runtime)
    return config


class WeightStreaming(Struct, frozen=True, forbid_unknown_fields=True):
    """The budget of weights in memory, how many are read ahead, and the size of pinned ones."""

    budget: Any = None  # a size in one of several forms, which `weight_streamer` checks
    prefetch: Annotated[int, Meta(ge=0)] | None = None
    pin_below: Annotated[int, Meta(ge=0)] | None = None


class RuntimeSettings(Struct, frozen=True):
    """How a model asks to be run; fields of others are ignored."""

    weight_streaming: WeightStreaming | None = None
    functional_overrides: dict[str, Any] | None = None  # the parser of policies checks the values


class _Config(Struct, frozen=True):
    runtime: RuntimeSettings | None = None


def runtime_settings(config: Mapping[str, object], origin: str) -> RuntimeSettings:
    """Return `runtime` of a config.json; ModelError if it is malformed, `origin` names the file."""
    own = {"runtime": config.get("runtime")}
    return record_of(own, _Config, quoted(origin, 200)).runtime or RuntimeSettings()


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


def inner_path(name: str, subfolder: str) -> str:
    """Return the key of a file in `files`; ModelError for names that lead out of a folder."""
    for part in (name, subfolder) if subfolder else (name,):
        if not is_plain(part):
            raise ModelError(f"{quoted(part)} is not a plain file name")
    return f"{subfolder}/{name}" if subfolder else name
