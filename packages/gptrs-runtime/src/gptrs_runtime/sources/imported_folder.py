"""Folders of language models whose weights are in a file that an importer reads, such as ONNX.

Settings and tokenizer lie beside the file, or one folder above it: as optimum, Olive and
onnxruntime-genai write them. The last has its settings in a file of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

import numpy as np
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.checkpoint.files.open_file import read_whole
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.param_source import (
    FileSource,
    IdentifyingSource,
    MappedSource,
    ParamSource,
    WatchedSource,
)
from gptrs.checkpoint.quantized_tensor import Part, QuantizedSource, QuantizedTensor
from gptrs.errors import ModelError
from gptrs.ir.tensor_type import TensorType
from gptrs.plugins.descriptions import ImporterPlugin
from gptrs.plugins.exporters import LanguageModelFile, language_model_file
from gptrs.plugins.manager import manager
from gptrs.quoting import listed, quoted
from gptrs.strict_json import parse_object
from gptrs_runtime.sources.hf_directory import INDEX, WEIGHTS, HfDirectory
from gptrs_runtime.sources.model_folder import ModelFolder
from gptrs_runtime.sources.model_source import CONFIG, GENERATION_CONFIG, MAX_SETTINGS_BYTES

GENAI_CONFIG: Final = "genai_config.json"
"""The settings that onnxruntime-genai reads, in place of config.json."""
SUBFOLDER: Final = "onnx"
"""The folder of the files in repositories of transformers.js."""
_STEMS: Final = ("model", "decoder_model_merged", "decoder_with_past_model")
"""Names of the file of a language model, the most useful first."""
_OF_BUFFERS: Final = ("past_present_share_buffer", "chunk_size")
"""Settings of `search` in a genai_config.json that change no text."""


def _suffixes() -> dict[str, str]:
    """Return the importers of language models by the suffix of their files."""
    plugins = manager().descriptions(ImporterPlugin)
    return {
        suffix: plugin.name
        for plugin in plugins
        if plugin.language_model is not None
        for suffix in plugin.suffixes
    }


def is_language_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is of an importer of language models, with settings and a tokenizer."""
    file = Path(path)
    return file.suffix.lower() in _suffixes() and _folder_of(file) is not None


def _folder_of(file: Path) -> Path | None:
    """Return the folder with the settings for a file; None if there is none."""
    folders = [file.parent, file.parent.parent] if file.parent.name == SUBFOLDER else [file.parent]
    return next((each for each in folders if _has_settings(each)), None)


def _has_settings(folder: Path) -> bool:
    names = os.listdir(folder) if folder.is_dir() else []
    tokenized = any(name.startswith("tokenizer") or name == "vocab.json" for name in names)
    return tokenized and (CONFIG in names or GENAI_CONFIG in names)


def language_file_in(folder: str | os.PathLike[str]) -> Path | None:
    """Return the file of the language model in a folder without other weights; None without one.

    ModelError if there are several, and none has a usual name.
    """
    path = Path(folder)
    names = set(os.listdir(path))
    if {WEIGHTS, INDEX} & names or not _has_settings(path):
        return None
    suffixes = _suffixes()
    for inside in (path, path / SUBFOLDER):
        if not inside.is_dir():
            continue
        found = sorted(each for each in inside.iterdir() if each.suffix.lower() in suffixes)
        if not found:
            continue
        named = _named_in_settings(path)
        usual = (inside / f"{stem}{suffix}" for stem in _STEMS for suffix in suffixes)
        wanted = [inside / named] if named else usual
        best = next((each for each in wanted if each in found), None)
        if best is None and len(found) > 1:
            raise ModelError(
                f"{quoted(str(path), 200)} has {len(found)} models:"
                f" {listed([each.name for each in found])}",
                hint=f"name one, such as `--model` {quoted(str(found[0]), 200)}",
            )
        return best or found[0]
    return None


def named_file(path: Path) -> Path:
    """Return the file of the language model if a path is the folder of one; else the path."""
    found = language_file_in(path) if path.is_dir() else None
    return path if found is None else found


def _named_in_settings(folder: Path) -> str | None:
    """Return the file that a genai_config.json names."""
    if not (folder / GENAI_CONFIG).is_file():
        return None
    name = _table(_table(_genai_settings(ModelFolder(folder)), "model"), "decoder").get("filename")
    return name if isinstance(name, str) else None


def _genai_settings(folder: ModelFolder) -> Mapping[str, object]:
    found = folder.find(GENAI_CONFIG)
    if found is None:
        return {}
    return parse_object(read_whole(found, MAX_SETTINGS_BYTES), str(folder.path / GENAI_CONFIG))


def _search(settings: Mapping[str, object], context: object) -> Iterator[tuple[str, object]]:
    """Yield the settings of `search` that generation_config.json has under the same names.

    A `max_length` that is the whole context, as the files have it by default, limits no text.
    """
    unset = {"max_length": context, "random_seed": -1}
    for name, value in _table(settings, "search").items():
        if name not in _OF_BUFFERS and not (name in unset and value == unset[name]):
            yield name, value


def _table(settings: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = settings.get(name)
    return cast("Mapping[str, object]", found) if isinstance(found, Mapping) else {}


class ImportedFolder(HfDirectory):
    """A language model in a `file` that the plugin `importer` reads, with the files beside it."""

    def __init__(self, file: Path) -> None:
        folder = _folder_of(file)
        if folder is None:
            raise ModelError(
                f"there is no {CONFIG} with a tokenizer beside {quoted(str(file), 200)}",
                hint="`gptrs run` runs the file by itself",
            )
        self.file = file
        self.importer = _suffixes()[file.suffix.lower()]
        found = ModelFolder(folder)
        self._genai = _genai_settings(found)
        super().__init__(found, weighted=False)
        subfolder = "" if file.parent == folder else SUBFOLDER
        if found.find(file.name, subfolder) is None:  # a link that leads out is refused
            raise ModelError(f"{quoted(str(file), 200)} does not exist")

    @property
    @override
    def model_file(self) -> LanguageModelFile:
        """The file, opened when it is first needed; raises what its importer raises."""
        return self._opened

    @cached_property
    def _opened(self) -> LanguageModelFile:
        return language_model_file(self.file, self.importer)

    @override
    def read_settings(self, folder: ModelFolder) -> dict[str, object]:
        if folder.find(CONFIG) is not None:
            return super().read_settings(folder)
        model = _table(self._genai, "model")
        decoder = _table(model, "decoder")
        settings = {**decoder, **model, "model_type": model.get("type")}
        return {name: each for name, each in settings.items() if not isinstance(each, Mapping)}

    @override
    def read_generation_config(self) -> Mapping[str, object]:
        if self.read_bytes(GENERATION_CONFIG) is not None or not self._genai:
            return super().read_generation_config()
        model = _table(self._genai, "model")
        made = dict(_search(self._genai, model.get("context_length")))
        made |= {name: each for name, each in model.items() if name.endswith("_token_id")}
        return MappingProxyType(made)

    @override
    def open_weights(self) -> FileSource:
        found = self.model_file.weights
        if isinstance(found, QuantizedSource):
            return _QuantizedWeights(found, found, str(self.file))
        return ImportedWeights(found, str(self.file))

    @override
    def file_names(self) -> Sequence[str]:
        suffix = self.file.suffix
        return [name for name in self._folder.walk() if name != CONFIG and suffix not in name]


class ImportedWeights(FileSource):
    """The weights that an importer found in `origin`, by their names there."""

    def __init__(self, stored: ParamSource, origin: str) -> None:
        super().__init__({}, lambda name: _no_file(name, origin), origin)
        self._stored = stored
        # Asked once: it is looked at around each step.
        self._watched = stored if isinstance(stored, WatchedSource) else None

    @override
    def __repr__(self) -> str:
        return f"<ImportedWeights {self.origin}: {len(self.names())} tensors>"

    @override
    def require_unchanged(self) -> None:
        if self._watched is not None:
            self._watched.require_unchanged()

    @override
    def names(self) -> Sequence[str]:
        return self._stored.names()

    @override
    def type_of(self, name: str) -> TensorType:
        return self._stored.type_of(name)

    @override
    def identity_of(self, name: str) -> WeightIdentity | None:
        stored = self._stored
        return stored.identity_of(name) if isinstance(stored, IdentifyingSource) else None

    @override
    def load(self, name: str) -> np.ndarray:
        return self._stored.load(name)

    @override
    def view(self, name: str) -> np.ndarray:
        stored = self._stored
        return stored.view(name) if isinstance(stored, MappedSource) else stored.load(name)

    @override
    def parts(self, name: str) -> Iterator[np.ndarray]:
        stored = self._stored
        if isinstance(stored, MappedSource):
            yield from stored.parts(name)
        else:
            yield stored.load(name).reshape(-1)

    @override
    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self.view(name)[index]


class _QuantizedWeights(ImportedWeights):
    """Imported weights with quantized ones among them."""

    def __init__(self, stored: ParamSource, quantized: QuantizedSource, origin: str) -> None:
        super().__init__(stored, origin)
        self._quantized = quantized

    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a tensor is quantized, None if it is not."""
        return self._quantized.quantized(name)

    def load_part(self, name: str, part: Part) -> np.ndarray:
        """Return a part of a quantized tensor."""
        return self._quantized.load_part(name, part)

    def identity_of_part(self, name: str, part: Part) -> WeightIdentity | None:
        """Return the identity of the part; None if unknown."""
        return self._quantized.identity_of_part(name, part)


def _no_file(name: str, origin: str) -> MappedTensors:
    raise ModelError(f"{quoted(origin, 200)} has no part {quoted(name)}")
