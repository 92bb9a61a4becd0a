"""Archives of tensors: every dtype comes back bit for bit from every format that can hold it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from gptrs.checkpoint.formats.tensor_archive import open_archive, write_archive
from gptrs.checkpoint.formats.tensor_index import TAGS
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.tensor_type import TensorType

LACKING = {
    ".safetensors": {dtypes.si4, dtypes.ui4, dtypes.cf64},
    ".npz": {dtypes.si4, dtypes.ui4, dtypes.f8e4m3, dtypes.f8e5m2, dtypes.bf16},
    ".gptrsten": set[DType](),
}
SHAPES = [(), (0,), (1,), (2, 3), (3, 0, 2), (1, 2, 1, 3)]


def _sample(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Elements of any bits that the dtype has, NaNs and -0.0 among them."""
    rng = np.random.default_rng(len(shape))
    size = TensorType(dtype, shape).size
    if dtype.bits < 8:
        values = rng.integers(0, 2**dtype.bits, shape, np.uint8)
        return Literal(TensorType(dtype, shape), values.tobytes()).array.copy()
    return np.frombuffer(rng.bytes(size * dtype.itemsize), dtype.numpy).reshape(shape)


def _bits(array: np.ndarray) -> bytes:
    return Literal.of(array).data


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("suffix", LACKING)
def test_every_dtype_and_shape_comes_back_or_is_refused(tmp_path, suffix, dtype):
    path = tmp_path / f"archive{suffix}"
    arrays = {f"a.{i}": _sample(dtype, shape) for i, shape in enumerate(SHAPES)}
    if dtype in LACKING[suffix]:
        with pytest.raises(UsageError, match=f"cannot hold `{dtype}.*gptrsten") as caught:
            write_archive(path, arrays)
        assert caught.value.exit_code == 2
        assert os.listdir(tmp_path) == []
        return
    write_archive(path, arrays)
    archive = open_archive(path)
    assert sorted(archive.names()) == sorted(arrays)
    for name, array in arrays.items():
        assert archive.type_of(name) == TensorType.of(array)
        found = archive.read(name)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert _bits(found) == _bits(array)
    archive.close()


@pytest.mark.parametrize("suffix", [*LACKING, ".npy"])
def test_views_are_written_as_they_look(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    view = np.arange(24, dtype=np.int32).reshape(2, 3, 4)[:, ::-2].transpose(2, 0, 1)
    write_archive(path, {"x": view})
    np.testing.assert_array_equal(open_archive(path).read("x"), view)


@pytest.mark.parametrize("suffix", LACKING)
def test_an_archive_may_be_empty_and_names_odd(tmp_path, suffix):
    path = tmp_path / f"archive{suffix}"
    write_archive(path, {})
    assert list(open_archive(path).names()) == []
    names = ["", "größe", "a/b", "../c", "x.npy", "two words"]
    write_archive(path, {name: np.full(2, i) for i, name in enumerate(names)})
    archive = open_archive(path)
    assert sorted(archive.names()) == sorted(names)
    assert [archive.read(name)[0] for name in names] == list(range(len(names)))


def test_equal_arrays_give_equal_files(tmp_path):
    for suffix in LACKING:
        for name in ("one", "two"):
            write_archive(tmp_path / f"{name}{suffix}", {"x": np.ones(3), "y": np.zeros(2)})
        one, two = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
        assert one == two


def test_the_first_bytes_tell_the_format_whatever_the_file_is_called(tmp_path):
    for suffix in (*LACKING, ".npy"):
        write_archive(tmp_path / f"x{suffix}", {"x": np.arange(3)})
        path = (tmp_path / f"x{suffix}").rename(tmp_path / "plain")
        archive = open_archive(path)
        [name] = archive.names()
        assert name == ("plain" if suffix == ".npy" else "x")
        np.testing.assert_array_equal(archive.read(name), np.arange(3))


def test_other_libraries_read_what_is_written(tmp_path):
    arrays = {"x": np.arange(6.0).reshape(2, 3), "flag": np.array([True, False])}
    write_archive(tmp_path / "a.safetensors", arrays)
    write_archive(tmp_path / "a.npz", arrays)
    write_archive(tmp_path / "a.npy", {"x": arrays["x"]})
    with np.load(tmp_path / "a.npz") as archive:
        loaded = dict(archive)
    for found in (load_file(tmp_path / "a.safetensors"), loaded):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array, strict=True)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), arrays["x"], strict=True)


def test_what_numpy_writes_is_read(tmp_path):
    big_endian = np.arange(6, dtype=">f4").reshape(2, 3)
    arrays = {"x": np.asfortranarray(big_endian), "flag": np.array(True), "none": np.zeros((0, 3))}
    np.savez(tmp_path / "stored.npz", **arrays)
    np.savez_compressed(tmp_path / "deflated.npz", **arrays)
    for path in (tmp_path / "stored.npz", tmp_path / "deflated.npz"):
        archive = open_archive(path)
        assert str(archive.type_of("x")) == "f32[2, 3]"
        assert archive.read("x").flags.c_contiguous
        for name, array in arrays.items():
            np.testing.assert_array_equal(archive.read(name), array)
    np.save(tmp_path / "x.npy", arrays["x"])
    np.testing.assert_array_equal(open_archive(tmp_path / "x.npy").read("x"), big_endian)


def test_tags_of_the_archive_stay_what_they_are():
    assert [(tag, dtype.name) for tag, dtype in TAGS.items()] == [
        *((0, "f32"), (1, "f16"), (2, "bf16"), (3, "si32"), (4, "i1"), (5, "si4"), (6, "ui4")),
        *((7, "si8"), (8, "ui8"), (9, "si16"), (10, "ui16"), (11, "ui32"), (12, "si64")),
        *((13, "ui64"), (14, "f8e4m3"), (15, "f8e5m2"), (16, "f64"), (17, "cf32"), (18, "cf64")),
    ]


def test_the_bytes_of_an_archive_are_as_documented(tmp_path):
    path = tmp_path / "a.gptrsten"
    int4 = np.array([-1, 2, 3]).astype(dtypes.si4.numpy)
    write_archive(path, {"w": np.array([[1.5]], np.float32), "é": int4})
    index = (
        (2).to_bytes(4, "little")
        + (1).to_bytes(4, "little") + b"w"
        + (2).to_bytes(4, "little") + (1).to_bytes(8, "little") * 2
        + (0).to_bytes(4, "little") + b"\0" + (105).to_bytes(8, "little")
        + (4).to_bytes(8, "little")
        + (2).to_bytes(4, "little") + "é".encode()
        + (1).to_bytes(4, "little") + (3).to_bytes(8, "little")
        + (5).to_bytes(4, "little") + b"\0" + (109).to_bytes(8, "little")
        + (2).to_bytes(8, "little")
    )  # fmt: skip
    assert path.read_bytes() == (
        b"GPTRSTEN" + (2).to_bytes(4, "little") + len(index).to_bytes(4, "little") + index
        + np.float32(1.5).tobytes() + bytes([0x2F, 0x03])
    )  # fmt: skip


@pytest.mark.parametrize("suffix", [*LACKING, ".npy"])
def test_arrays_outlive_the_archive_and_an_unknown_name_is_an_error(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write_archive(path, {"x": np.arange(3)})
    archive = open_archive(path)
    for ask in (archive.type_of, archive.read):
        with pytest.raises(CheckpointError, match=f"x{suffix}` has no tensor `y`"):
            ask("y")
    array = archive.read("x")
    archive.close()
    np.testing.assert_array_equal(array, np.arange(3))


@pytest.mark.parametrize(
    ("name", "arrays", "message"),
    [
        ("x.txt", {"x": np.zeros(1)}, r"names no format of tensors; use one of \.safetensors"),
        ("x", {"x": np.zeros(1)}, "names no format"),
        ("x.npy", {}, r"holds one array, got 0; write a `\.npz` file"),
        ("x.npy", {"x": np.zeros(1), "y": np.zeros(1)}, "holds one array, got 2"),
        ("x.npy", {"x": np.zeros(1, dtypes.bf16.numpy)}, r"cannot hold `bf16\[1\]`"),
        ("x.safetensors", {"__metadata__": np.zeros(1)}, "cannot be called `__metadata__`"),
        ("x.npz", {"a\0b": np.zeros(1)}, "cannot be called"),
        ("x.npz", {"a" * 70000: np.zeros(1)}, "cannot be called"),
        ("x.gptrsten", {"\ud800": np.zeros(1)}, "has no UTF-8"),
        ("x.npz", {"\ud800": np.zeros(1)}, "has no UTF-8"),
        ("x.safetensors", {"\ud800\U0001f600": np.zeros(1)}, "has no UTF-8"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(tmp_path, name, arrays, message):
    with pytest.raises(UsageError, match=message):
        write_archive(tmp_path / name, arrays)
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_archive(tmp_path):
    path = tmp_path / "x.npz"
    write_archive(path, {"x": np.arange(3)})
    with pytest.raises(UsageError):
        write_archive(path, {"y": np.zeros(3), "z": np.zeros(1, dtypes.si4.numpy)})
    assert list(open_archive(path).names()) == ["x"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a file of tensors"),
        (b"GPTRSCHK" + bytes(20), "is not a file of tensors"),
        (b"\x80\x04K\x01.", "is a pickle, which is never read"),
        (b"GGUF\x03" + bytes(20), "is a GGUF file"),
        (None, "No such file"),
    ],
)
def test_other_files_are_no_archives(tmp_path: Path, content: bytes | None, message: str):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_archive(path)
    assert caught.value.exit_code == 3
