"""Damaged and hostile safetensors files: each is one CheckpointError that names file and cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoint.raw_files import F32_PAIR, raw_bytes, write_raw
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.errors import CheckpointError


def _one(**changes: object) -> dict[str, object]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


def _refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFile.open(path)
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    assert len(message) < 600
    return message


TWICE = b'{"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "x": {}}'
HEADERS: list[tuple[object, bytes, str]] = [
    (_one(shape=[3]), bytes(8), "tensor `x`: f32[3] takes 12 bytes, `data_offsets` give 8"),
    (_one(dtype="F16"), bytes(8), "f16[2] takes 4 bytes"),
    (_one(shape=[]), bytes(8), "f32[] takes 4 bytes"),
    (_one(data_offsets=[0, 12]), bytes(8), "do not lie in the 8 bytes of data"),
    (_one(data_offsets=[8, 0]), bytes(8), "do not lie in"),
    (_one(data_offsets=[2**64, 2**64 + 8]), bytes(8), "do not lie in"),
    (_one(data_offsets=[-8, 0]), bytes(8), "`data_offsets[0]` must be an integer >= 0, found `-8`"),
    (_one(data_offsets=[0]), bytes(8), "`data_offsets` must be a list of length 2, found `[0]`"),
    (_one(data_offsets="08"), bytes(8), "`data_offsets` must be a list, found `'08'`"),
    (_one(data_offsets=[0, 8.0]), bytes(8), "`data_offsets[1]` must be an integer, found `8.0`"),
    (_one(data_offsets=[False, 8]), bytes(8), "must be an integer, found `False`"),
    (_one(shape=[-2]), bytes(8), "tensor `x`: `shape[0]` must be an integer >= 0, found `-2`"),
    (_one(shape=[2.0]), bytes(8), "must be an integer, found `2.0`"),
    (_one(shape=[True, 2]), bytes(8), "must be an integer, found `True`"),
    (_one(shape=2), bytes(8), "`shape` must be a list, found `2`"),
    (_one(shape=[1] * 33), bytes(8), "has 33 axes"),
    (_one(shape=[2**32, 2**32]), bytes(8), "more than 2^48 elements"),
    (_one(shape=[2**63, 2**63, 0], data_offsets=[0, 0]), b"", "more than 2^48 elements"),
    (_one(shape=[10**300]), bytes(8), "more than 2^48 elements"),
    (_one(dtype=7), bytes(8), "`dtype` must be a string, found `7`"),
    (_one(extra=1), bytes(8), "tensor `x` has an unknown field `extra`"),
    ({"x": {"dtype": "F32", "shape": [2]}}, bytes(8), "tensor `x` needs `data_offsets`"),
    ({"x": [0, 8]}, bytes(8), "tensor `x` must be an object, found `[0, 8]`"),
    ({"__metadata__": {"a": 1}}, b"", "`__metadata__`: `a` must be a string, found `1`"),
    ({"__metadata__": "a"}, b"", "`__metadata__` must be an object, found `'a'`"),
    (_one(), bytes(9), "1 bytes at its end belong to no tensor"),
    ({}, bytes(3), "3 bytes at its end belong to no tensor"),
    (_one(data_offsets=[4, 12]), bytes(12), "tensor `x`: 4 bytes before it belong to no tensor"),
    (
        _one() | {"y": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        bytes(12),
        "tensor `y`: overlaps tensor `x`",
    ),
    (
        _one() | {"y": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
        bytes(8),
        "tensor `y`: overlaps tensor `x`",
    ),
    (
        _one() | {"y": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}},
        bytes(8),
        "tensor `y`: overlaps tensor `x`",
    ),
    (TWICE, bytes(1), "the key `x` occurs twice"),
    (b'{"x": NaN}', b"", "`NaN` is not a JSON number"),
    (b'{"x": 1e999}', b"", "out of range"),
    (b'{"x": ' + b"[" * 100_000, b"", "levels deep"),
    (b" {}", b"", "does not start with `{`"),
    (b"[]", b"", "does not start with `{`"),
    (b"", b"", "does not start with `{`"),
    (b'{"x": ', b"", "not usable JSON"),
]


@pytest.mark.parametrize(("header", "data", "problem"), HEADERS)
def test_headers(tmp_path: Path, header: object, data: bytes, problem: str) -> None:
    assert problem in _refusal(write_raw(tmp_path / "x.safetensors", header, data))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has 0 bytes"),
        (b"\0" * 7, "has 7 bytes"),
        (raw_bytes({}, length=3), "declares a header of 3 bytes, but has only 2"),
        (raw_bytes({}, length=100_000_001), "the limit is 100000000"),
        (b"\xff" * 8 + b"{}", "the limit is 100000000"),
        (b"PK\3\4" + bytes(100), "bytes, but has only 96 after"),
    ],
)
def test_lengths(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    assert problem in _refusal(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = raw_bytes(F32_PAIR, bytes(20))
    path = tmp_path / "x.safetensors"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        _refusal(path)


def test_bools_that_are_neither_0_nor_1(tmp_path: Path) -> None:
    header = {"x": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}
    path = write_raw(tmp_path / "x.safetensors", header, b"\0\1\2")
    with pytest.raises(CheckpointError, match="tensor `x`: an element of BOOL is neither 0 nor 1"):
        SafetensorsFile.open(path).read("x")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "No such file" in _refusal(tmp_path / "absent.safetensors")
    assert "is a folder" in _refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert "is a device, pipe or socket" in _refusal(tmp_path / "pipe.safetensors")
    loop = tmp_path / "loop.safetensors"
    loop.symlink_to(loop)
    _refusal(loop)
    with pytest.raises(CheckpointError):
        SafetensorsFile.open("nul\0.safetensors")


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_file_truncated_while_it_is_mapped(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {name: np.ones(100_000, np.float32) for name in ("a", "b")}
    save_file(arrays, path)
    file = SafetensorsFile.open(path)
    assert file.read("a").sum() == 100_000
    os.truncate(path, size)
    with pytest.raises(CheckpointError) as caught:
        file.read("b")
    assert "tensor `b`: the file had 8" in str(caught.value)
    assert f"now {size}; load the model again" in str(caught.value)


def test_truncation_does_not_kill_the_process(tmp_path: Path) -> None:
    script = """
import os, sys
import numpy as np
from safetensors.numpy import save_file
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.errors import CheckpointError
path = sys.argv[1]
save_file({"a": np.ones(1 << 20, np.float32)}, path)
file = SafetensorsFile.open(path)
os.truncate(path, 4096)
try:
    file.read("a").sum()
except CheckpointError:
    print("refused")
"""
    command = [sys.executable, "-c", script, str(tmp_path / "x.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_a_sparse_giant_is_refused_or_mapped_without_memory(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x.safetensors", {})
    os.truncate(path, 1 << 40)
    assert "bytes at its end belong to no tensor" in _refusal(path)
