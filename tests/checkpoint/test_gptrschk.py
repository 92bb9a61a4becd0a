"""GPTRSCHK files: what is written is read, and one clear error for each way to be malformed."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.gptrschk import CheckpointSettings, GptrschkFile, write_gptrschk
from gptrs.checkpoint.formats.tensor_index import TAGS
from gptrs.checkpoint.parameter_ids import base_param_id
from gptrs.errors import CheckpointError, ModelError
from gptrs.ir.tensor_type import TensorType
from gptrs_runtime.sources.find_model import find_model, is_checkpoint
from gptrs_runtime.sources.model_source import GptrschkModel

SETTINGS = {"kind": "tiny", "config": {"width": 2}}


def write(path: Path, settings: CheckpointSettings, arrays: dict[str, np.ndarray]) -> Path:
    with path.open("wb") as file:
        tensors = [OutgoingTensor.of(name, array) for name, array in arrays.items()]
        write_gptrschk(file, settings, tensors)
    return path


def _arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    arrays = {
        str(dtype): random.integers(0, 2, (3, 5)).astype(dtype.numpy) for dtype in TAGS.values()
    }
    return {**arrays, "scalar": np.array(1.5, ml_dtypes.bfloat16), "none": np.zeros((0, 3))}


def test_every_dtype_and_shape_comes_back(tmp_path):
    arrays = _arrays()
    path = write(tmp_path / "m.gptrschk", CheckpointSettings("tiny", {"width": 2}), arrays)
    with GptrschkFile.open(path) as file:
        assert file.names() == tuple(arrays)
        for name, array in arrays.items():
            assert file.type_of(name) == TensorType.of(array)
            found = file.read(name)
            assert not found.flags.writeable
            np.testing.assert_array_equal(found, array)
            parts = list(file.parts(name))
            flat = np.concatenate(parts) if parts else np.empty(0)
            np.testing.assert_array_equal(flat, array.reshape(-1))
            if array.size:
                assert file.entry(name).offset % 64 == 0


def test_tensors_are_read_part_by_part(tmp_path, monkeypatch):
    monkeypatch.setattr("gptrs.checkpoint.formats.mapped_tensors._PART_BYTES", 16)
    arrays = {"f": np.arange(7.0), "n": np.arange(-3, 4).astype(ml_dtypes.int4).repeat(9)}
    with GptrschkFile.open(write(tmp_path / "m", CheckpointSettings("tiny", {}), arrays)) as file:
        for name, array in arrays.items():
            parts = list(file.parts(name))
            assert len(parts) > 1
            np.testing.assert_array_equal(np.concatenate(parts), array)
        again = tmp_path / "again"
        with again.open("wb") as out:
            tensors = [
                OutgoingTensor(n, file.type_of(n), lambda n=n: file.parts(n)) for n in file.names()
            ]
            write_gptrschk(out, file.settings, tensors)
        assert again.read_bytes() == file.path.read_bytes()


def test_settings_and_files_come_back(tmp_path):
    files = {"tokenizer.json": '{"ü": "\\n\U0001f600"}', "1_Pooling/config.json": '{"a": 1}'}
    settings = CheckpointSettings("tiny", {"model_type": "tiny", "width": 2}, {"x": {}}, files)
    path = write(tmp_path / "some.name.gptrschk", settings, {"2_Dense/w": np.ones(2)})
    model = GptrschkModel.open(path)
    assert model.config == {"model_type": "tiny", "width": 2, "runtime": {"x": {}}}
    assert (model.name, model.model_type) == ("some.name", "tiny")
    assert model.read_bytes("tokenizer.json") == files["tokenizer.json"].encode()
    assert model.read_json("config.json", "1_Pooling") == {"a": 1}
    assert model.read_json("absent.json") is None
    assert not model.has_file("absent.json")
    assert model.weights.names() == ()
    tensors = model.tensors_in("2_Dense")
    assert tensors is not None
    assert list(tensors) == ["w"]
    assert model.tensors_in("1_Pooling") is None
    with pytest.raises(ModelError, match="is larger than 3 bytes"):
        model.read_bytes("tokenizer.json", limit=3)
    with pytest.raises(ModelError, match="is not a plain file name"):
        model.read_bytes("../secret")


def test_a_model_is_found_by_what_it_is_not_by_its_name(tmp_path):
    path = write(tmp_path / "model.bin", CheckpointSettings("tiny", {}), {})
    assert is_checkpoint(path)
    assert isinstance(find_model(path), GptrschkModel)
    (tmp_path / "other.gptrschk").write_bytes(b"GPTRSTEN")
    with pytest.raises(ModelError, match="is a file of tensors"):
        find_model(tmp_path / "other.gptrschk")


def _entry(name: str = "x", *, id: int = 0, offset: int = 0, nbytes: int = 8) -> bytes:
    raw = name.encode()
    layout = struct.pack("<I", len(raw)) + raw + id.to_bytes(16, "little")
    return layout + struct.pack("<IQIBQQ", 1, 2, 0, 0, offset, nbytes)


def _file(settings: object = SETTINGS, *entries: bytes, data: bytes = bytes(8)) -> bytes:
    text = settings if isinstance(settings, bytes) else json.dumps(settings).encode()
    index = struct.pack("<I", len(entries)) + b"".join(entries)
    head = b"GPTRSCHK" + struct.pack("<II", 2, len(text)) + text
    return head + struct.pack("<I", len(index)) + index + data


def _start(*names: str) -> int:
    return len(_file(SETTINGS, *map(_entry, names), data=b""))


HOSTILE = {
    "a truncated header": (b"GPTRSCHK\2\0", "it ends after 10 bytes"),
    "another version": (b"GPTRSCHK" + struct.pack("<II", 1, 4) + bytes(4), "it is version 1"),
    "settings beyond the file": (
        b"GPTRSCHK" + struct.pack("<II", 2, 2**32 - 1) + bytes(4),
        "declares settings of 4294967295 bytes, 4 bytes follow",
    ),
    "no index": (b"GPTRSCHK" + struct.pack("<II", 2, 2) + b"{}", "length of an index of 4 bytes"),
    "an index beyond the file": (
        _file(SETTINGS, data=b"")[:-8] + struct.pack("<I", 2**31),
        "an index of 2147483648 bytes, 0 bytes follow",
    ),
    "settings that are no JSON": (_file(b"{"), "is not usable JSON"),
    "a key twice": (_file(b'{"kind": "a", "kind": "b", "config": {}}'), "occurs twice"),
    "an unknown key": (_file({**SETTINGS, "code": "x"}), "has an unknown field `code`"),
    "no kind": (_file({"config": {}}), "needs `kind`"),
    "no config": (_file({"kind": "a"}), "needs `config`"),
    "a config of another kind": (
        _file({"kind": "a", "config": {"model_type": "b"}}),
        "its `kind` is `a`, its `config` says `'b'`",
    ),
    "a runtime that is no object": (
        _file({**SETTINGS, "runtime": 1}),
        "`runtime` must be an object, found `1`",
    ),
    "files that are no object": (
        _file({**SETTINGS, "runtime": {"files": []}}),
        "`files` must be an object, found",
    ),
    "a file that leads out": (
        _file({**SETTINGS, "runtime": {"files": {"../x": ""}}}),
        "its `files` have `../x`, which is not",
    ),
    "a file that lies too deep": (
        _file({**SETTINGS, "runtime": {"files": {"a/b/c": ""}}}),
        "its `files` have `a/b/c`, which is not",
    ),
    "a file that is no text": (
        _file({**SETTINGS, "runtime": {"files": {"a": 1}}}),
        "`files.a` must be a string, found `1`",
    ),
    "the id of another name": (
        _file(SETTINGS, _entry(id=base_param_id("y"), offset=_start("x"))),
        "its name stands for",
    ),
    "two of one name": (
        _file(SETTINGS, _entry(offset=200), _entry(offset=208), data=bytes(99)),
        "two tensors are called `x`",
    ),
    "tensors that overlap": (
        _file(
            SETTINGS,
            _entry("x", offset=_start("x", "y")),
            _entry("y", offset=_start("x", "y") + 4),
            data=bytes(12),
        ),
        "tensor `y`: its data at byte .* overlaps",
    ),
    "a hole": (
        _file(SETTINGS, _entry(offset=_start("x") + 4096), data=bytes(5000)),
        "4096 bytes before it belong to no tensor",
    ),
    "data beyond the file": (
        _file(SETTINGS, _entry(offset=_start("x")), data=bytes(7)),
        "its data ends at byte",
    ),
    "a length that overflows": (
        _file(SETTINGS, _entry(offset=2**64 - 8)),
        "bytes before it belong to no tensor",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_malformed_file_is_refused_when_it_is_opened(tmp_path, what):
    data, message = HOSTILE[what]
    path = tmp_path / "m.gptrschk"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        GptrschkFile.open(path)
    assert "\n" not in str(caught.value)


def test_a_sound_one_is_not(tmp_path):
    path = tmp_path / "m.gptrschk"
    path.write_bytes(_file(SETTINGS, _entry(id=base_param_id("x"), offset=_start("x"))))
    weights = GptrschkModel.open(path).weights
    np.testing.assert_array_equal(weights.load("x"), np.zeros(2, np.float32))


def test_two_places_for_runtime_are_refused(tmp_path):
    path = tmp_path / "m.gptrschk"
    path.write_bytes(_file({"kind": "a", "config": {"runtime": {}}, "runtime": {"x": 1}}))
    with pytest.raises(CheckpointError, match="both its settings and its `config` have `runtime`"):
        GptrschkModel.open(path)


@pytest.mark.parametrize("touched", [False, True])
def test_a_file_that_shrinks_while_it_is_open_is_an_error(tmp_path, touched):
    arrays = {"x": np.arange(100_000), "y": np.arange(100_000)}
    path = write(tmp_path / "m.gptrschk", CheckpointSettings("tiny", {}), arrays)
    file = GptrschkFile.open(path)
    parts = file.parts("y")
    if touched:
        file.read("x")
    with path.open("r+b") as stream:
        stream.truncate(5000)
    with pytest.raises(CheckpointError, match=r"the file had .* when it was opened, now 5000"):
        file.read("y")
    with pytest.raises(CheckpointError, match=r"the file had .* when it was opened, now 5000"):
        next(parts)
