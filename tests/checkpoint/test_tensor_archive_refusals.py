"""Hostile and damaged archives: each is one CheckpointError, in bounded time and memory."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gptrs.checkpoint.formats import numpy_archive
from gptrs.checkpoint.formats.tensor_archive import open_archive, write_archive
from gptrs.errors import CheckpointError

START = 16 + 4 + 5 + 4 + 8 + 21
"""Where the data of a GPTRSTEN file with one tensor of one axis and a name of one letter begins."""


def _entry(  # one field of the format each
    name: bytes = b"x",
    dims: tuple[int, ...] = (2,),
    tag: int = 0,
    reserved: int = 0,
    offset: int = START,
    nbytes: int = 8,
    rank: int | None = None,
) -> bytes:
    return (
        struct.pack("<I", len(name))
        + name
        + struct.pack(f"<I{len(dims)}Q", len(dims) if rank is None else rank, *dims)
        + struct.pack("<IBQQ", tag, reserved, offset, nbytes)
    )


def _file(*entries: bytes, count: int | None = None, data: bytes = bytes(8), tail: bytes = b""):
    index = struct.pack("<I", len(entries) if count is None else count) + b"".join(entries) + tail
    return b"GPTRSTEN" + struct.pack("<II", 2, len(index)) + index + data


def _second(offset: int) -> bytes:
    return _entry(b"y", offset=offset)


TWO = 16 + 4 + 2 * 38
"""Where the data begins with two such tensors."""

HOSTILE_GPTRSTEN = {
    "a truncated header": (b"GPTRSTEN\2\0", "it ends after 10 bytes"),
    "another version": (b"GPTRSTEN" + struct.pack("<II", 3, 4) + bytes(4), "it is version 3"),
    "an index beyond the file": (
        b"GPTRSTEN" + struct.pack("<II", 2, 2**32 - 1) + bytes(4),
        "an index of 4294967295 bytes, 4 bytes follow",
    ),
    "an index without a count": (b"GPTRSTEN" + struct.pack("<II", 2, 0), "its index ends within"),
    "a huge count": (_file(_entry(), count=2**32 - 1), "its index ends within"),
    "a name beyond the index": (_file(struct.pack("<I", 2**31)), "its index ends within"),
    "a name that is not UTF-8": (_file(_entry(b"\xff")), "is not UTF-8"),
    "more index than tensors": (_file(_entry(), tail=b"?"), "1 bytes at the end of its index"),
    "two of one name": (
        _file(_entry(offset=TWO), _entry(offset=TWO + 8), data=bytes(16)),
        "two tensors are called `x`",
    ),
    "a huge rank": (_file(_entry(rank=2**32 - 1)), "has 4294967295 axes, at most 32"),
    "an unknown dtype": (_file(_entry(tag=19)), "has the dtype tag 19, known are 0 to 18"),
    "a reserved byte": (_file(_entry(reserved=1)), "has 1 in its reserved byte"),
    "dims whose product overflows": (
        _file(_entry(dims=(2**63, 2**63), nbytes=0, offset=START + 8)),
        "more than 2\\^48 elements",
    ),
    "an overflow behind a zero": (
        _file(_entry(dims=(0, 2**63, 2**63), nbytes=0, offset=START + 16)),
        "more than 2\\^48 elements",
    ),
    "a length that does not fit": (_file(_entry(nbytes=7)), "takes 8 bytes, the index gives 7"),
    "data beyond the file": (_file(_entry(), data=bytes(7)), "ends at byte 66, the file at 65"),
    "an offset near 2^64": (_file(_entry(offset=2**64 - 4)), "bytes before it belong to no tensor"),
    "data in the index": (_file(_entry(offset=16)), "overlaps what ends at 58"),
    "tensors that overlap": (
        _file(_entry(offset=TWO), _second(TWO + 4), data=bytes(16)),
        "tensor `y`: its data at byte 100 overlaps what ends at 104",
    ),
    "a hole": (
        _file(_entry(offset=START + 4096), data=bytes(4104)),
        "4096 bytes before it belong to no tensor",
    ),
    "a long tail": (_file(_entry(), data=bytes(8 + 4096)), "4096 bytes at its end"),
}


@pytest.mark.parametrize("what", HOSTILE_GPTRSTEN)
def test_a_malformed_index_is_refused_when_the_file_is_opened(tmp_path, what):
    data, message = HOSTILE_GPTRSTEN[what]
    path = tmp_path / "x.gptrsten"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        open_archive(path)


def test_padding_between_tensors_is_allowed(tmp_path):
    path = tmp_path / "x.gptrsten"
    data = bytes(60) + np.ones(2, np.float32).tobytes() + bytes(100)
    path.write_bytes(_file(_entry(offset=START + 60), data=data))
    np.testing.assert_array_equal(open_archive(path).read("x"), np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("tag", "dims", "data", "message"),
    [
        (4, (2,), b"\1\2", "an element of i1 is neither 0 nor 1"),
        (5, (3,), b"\0\x10", "the unused half of the last byte must be 0"),
    ],
)
def test_elements_that_the_dtype_does_not_have_are_refused(tmp_path, tag, dims, data, message):
    path = tmp_path / "x.gptrsten"
    path.write_bytes(_file(_entry(dims=dims, tag=tag, nbytes=len(data)), data=data))
    archive = open_archive(path)
    with pytest.raises(CheckpointError, match=message):
        archive.read("x")


@pytest.mark.parametrize("suffix", [".gptrsten", ".safetensors", ".npz", ".npy"])
def test_a_file_that_shrinks_after_it_was_opened_is_an_error(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write_archive(path, {"x": np.arange(100_000)})
    archive = open_archive(path)
    with path.open("r+b") as file:
        file.truncate(50_000)
    with pytest.raises(CheckpointError):
        archive.read("x")


@pytest.mark.filterwarnings("ignore::UserWarning")  # NumPy on headers that Python 2 might write
@pytest.mark.parametrize("suffix", [".gptrsten", ".safetensors", ".npz", ".npy"])
def test_every_truncation_and_many_changed_bytes_are_an_error_or_an_array(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write_archive(path, {"x": np.arange(6, dtype=np.float32), "i": np.arange(2)} if suffix != ".npy"
                  else {"x": np.arange(6, dtype=np.float32)})  # fmt: skip
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [sound[:length] for length in range(len(sound))]
    for _ in range(400):
        changed = bytearray(sound)
        for position in rng.integers(0, len(sound), rng.integers(1, 4)):
            changed[position] = int(rng.integers(256))
        damaged.append(bytes(changed))
    refused = sum(_is_refused(path, data) for data in damaged)
    assert refused > len(sound) // 2


def _is_refused(path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    try:
        archive = open_archive(path)
    except CheckpointError:
        return True
    try:
        for name in archive.names():
            archive.read(name)
    except CheckpointError:
        return True
    finally:
        archive.close()
    return False


def _npy(array: np.ndarray, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def _npy_header(text: str, version: bytes = b"\1\0", data: bytes = b"") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode() + data


HOSTILE_NPY = {
    "objects": (
        _npy(np.array([{}, 1], object), allow_pickle=True),
        "array of Python objects, which are never read",
    ),
    "strings": (_npy(np.array(["a"])), "has no PTIR counterpart"),
    "bytes for bf16": (_npy(np.zeros(2, "V2")), "NumPy files do not record dtypes such as bf16"),
    "records": (_npy(np.zeros(2, [("a", "f4")])), "has no PTIR counterpart"),
    "a missing element": (_npy(np.zeros(3))[:-8], r"`f64\[3\]` takes 24 bytes, 16 follow"),
    "an element too many": (_npy(np.zeros(3)) + bytes(8), "takes 24 bytes, 32 follow"),
    "a bool of 2": (_npy(np.array([True]))[:-1] + b"\2", "neither 0 nor 1"),
    "a negative dim": (
        _npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}\n"),
        "needs dims >= 0",
    ),
    "a huge shape": (
        _npy_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62}, 2)}}\n"),
        "more than 2\\^48 elements",
    ),
    "a deep header": (_npy_header("(" * 9000), "x.npy"),
    "code in the header": (_npy_header("__import__('os').abort()"), "x.npy"),
    "an unknown version": (_npy_header("{}", version=b"\3\0"), "version 3.0 of the format"),
    "no header": (b"\x93NUMPY", "x.npy"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("what", HOSTILE_NPY)
@pytest.mark.parametrize("form", [".npy", ".npz"])
def test_a_malformed_array_is_refused(tmp_path, what, form):
    data, message = HOSTILE_NPY[what]
    path = tmp_path / f"x{form}"
    if form == ".npy":
        path.write_bytes(data)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", data)
    opened = open_archive(path)
    with pytest.raises(CheckpointError, match=message.replace("x.npy", "tensor `x`")) as caught:
        opened.read("x")
    assert len(str(caught.value)) < 800


def test_a_bomb_is_refused_before_it_unfolds(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros(1_000_000, np.uint8))
    assert path.stat().st_size < 2000
    assert open_archive(path).read("x").nbytes == 1_000_000
    monkeypatch.setattr(numpy_archive, "MAX_INFLATED", 999_999)
    with pytest.raises(CheckpointError, match="unfold to 1000128, at most 999999 can be read"):
        open_archive(path).read("x")


@pytest.mark.parametrize("field", ["size", "compressed size"])
def test_a_size_that_is_declared_only_allocates_nothing(tmp_path, field):
    path = tmp_path / "x.npz"
    header = _npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,)}\n")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header)
    data = bytearray(path.read_bytes())
    directory = data.rindex(b"PK\1\2")
    declared = struct.pack("<I", 4_000_000_000 + len(header))
    data[directory + 24 : directory + 28] = declared
    if field == "compressed size":
        data[directory + 20 : directory + 24] = declared
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"it declares .* at most"):
        open_archive(path).read("x")


def _zip(path: Path, method: int = zipfile.ZIP_STORED, names: tuple[str, ...] = ("x.npy",)) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name in names:
            archive.writestr(name, _npy(np.zeros(4)))
    return path


def test_what_numpy_does_not_write_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(CheckpointError, match=r"holds `readme\.txt`, which is not a `\.npy` file"):
        open_archive(_zip(path, names=("x.npy", "readme.txt")))
    with pytest.raises(CheckpointError, match="compressed by the method 14"):
        open_archive(_zip(path, zipfile.ZIP_LZMA)).read("x")
    data = bytearray(_zip(path).read_bytes())
    data[6] |= 1  # encrypted
    data[data.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="encrypted"):
        open_archive(path).read("x")


def test_two_arrays_of_one_name_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    data = _zip(path, names=("x.npy", "y.npy")).read_bytes()
    path.write_bytes(data.replace(b"y.npy", b"x.npy"))
    with pytest.raises(CheckpointError, match="two of its arrays are called `x`"):
        open_archive(path)


def test_a_changed_element_is_found_by_its_checksum(tmp_path):
    path = tmp_path / "x.npz"
    write_archive(path, {"x": np.full(1000, 1.5)})
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="CRC"):
        open_archive(path).read("x")


def test_a_directory_of_millions_of_entries_is_not_read(tmp_path):
    path = tmp_path / "x.npz"
    entry = (
        struct.pack("<4s6H3I5H2I", b"PK\1\2", *(0,) * 6, *(0,) * 3, 5, *(0,) * 4, 0, 0) + b"x.npy"
    )
    directory = entry * 100_000
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, len(directory), 4, 0)
    path.write_bytes(b"PK\3\4" + directory + end)
    with pytest.raises(CheckpointError, match="directory takes more than 4194304 bytes"):
        open_archive(path)
