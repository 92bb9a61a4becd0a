"""Model folders of Hugging Face libraries: settings, tokenizer, and safetensors weights.

`model_folder` decides what may be opened: nothing outside of the folder, except blobs of the hub
cache entry of a snapshot folder. Pickle files are never read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.checkpoint.files.open_file import is_plain, read_whole
from gptrs.checkpoint.formats.foreign_files import PICKLE_SUFFIXES, require_no_pointer
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.checkpoint.param_source import FileSource
from gptrs.errors import CheckpointError, ModelError
from gptrs.lazy_module import lazy_module
from gptrs.quoting import listed, quoted
from gptrs.strict_json import parse_object, record_of
from gptrs_runtime.sources.model_folder import ModelFolder
from gptrs_runtime.sources.model_source import (
    CONFIG,
    GENERATION_CONFIG,
    MAX_SETTINGS_BYTES,
    MAX_TOKENIZER_BYTES,
    TOKENIZER,
    ModelSource,
)
from gptrs_runtime.sources.quantization_config import (
    KEY,
    MLX_KEY,
    MODELOPT_CONFIG,
    ModelOptFile,
    scheme_of,
)
from gptrs_runtime.sources.timm_folder import (
    PREPROCESSOR,
    TimmFolder,
    is_timm,
    preprocessor_of,
)
from gptrs_runtime.sources.tokenizer_class import named_class, tokenizer_class

if TYPE_CHECKING:
    from gptrs_runtime.sources import (
        byte_bpe_files,
        decoders,
        format_kinds,
        gguf_metadata,
    )
else:
    byte_bpe_files = lazy_module("gptrs_runtime.sources.byte_bpe_files")
    gguf_metadata = lazy_module("gptrs_runtime.sources.gguf_metadata")
    format_kinds = lazy_module("gptrs_runtime.sources.format_kinds")
    decoders = lazy_module("gptrs_runtime.sources.decoders")

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_SCALES = (".weight_scale", ".weight_scale_inv")
MAX_INDEX_BYTES = 100_000_000
_SHARD = re.compile(r"model-\d{5}-of-(\d{5})\.safetensors")
_OF_SUBFOLDER = f"/{WEIGHTS}"
_CONVERT = (
    "where you trust the file, load the model with transformers and save it again with"
    " `model.save_pretrained(FOLDER)`, which writes `model.safetensors`"
)


class HfDirectory(ModelSource):
    """The settings of a model folder, read when it is opened, and its weights, read when used.

    For `vocab.json` and `merges.txt` of a known class, a `tokenizer.json` is generated when it is
    read; for timm, a `preprocessor_config.json`. The folder of a model that is still to be trained,
    not `weighted`, needs no weights.
    """

    def __init__(self, folder: ModelFolder, *, weighted: bool = True) -> None:
        super().__init__(folder.path, folder.path.resolve().name)
        self._folder = folder
        self._timm: TimmFolder | None = None
        settings = self.read_settings(folder)
        self._add_quantization(settings)
        self._scheme = scheme_of(settings, str(self.path / CONFIG))
        if self._scheme is not None:
            for key in (KEY, MLX_KEY):  # handled by the source of the weights, not by models
                settings.pop(key, None)
        self.config = MappingProxyType(settings)
        self.generation_config = self.read_generation_config()
        self._single = folder.find(WEIGHTS)
        # A single file wins over an index, as in transformers: a stale index may lie beside it.
        self._index = None if self._single else folder.find(INDEX)
        self._shards = () if self._single or self._index else _unlisted_shards(folder)
        if weighted and not (self._single or self._index or self._shards):
            raise _without_weights(folder)
        if is_timm(settings):
            self._preprocessor = preprocessor_of(settings)
            self._timm = TimmFolder(self._stored_tensors(), settings, str(self.path))
            self.config = MappingProxyType(self._timm.config)
        read = (folder.find(CONFIG), folder.find(GENERATION_CONFIG), self._index)
        self.settings_bytes = sum(path.stat().st_size for path in read if path is not None)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, weighted: bool = True) -> HfDirectory:
        """Read the settings in the folder `path` and find its weights.

        ModelError describes the fault of the path, or names the file that is missing or malformed.
        """
        return cls(ModelFolder(path), weighted=weighted)

    def read_settings(self, folder: ModelFolder) -> dict[str, object]:
        """Return the content of config.json; ModelError if it is missing or malformed."""
        config = read_whole(folder.require(CONFIG), MAX_SETTINGS_BYTES)
        return parse_object(config, str(self.path / CONFIG), constants=True)

    def _add_quantization(self, settings: dict[str, object]) -> None:
        """Add the settings that older versions of ModelOpt have in a file of their own."""
        path = None if KEY in settings else self._folder.find(MODELOPT_CONFIG)
        if path is not None:
            found = parse_object(read_whole(path, MAX_SETTINGS_BYTES), str(path))
            given = record_of(found, ModelOptFile, quoted(str(path), 200)).quantization
            settings[KEY] = {"quant_method": "modelopt", **given}

    @override
    def has_file(self, name: str, subfolder: str = "") -> bool:
        if self._folder.find(name, subfolder) is not None:
            return True
        if self._timm is not None and (name, subfolder) == (PREPROCESSOR, ""):
            return True
        return (name, subfolder) == (TOKENIZER, "") and self._made_tokenizer is not None

    @override
    def read_bytes(
        self, name: str, subfolder: str = "", limit: int = MAX_SETTINGS_BYTES
    ) -> bytes | None:
        found = self._folder.find(name, subfolder)
        if found is not None:
            data = read_whole(found, limit)
            # After the read: a file that was replaced in between may belong to another model.
            self._folder.require_unchanged(subfolder or name)
            # A clone without Git LFS leaves small text files in place of the real ones.
            require_no_pointer(self.path / subfolder / name, data, ModelError)
            return data
        if self._timm is not None and (name, subfolder) == (PREPROCESSOR, ""):
            return self._preprocessor
        made = self._made_tokenizer if (name, subfolder) == (TOKENIZER, "") else None
        return None if made is None else made(self._tokenizer_file)

    @override
    def origin_of(self, name: str) -> str:
        if name != TOKENIZER or self._folder.find(name) is not None:
            return name
        older = (byte_bpe_files.VOCABULARY, byte_bpe_files.MERGES)
        return " and ".join(each for each in older if self._folder.find(each) is not None) or name

    @cached_property
    def _made_tokenizer(self) -> Callable[[byte_bpe_files.ReadFile], bytes] | None:
        """The function that makes a tokenizer.json from older files; None if there are none."""
        names = (byte_bpe_files.VOCABULARY, byte_bpe_files.MERGES)
        if any(self._folder.find(name) is None for name in names):
            is_bytes = named_class(self) == gguf_metadata.CLASS
            return gguf_metadata.tokenizer_json if is_bytes else None
        kind = tokenizer_class(self)
        if kind is None or kind not in byte_bpe_files.CLASSES:
            return None
        return partial(byte_bpe_files.tokenizer_json, name=kind)

    def _tokenizer_file(self, name: str) -> bytes | None:
        return self.read_bytes(name, limit=MAX_TOKENIZER_BYTES)

    @override
    def file_names(self) -> Sequence[str]:
        weights = {CONFIG, WEIGHTS, INDEX, *self.weights.files}
        names = self._folder.walk()
        kept = [n for n in names if n not in weights and not n.endswith(_OF_SUBFOLDER)]
        made = [TOKENIZER] if self._made_tokenizer is not None else []
        made += [PREPROCESSOR] if self._timm is not None else []
        return tuple(dict.fromkeys([*kept, *made]))

    @override
    def tensor_folders(self) -> Sequence[str]:
        names = self._folder.walk()
        return tuple(n.removesuffix(_OF_SUBFOLDER) for n in names if n.endswith(_OF_SUBFOLDER))

    @override
    def tensors_in(self, subfolder: str) -> Mapping[str, np.ndarray] | None:
        found = self._folder.find(WEIGHTS, subfolder)
        if found is None:
            return None
        with SafetensorsFile.open(found, shown_as=self.path / subfolder / WEIGHTS) as file:
            return {name: file.read(name) for name in file.names()}

    @override
    def open_weights(self) -> FileSource:
        if self._timm is not None:
            return self._timm
        stored = self._stored_tensors()
        if self._scheme is None:
            _require_no_scales(stored)
            return stored
        kind = format_kinds.kind_named(self.config.get("model_type"))
        return decoders.decoded(stored, self._scheme, {} if kind is None else kind.mlx)

    def _stored_tensors(self) -> FileSource:
        if self._single is not None:
            return FileSource.of_file(self._single, shown_as=self.path / WEIGHTS)
        if self._index is None:
            shards = {name: self._open_shard(name) for name in self._shards}
            found = {tensor: name for name, shard in shards.items() for tensor in shard.entries}
            return FileSource(found, shards.__getitem__, str(self.path))
        origin = self.path / INDEX
        return FileSource(_read_index(self._index, origin), self._open_shard, str(origin))

    def _open_shard(self, name: str) -> SafetensorsFile:
        found = self._folder.find(name)
        if found is None:
            raise CheckpointError(
                f"{quoted(str(self.path / INDEX), 200)} needs the shard {quoted(name)},"
                " which the folder does not have",
                hint="download the model again",
            )
        return SafetensorsFile.open(found, shown_as=self.path / name)


def _require_no_scales(stored: FileSource) -> None:
    """Raise ModelError for 8-bit floats with scales, which only settings tell how to apply."""
    known = stored.names()
    for scale in known:
        name = scale.removesuffix("_inv").removesuffix("_scale")
        if scale.endswith(_SCALES) and name in known and stored.type_of(name).dtype.bits == 8:
            raise ModelError(
                f"{quoted(name)} of {stored.origin} has 8 bits and the scale {quoted(scale)}, but"
                " no settings say how they belong together",
                hint=f"get {CONFIG} with {quoted(KEY)}, or {MODELOPT_CONFIG}, with the weights",
            )


def shards_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the files that the index in the folder `path` names; none if the folder has no index.

    CheckpointError for an index that is malformed, or names files outside the folder.
    """
    folder = ModelFolder(path)
    index = folder.find(INDEX)
    if index is None:
        return ()
    return tuple(dict.fromkeys(_read_index(index, folder.path / INDEX).values()))


class _Index(Struct):
    weight_map: dict[str, str]


def _read_index(path: Path, shown: Path) -> dict[str, str]:
    """Return the `weight_map` of an index: tensor name to the plain name of a safetensors file."""
    index = parse_object(
        read_whole(path, MAX_INDEX_BYTES, CheckpointError), str(shown), CheckpointError
    )
    where = quoted(str(shown), 200)
    shards = record_of(index, _Index, where, CheckpointError).weight_map
    for tensor, shard in shards.items():
        # The index comes with the model: `../` or an absolute path in it would open any file of the
        # user.
        if not is_plain(shard):
            raise CheckpointError(
                f"{where} places tensor {quoted(tensor)} in {quoted(shard)}, which is not the"
                " plain name of a file in the folder",
                hint="files outside the model folder are never opened",
            )
        if not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{where} places tensor {quoted(tensor)} in {quoted(shard)}, only safetensors"
                " files are read",
                hint=_CONVERT,
            )
    return shards


def _unlisted_shards(folder: ModelFolder) -> tuple[str, ...]:
    """Return the shards of a folder without an index; CheckpointError if one is missing."""
    found = [name for name in folder.names if _SHARD.fullmatch(name)]
    total = {name[-17:-12] for name in found}
    if not total:
        return ()
    last = total.pop()
    wanted = [f"model-{number:05}-of-{last}.safetensors" for number in range(1, int(last[:5]) + 1)]
    if total or len(wanted) != len(found):
        # The number is out of a file name, and may claim 99999 shards.
        missing = [name for name in wanted[:1000] if name not in found]
        raise CheckpointError(
            f"the folder {quoted(str(folder.path), 200)} has {len(found)} of {len(wanted)} shards"
            f" and no {quoted(INDEX)}, missing: {listed(missing)}",
            hint="download the model again",
        )
    return tuple(wanted)


def _without_weights(folder: ModelFolder) -> ModelError:
    where = quoted(str(folder.path), 200)
    pickles = [name for name in folder.names if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        return ModelError(
            f"the weights in {where} are pickle files ({listed(pickles)}), which are never read:"
            " opening one can run any code",
            hint=_CONVERT,
        )
    return ModelError(
        f"the folder {where} has neither {quoted(WEIGHTS)} nor {quoted(INDEX)},"
        f" found {listed(folder.names)}",
        hint=_other_weights(folder) or "download the weights in safetensors format",
    )


def _other_weights(folder: ModelFolder) -> str | None:
    """Return a hint about weights in another form; None if there are none."""
    names = folder.walk()

    def path(end: str) -> str | None:
        found = next((name for name in names if name.endswith(end)), None)
        return None if found is None else quoted(str(folder.path / found), 200)

    gguf, onnx = path(".gguf"), path(".onnx")
    if gguf is not None:
        return f"name the file of llama.cpp itself: `--model` {gguf}"
    if "consolidated.safetensors" in folder.names:
        return "its weights are in another form: download `model.safetensors`, too"
    own = [name for name in folder.names if name.endswith(".safetensors")]
    if len(own) == 1:
        return f"if {quoted(own[0])} has the weights, name it {quoted(WEIGHTS)}"
    if onnx is not None:
        return f"`gptrs run` {onnx} runs the ONNX model, see docs/import.md"
    if path(".h5") is not None or path(".msgpack") is not None:
        return "weights of TensorFlow and Flax are not read: save them again with transformers 4"
    return None
