"""A model folder as Hugging Face libraries save it: settings, tokenizer, and safetensors weights.

What may be opened is decided by `gptrs.checkpoint.model_folder`: nothing outside the folder, except
blobs of the hub cache entry that a snapshot folder belongs to. Pickle files are never read.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import cast

from gptrs.checkpoint.model_folder import ModelFolder, is_plain
from gptrs.checkpoint.param_source import SafetensorsSource
from gptrs.checkpoint.regular_file import read_whole
from gptrs.checkpoint.safetensors import SafetensorsFile
from gptrs.errors import CheckpointError, ModelError
from gptrs.quoting import listed, quoted, shown_value
from gptrs.strict_json import parse_object

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

MAX_SETTINGS_BYTES = 10_000_000
MAX_INDEX_BYTES = 100_000_000
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_CONVERT = (
    "where you trust the file, load the model with transformers and save it again with"
    " `model.save_pretrained(FOLDER)`, which writes `model.safetensors`"
)


class HfDirectory:
    """The settings of a model folder, read when it is opened, and its weights, read when used."""

    def __init__(self, folder: ModelFolder) -> None:
        self.path = folder.path
        self._folder = folder
        config = folder.require(CONFIG)
        self.config = MappingProxyType(_read_settings(config, self.path / CONFIG))
        self.generation_config = MappingProxyType(self.read_json(GENERATION_CONFIG) or {})
        self._single = folder.find(WEIGHTS)
        self._index = None if self._single else folder.find(INDEX)
        if self._single is None and self._index is None:
            raise _without_weights(folder)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> HfDirectory:
        """Read the settings in the folder `path` and find its weights.

        ModelError says what is wrong with the path, or which file is missing or malformed.
        """
        return cls(ModelFolder(path))

    @property
    def model_type(self) -> str:
        """The kind of model that `config.json` names; ModelError if it names none."""
        kind = self.config.get("model_type")
        if not isinstance(kind, str):
            found = "no such key" if kind is None else shown_value(kind)
            shown = quoted(str(self.path / CONFIG), 200)
            raise ModelError(f"{shown} must name the kind of model in `model_type`, found {found}")
        return kind

    @property
    def tokenizer(self) -> Path | None:
        """The path of `tokenizer.json`, None if the folder has none."""
        return self.file(TOKENIZER)

    def file(self, name: str) -> Path | None:
        """The resolved path of another file of the folder, None if it has none of that name."""
        return self._folder.find(name)

    def read_json(self, name: str) -> dict[str, object] | None:
        """The object in a JSON file of the folder such as `tokenizer_config.json`, None without it.

        ModelError if it is more than MAX_SETTINGS_BYTES long or not strict JSON.
        """
        found = self._folder.find(name)
        return None if found is None else _read_settings(found, self.path / name)

    @cached_property
    def weights(self) -> SafetensorsSource:
        """The tensors of the model: of `model.safetensors`, else of the shards of the index."""
        if self._single is not None:
            return SafetensorsSource.of_file(self._single, shown_as=self.path / WEIGHTS)
        assert self._index is not None
        origin = self.path / INDEX
        return SafetensorsSource(_read_index(self._index, origin), self._open_shard, str(origin))

    def _open_shard(self, name: str) -> SafetensorsFile:
        found = self._folder.find(name)
        if found is None:
            raise CheckpointError(
                f"{quoted(str(self.path / INDEX), 200)} needs the shard {quoted(name)},"
                " which the folder does not have",
                hint="download the model again",
            )
        return SafetensorsFile.open(found, shown_as=self.path / name)


def _read_settings(path: Path, shown: Path) -> dict[str, object]:
    return parse_object(read_whole(path, MAX_SETTINGS_BYTES), str(shown))


def _read_index(path: Path, shown: Path) -> dict[str, str]:
    """The `weight_map` of an index: tensor name to the plain name of a safetensors file."""
    index = parse_object(
        read_whole(path, MAX_INDEX_BYTES, CheckpointError), str(shown), CheckpointError
    )
    where = quoted(str(shown), 200)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        found = shown_value(weight_map)
        raise CheckpointError(f"{where} needs an object `weight_map`, found {found}")
    shards = cast("dict[str, object]", weight_map)
    for tensor, shard in shards.items():
        if not isinstance(shard, str) or not is_plain(shard):
            raise CheckpointError(
                f"{where} places tensor {quoted(tensor)} in {shown_value(shard)}, which is not the"
                " plain name of a file in the folder",
                hint="files outside the model folder are never opened",
            )
        if not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{where} places tensor {quoted(tensor)} in {quoted(shard)}, only safetensors"
                " files are read",
                hint=_CONVERT,
            )
    return cast("dict[str, str]", shards)


def _without_weights(folder: ModelFolder) -> ModelError:
    where = quoted(str(folder.path), 200)
    pickles = [name for name in folder.names if name.endswith(_PICKLES)]
    if pickles:
        return ModelError(
            f"the weights in {where} are pickle files ({listed(pickles)}), which are never read:"
            " opening one can run any code",
            hint=_CONVERT,
        )
    return ModelError(
        f"the folder {where} has neither {quoted(WEIGHTS)} nor {quoted(INDEX)},"
        f" found {listed(folder.names)}",
        hint="download the weights in safetensors format",
    )
