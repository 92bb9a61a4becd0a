"""A model as it is stored: its settings, the files beside them, and its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np

from gptrs.checkpoint.param_source import FileSource
from gptrs.errors import ModelError
from gptrs.quoting import quoted, shown_value
from gptrs.strict_json import parse_list, parse_object

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"

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
    """The whole of `generation_config.json`; empty if there is none."""

    settings_bytes: int
    """Bytes read to open it, apart from the headers of the files of its weights."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name

    @cached_property
    def weights(self) -> FileSource:
        """The tensors of the model, which are read when they are used."""
        return self.open_weights()

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
        """Return the content of generation_config.json, empty without the file."""
        return MappingProxyType(self.read_json(GENERATION_CONFIG) or {})

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
