"""The formats that models and tensors come in: sound files, mutations of them, and reading all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from fuzzing import byte_mutations, tiny_gguf, tiny_models
from fuzzing.tiny_tokenizers import tokenizer_files
from gptrs.backend.contract import Backend
from gptrs.checkpoint.formats.tensor_archive import open_archive, write_archive
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.page_buffers import PagedTexts
from gptrs_conformance.program_generator.dice import Dice
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.gguf_model import GgufSource
from gptrs_runtime.sources.model_source import MAX_TOKENIZER_BYTES, TOKENIZER, ModelSource
from gptrs_runtime.tokenization.tokenizer import TextTokenizer

ARRAYS = (
    {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(True)},
    {"h.0.w": np.ones((2, 2), ml_dtypes.bfloat16), "e": np.zeros((0, 3)), "i": np.arange(3)},
    {"s": np.array(1.5, np.float16), "t": np.ones(3, np.bool_)},
)
WORDS = (
    b"0", b"-1", b"1e999", b"NaN", b"18446744073709551615", b"null", b"true", b"[", b"]", b"{",
    b"}", b",", b":", b'"', b"\\", b"\\ud800", b"BOOL", b"F64", b"I8", b"shape", b"dtype", b"\0",
    b"__metadata__", b"[[[[[[[[", b"4294967296", b"2.0", b" ", b"GPTRSCHK", b"GPTRSTEN", b"kind",
    b"files", b"runtime", b"../", b"/etc/passwd", b"GGUF", b"\x08\0\0\0", b"\x09\0\0\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff", b"tokenizer.ggml.tokens", b"split.count",
)  # fmt: skip
SECRET = "secret.safetensors"
"""A sound file beside the folder, which nothing may open."""
_FORWARD = 0.03
"""How often a model that loads is run: that takes longer than all else."""


@dataclass(frozen=True)
class FileFormat:
    """`prepare` fills a folder and gives sound contents of the file `name` in it.

    `mutate` makes another content of one, and of another one; `read` reads all that there is to
    read, and raises GptrsError where it cannot. `may` has what no other format may do:
    beginnings of events as `Watch` notes them.
    """

    name: str
    prepare: Callable[[Path, Backend], Sequence[bytes]]
    mutate: Callable[[Dice, bytes, bytes], bytes]
    read: Callable[[Path, Dice], None]
    may: tuple[str, ...] = ()


def _prepare_safetensors(folder: Path, backend: Backend) -> Sequence[bytes]:
    (folder / "config.json").write_text('{"model_type": "tiny"}', encoding="utf-8")
    return [save(arrays) for arrays in ARRAYS]


def _mutate_safetensors(dice: Dice, data: bytes, other: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    if dice.chance(0.5):
        theirs = other[8 : 8 + int.from_bytes(other[:8], "little")]
        header = byte_mutations.mutated_json(dice, header, theirs)
        return byte_mutations.with_length(header, 8) + data[8 + length :]
    changed = byte_mutations.mutated(dice, data, other, WORDS)
    end = changed.rfind(b"}") + 1
    if dice.chance(0.5) and end > 8:  # let the length fit, so that the JSON is read
        return (end - 8).to_bytes(8, "little") + changed[8:]
    return changed


def _read_folder(path: Path, dice: Dice) -> None:
    _read_weights(find_model(path.parent), path, dice)


def _read_checkpoint(path: Path, dice: Dice) -> None:
    source = find_model(path)
    for name in source.file_names():
        subfolder, _, plain = name.rpartition("/")
        source.read_bytes(plain, subfolder)
    for folder in source.tensor_folders():
        source.tensors_in(folder)
    _read_weights(source, path, dice)


def _read_weights(source: ModelSource, path: Path, dice: Dice) -> None:
    weights = source.weights
    for name in weights.names():
        if dice.chance(0.05):
            _shrink(path, dice)
        found = weights.type_of(name)
        array = weights.load(name)
        assert (array.shape, array.dtype) == (found.shape, found.dtype.numpy)
        array.tobytes()  # touches every page
        assert sum(part.size for part in weights.parts(name)) == found.size


def _prepare_index(folder: Path, backend: Backend) -> Sequence[bytes]:
    _prepare_safetensors(folder, backend)
    for number, arrays in enumerate(ARRAYS):
        (folder / f"{number}.safetensors").write_bytes(save(arrays))
    (folder.parent / SECRET).write_bytes(save({"a": np.ones(2)}))
    places = {name: f"{n}.safetensors" for n, arrays in enumerate(ARRAYS) for name in arrays}
    return [json.dumps({"metadata": {"total_size": n}, "weight_map": places}).encode()
            for n in (0, 57)]  # fmt: skip


def _mutate_index(dice: Dice, data: bytes, other: bytes) -> bytes:
    names = (f"../{SECRET}", "..", "", "3.safetensors", "a\\u0000", "0.bin", "config.json")
    if dice.chance(0.3):
        name = dice.pick(names).encode()
        data = data.replace(b"%d.safetensors" % dice.below(3), name, dice.between(1, 3))
        return data if dice.chance(0.5) else byte_mutations.mutated(dice, data, other, WORDS)
    return byte_mutations.mutated_json(dice, data, other)


def _prepare_gptrschk(folder: Path, backend: Backend) -> Sequence[bytes]:
    contents: list[bytes] = []
    for number, arrays in enumerate(ARRAYS):
        model = folder / str(number)
        (model / "2_Dense").mkdir(parents=True)
        (model / "config.json").write_text('{"model_type": "tiny", "runtime": {"x": 1}}')
        (model / "generation_config.json").write_text('{"eos_token_id": 1}')
        for part in (model, model / "2_Dense"):
            (part / "model.safetensors").write_bytes(save(arrays))
        convert(model, folder / "model.gptrschk", force=True)
        contents.append((folder / "model.gptrschk").read_bytes())
    return contents


def _mutate_gptrschk(dice: Dice, data: bytes, other: bytes) -> bytes:
    text, rest = _settings(data)
    action = dice.below(3)
    if action == 0:
        text = byte_mutations.mutated_json(dice, text, _settings(other)[0])
        return data[:12] + byte_mutations.with_length(text, 4) + rest
    if action == 1:  # the index: its length, then what it says
        changed = byte_mutations.mutated(dice, rest, other, WORDS)
        return data[:12] + byte_mutations.with_length(text, 4) + changed
    return byte_mutations.mutated(dice, data, other, WORDS)


def _settings(data: bytes) -> tuple[bytes, bytes]:
    end = 16 + int.from_bytes(data[12:16], "little")
    return data[16:end], data[end:]


def _prepare_gptrsten(folder: Path, backend: Backend) -> Sequence[bytes]:
    contents: list[bytes] = []
    for arrays in ARRAYS:
        four = {"four": np.array([1, -2, 3], ml_dtypes.int4)}
        write_archive(folder / "x.gptrsten", {**arrays, **four})
        contents.append((folder / "x.gptrsten").read_bytes())
    return contents


def _prepare_gguf(folder: Path, backend: Backend) -> Sequence[bytes]:
    models = [tiny_gguf.llama(tokenizer=kind) for kind in ("gpt2", "llama")]
    return [*models, *tiny_gguf.other_layouts()]


def _read_gguf(path: Path, dice: Dice) -> None:
    source = find_model(path)
    for name in source.file_names():
        data = source.read_bytes(name, limit=MAX_TOKENIZER_BYTES)
        if name == TOKENIZER and data is not None and dice.chance(0.3):
            tokenizer = TextTokenizer(data, name)
            tokenizer.decode(tokenizer.encode("the  cat\n12"))
    weights = cast("GgufSource", source.weights)
    _read_weights(source, path, dice)
    for name in weights.names():
        quantized = weights.quantized(name)
        for part, found in quantized.parts.items() if quantized else ():
            assert TensorType.of(weights.load_part(name, part)) == found


def _mutate_bytes(dice: Dice, data: bytes, other: bytes) -> bytes:
    return byte_mutations.mutated(dice, data, other, WORDS)


def _read_archive(path: Path, dice: Dice) -> None:
    archive = open_archive(path)
    try:
        for name in archive.names():
            if dice.chance(0.05):
                _shrink(path, dice)
            array = archive.read(name)
            assert array.shape == archive.type_of(name).shape
            array.tobytes()
    finally:
        archive.close()


def _shrink(path: Path, dice: Dice) -> None:
    """Cut the open file, as another program might."""
    with path.open("r+b") as file:
        file.truncate(dice.below(path.stat().st_size + 1))


def _prepare_config(folder: Path, backend: Backend) -> Sequence[bytes]:
    """One folder for each kind; which one a config is for stands in it, and is never mutated."""
    contents: list[bytes] = []
    for kind in tiny_models.CONFIGS:
        tiny_models.save_tiny_model(folder / kind, kind, backend)
        contents.append((folder / kind / "config.json").read_bytes())
    return contents


def _read_config(path: Path, dice: Dice) -> None:
    """Load a folder with this config, which need not be that of its kind."""
    kinds = list(tiny_models.CONFIGS)
    named = [kind for kind in kinds if f'"{kind}"'.encode() in path.read_bytes()[:200]]
    folder = path.parent / (dice.pick(named) if named else dice.pick(kinds))
    (folder / "config.json").write_bytes(path.read_bytes())
    model = load_model(folder, "ref")
    assert isinstance(model.eos_tokens, frozenset)
    assert model.bos_token is None or isinstance(model.bos_token, int)
    if dice.chance(_FORWARD):
        _run(model)


def _run(model: LoadedModel) -> None:
    if "image_classifier" in model.capabilities:
        model.forward(np.zeros((1, 3, 32, 32), np.float32))
    elif "causal_lm" in model.capabilities:
        model.forward(np.array([[1, 2]]))
        PagedTexts(model.causal_lm(), 1, 2).append([[1, 2]])
    else:
        model.text_embedder().encode(np.array([[1, 2]]), np.ones((1, 2), np.bool_))


def _prepare_tokenizer(folder: Path, backend: Backend) -> Sequence[bytes]:
    return tokenizer_files()


def _read_tokenizer(path: Path, dice: Dice) -> None:
    tokenizer = TextTokenizer(path.read_bytes(), path.name)
    tokens = tokenizer.encode("Héllo, the  cat\n123 <s>\U0001f600 [MASK]")
    tokenizer.decode(tokens)
    tokenizer.decode([0, 1, 2, 5, 10**6], special=True)
    tokenizer.encode_within("the cat", 2)


FORMATS: Mapping[str, FileFormat] = {
    "safetensors": FileFormat(
        "model.safetensors", _prepare_safetensors, _mutate_safetensors, _read_folder
    ),
    "shard-index": FileFormat(
        "model.safetensors.index.json", _prepare_index, _mutate_index, _read_folder
    ),
    "gptrschk": FileFormat(
        "model.gptrschk", _prepare_gptrschk, _mutate_gptrschk, _read_checkpoint
    ),
    "gguf": FileFormat("model.gguf", _prepare_gguf, _mutate_bytes, _read_gguf),
    "gptrsten": FileFormat("x.gptrsten", _prepare_gptrsten, _mutate_bytes, _read_archive),
    "config": FileFormat(
        "config.json", _prepare_config, byte_mutations.mutated_json, _read_config
    ),
    "tokenizer": FileFormat(
        "tokenizer.json", _prepare_tokenizer, byte_mutations.mutated_json, _read_tokenizer
    ),
}  # fmt: skip
"""By the name under which a run can be had for one of them."""
