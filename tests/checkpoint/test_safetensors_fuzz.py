"""Mutated safetensors files: a sound read or a GptrsError, nothing else, in bounded time."""

from __future__ import annotations

import random
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from gptrs.checkpoint.safetensors import SafetensorsFile
from gptrs.errors import GptrsError

MUTATIONS = 2000
SEEDS = [
    {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(True)},
    {"h.0.w": np.ones((2, 2), ml_dtypes.bfloat16), "e": np.zeros((0, 3)), "i": np.arange(3)},
    {"s": np.array(1.5, np.float16)},
]
TOKENS = [
    b"0", b"-1", b"1e999", b"NaN", b"18446744073709551615", b"null", b"true", b"[", b"]", b"{",
    b"}", b",", b":", b'"', b"\\", b"\\ud800", b"BOOL", b"F64", b"I8", b"shape", b"dtype", b"\0",
    b"__metadata__", b"[[[[[[[[", b"4294967296", b"2.0", b" ",
]  # fmt: skip


def _mutated(rng: random.Random, content: bytes) -> bytes:
    result = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(result)) if result else 0
        match rng.randrange(6):
            case 0:
                result[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del result[at:]
            case 2:
                del result[at : at + rng.randint(1, 8)]
            case 3:
                result[at:at] = rng.choice(TOKENS)
            case 4:
                token = rng.choice(TOKENS)
                result[at : at + len(token)] = token
            case _:
                other = rng.randrange(len(result)) if result else 0
                result[at:at] = result[other : other + rng.randint(1, 40)]
    if rng.random() < 0.5 and len(result) >= 8:  # let the header length fit, so that JSON is read
        end = result.rfind(b"}") + 1
        result[:8] = max(end - 8, 0).to_bytes(8, "little")
    return bytes(result)


def _read_all(path: Path) -> int:
    with SafetensorsFile.open(path) as file:
        for name, entry in file.entries.items():
            array = file.read(name)
            assert array.nbytes == entry.nbytes
            assert array.shape == entry.shape
            array.tobytes()  # touches every page
        return len(file.entries)


def test_mutations(tmp_path: Path) -> None:
    rng = random.Random(20240)
    path = tmp_path / "x.safetensors"
    contents = [save(arrays) for arrays in SEEDS]
    messages: list[str] = []
    start = time.perf_counter()
    for _ in range(MUTATIONS):
        path.write_bytes(_mutated(rng, rng.choice(contents)))
        try:
            _read_all(path)
        except GptrsError as error:
            messages.append(str(error))
    assert time.perf_counter() - start < 60
    assert MUTATIONS - len(messages) > 20, "the mutations should leave some files sound"
    assert max(map(len, messages)) < 700
    # Each kind of check was reached, so that the mutations are not all refused at the first one.
    for kind in ("header of", "usable JSON", "`shape`", "`data_offsets`", "belong to", "BOOL"):
        assert any(kind in message for message in messages), kind


@pytest.mark.parametrize("arrays", SEEDS)
def test_the_unchanged_files_are_sound(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(save(arrays))
    assert _read_all(path) == len(arrays)
