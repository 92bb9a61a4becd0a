"""Models in a GGUF file of llama.cpp, or in the files it was split into."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.checkpoint.formats.gguf import GgufFile, TensorMapping, open_header
from gptrs.checkpoint.formats.gguf_header import GgufHeader, GgufTensor
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.errors import CheckpointError, ModelError
from gptrs.quoting import quoted
from gptrs_runtime.sources.gguf_config import GgufSettings
from gptrs_runtime.sources.gguf_tokenizer import GgufTokenizer
from gptrs_runtime.sources.model_folder import MODULES
from gptrs_runtime.sources.model_source import (
    CONFIG,
    GENERATION_CONFIG,
    MAX_SETTINGS_BYTES,
    TOKENIZER,
    ModelSource,
    inner_path,
)

MOST_SHARDS = 1000
SHARD = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf")
"""The name of a part: the model's, its number from 1, and the count of parts."""
_TOKENIZER_CONFIG = "tokenizer_config.json"
_POOLING = "1_Pooling"
_DENSE = {"2_Dense": "dense_2.weight", "3_Dense": "dense_3.weight"}
"""The tensors of affine layers after the pooling by their folders in sentence-transformers."""


class GgufSource(FileSource):
    """The tensors of GGUF files, quantized or not, except for those that are `hidden`."""

    def __init__(self, files: Sequence[GgufFile], origin: str, hidden: Container[str] = ()) -> None:
        shard_of: dict[str, str] = {}
        for file in files:
            twice = shard_of.keys() & file.entries.keys()
            if twice:
                raise CheckpointError(f"{quoted(origin, 200)}: {quoted(min(twice))} is there twice")
            names = (name for name in file.entries if name not in hidden)
            shard_of |= dict.fromkeys(names, file.path.name)
        self._by_name = {file.path.name: file for file in files}
        super().__init__(shard_of, self._by_name.__getitem__, origin)

    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return the quantization of a tensor; None if it is not quantized."""
        return self._gguf(name).quantized(name)

    def load_part(self, name: str, part: Part) -> np.ndarray:
        """Return a part of a quantized tensor; CheckpointError if it cannot be read."""
        return self._gguf(name).read_part(name, part)

    def identity_of_part(self, name: str, part: Part) -> WeightIdentity | None:
        """Return the identity of the part, unlike that of other arrays; None if unknown."""
        return self._gguf(name).identity_of_part(name, part)

    def _gguf(self, name: str) -> GgufFile:
        return self._by_name[self.locate(name)[0].path.name]


class GgufModel(ModelSource):
    """The settings and the tokenizer in the metadata of a file, and its weights, read when used."""

    def __init__(self, path: Path, shards: Sequence[tuple[Path, GgufHeader]]) -> None:
        super().__init__(path, path.stem)
        header = shards[0][1]
        tensors = {tensor.name: tensor for _, each in shards for tensor in each.tensors}
        self._shards = shards
        settings = GgufSettings(header, path, tensors, self._read)
        self._mapping = settings.mapping
        self._pooling = settings.pooling
        self._dense = {
            folder: tensors[name].shape
            for folder, name in _DENSE.items()
            if self._pooling is not None and name in tensors
        }
        self._tokenizer = GgufTokenizer(header.metadata, f"in {quoted(str(path), 200)}")
        self.config = MappingProxyType(settings.config)
        self.generation_config = MappingProxyType(self._tokenizer.generation_config())
        self.settings_bytes = 0  # they are in the header of the file

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufModel:
        """Read and check the headers of all files; CheckpointError describes any fault.

        For a split model, `path` is the first file. Raises ModelError for unsupported kinds and
        settings.
        """
        first = Path(path)
        with open_header(first) as (_, header):
            shards = [(first, header)]
        for other in _other_shards(first, header):
            with open_header(other) as (_, header):
                shards.append((other, header))
        return cls(first, shards)

    @override
    def open_weights(self) -> GgufSource:
        files = [self._opened(*shard) for shard in self._shards]
        return GgufSource(files, str(self.path), [_DENSE[folder] for folder in self._dense])

    @override
    def has_file(self, name: str, subfolder: str = "") -> bool:
        return inner_path(name, subfolder) in self._files

    @override
    def read_bytes(
        self, name: str, subfolder: str = "", limit: int = MAX_SETTINGS_BYTES
    ) -> bytes | None:
        make = self._files.get(inner_path(name, subfolder))
        data = None if make is None else make()
        if data is not None and len(data) > limit:
            raise ModelError(f"the {name} of {quoted(str(self.path), 200)} exceeds {limit} bytes")
        return data

    @override
    def origin_of(self, name: str) -> str:
        return self.path.name

    @override
    def file_names(self) -> Sequence[str]:
        return tuple(self._files)

    @override
    def tensor_folders(self) -> Sequence[str]:
        return tuple(self._dense)

    @override
    def tensors_in(self, subfolder: str) -> Mapping[str, np.ndarray] | None:
        if subfolder not in self._dense:
            return None
        return {"linear.weight": self._read(_DENSE[subfolder])}

    @cached_property
    def _files(self) -> Mapping[str, Callable[[], bytes]]:
        """The files of a folder, generated from the metadata when they are read."""
        files = {GENERATION_CONFIG: lambda: _json(dict(self.generation_config))}
        if self._tokenizer.is_there:
            files[TOKENIZER] = self._tokenizer.tokenizer_json
            files[_TOKENIZER_CONFIG] = lambda: _json(self._tokenizer.tokenizer_config())
        if self._pooling is not None:
            mode = self._pooling
            files[MODULES] = lambda: _json(self._modules())
            files[f"{_POOLING}/{CONFIG}"] = lambda: _json({"pooling_mode": [mode]})
            for folder, shape in self._dense.items():
                files[f"{folder}/{CONFIG}"] = lambda shape=shape: _json(_dense_of(shape))
        return files

    def _modules(self) -> list[dict[str, str]]:
        """Return what modules.json lists: as the tools of llama.cpp, vectors get the length 1."""
        named = [("Transformer", ""), ("Pooling", _POOLING)]
        named += [("Dense", folder) for folder in self._dense]
        start = "sentence_transformers.models."
        return [{"type": start + name, "path": path} for name, path in (*named, ("Normalize", ""))]

    def _opened(self, path: Path, header: GgufHeader) -> GgufFile:
        return GgufFile.open(path, self._mappings, known=header)

    def _mappings(self, header: GgufHeader) -> Mapping[str, TensorMapping]:
        mappings = {tensor.name: self._mapping(tensor) for tensor in header.tensors}
        if len({mapping.name for mapping in mappings.values()}) < len(mappings):
            shown = quoted(str(self.path), 200)
            raise CheckpointError(f"{shown} has two tensors for one weight of the model")
        return mappings

    def _read(self, name: str) -> np.ndarray:
        """Read a tensor by its name in the file, such as divisors of rotary frequencies."""
        for path, header in self._shards:
            found: list[GgufTensor] = [t for t in header.tensors if t.name == name]
            if found:
                plain = {tensor.name: TensorMapping(tensor.name) for tensor in header.tensors}
                with GgufFile.open(path, lambda _, plain=plain: plain) as file:
                    return file.read(name)
        raise AssertionError("it is asked for where the tensor is there")


def _other_shards(first: Path, header: GgufHeader) -> Sequence[Path]:
    """Return the other files of a split model."""
    count, number = header.metadata.get("split.count", 0), header.metadata.get("split.no", 0)
    if count in (0, 1):
        return ()
    shown, named = quoted(str(first), 200), SHARD.fullmatch(first.name)
    if type(count) is not int or not 1 <= count <= MOST_SHARDS or named is None:
        raise CheckpointError(
            f"{shown} is a part of a model that was split, but is not called so",
            hint="the parts are called NAME-00001-of-00003.gguf and lie in one folder",
        )
    if number != 0:
        one = f"{named[1]}-00001-of-{named[3]}.gguf"
        raise CheckpointError(f"{shown} is not the first part", hint=f"name {quoted(one)}")
    return [
        first.with_name(f"{named[1]}-{part:05}-of-{count:05}.gguf") for part in range(2, count + 1)
    ]


def _dense_of(shape: Sequence[int]) -> dict[str, object]:
    """Return the settings of an affine layer [outputs, inputs] without bias and activation."""
    return {
        "in_features": shape[-1] if shape else 0,
        "out_features": shape[0] if shape else 0,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")
