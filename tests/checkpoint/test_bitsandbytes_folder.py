"""Folders that bitsandbytes rounded: each element by its formula, and as the library has it."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from fuzzing.byte_mutations import mutated
from gptrs.checkpoint.params import Params
from gptrs.errors import CheckpointError, GptrsError, ModelError
from gptrs_backend_ref.backend import create
from gptrs_conformance.program_generator.dice import Dice
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.model_source import ModelSource

NAME = "a.proj.weight"
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = tuple(sign * each / 12 for sign in (1, -1) for each in (0, 0.0625, 8, 12, 4, 6, 2, 3))
TABLES = {"nf4": NF4, "fp4": FP4}
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
CASES = [
    ("nf4", "bfloat16", (16, 64), 64, None),
    ("nf4", "float16", (16, 64), 64, 4),
    ("fp4", "float32", (16, 64), 32, None),
    ("fp4", "bfloat16", (5, 26), 64, 2),  # blocks go over rows, the last ones are not full
]
Tensors = dict[str, np.ndarray]
WORDS = (b"U8", b"F32", b"shape", b"bfloat16", b"nf4", b"-1", b"99999999999")


def four_bits(
    kind: str, dtype: str, shape: tuple[int, int], block: int, nested: int | None
) -> Tensors:
    """Tensors with drawn codes and scales, as the library stores them."""
    draw = np.random.default_rng(0)
    count = shape[0] * shape[1]
    blocks = -(-count // block)
    state = {"quant_type": kind, "blocksize": block, "dtype": dtype, "shape": shape}
    tensors = {
        NAME: draw.integers(0, 256, (count // 2, 1), np.uint8),
        f"{NAME}.quant_map": np.array(TABLES[kind], np.float32),
        f"{NAME}.absmax": draw.uniform(0.01, 0.1, blocks).astype(np.float32),
    }
    if nested is not None:
        state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": 0.03}
        above = draw.uniform(0.01, 0.02, -(-blocks // nested)).astype(np.float32)
        tensors[f"{NAME}.absmax"] = draw.integers(0, 256, blocks, np.uint8)
        tensors[f"{NAME}.nested_absmax"] = above
        tensors[f"{NAME}.nested_quant_map"] = np.linspace(-1, 1, 256, dtype=np.float32)
    return with_state(tensors, kind, state)


def with_state(tensors: Tensors, kind: str, state: object) -> Tensors:
    data = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return {**tensors, f"{NAME}.quant_state.bitsandbytes__{kind}": data}


def eight_bits() -> Tensors:
    draw = np.random.default_rng(1)
    return {
        NAME: draw.integers(-127, 128, (16, 64)).astype(np.int8),
        "a.proj.SCB": draw.uniform(0.1, 1, 16).astype(np.float32),
        "a.proj.weight_format": np.array(0, np.uint8),
    }


def saved(folder: Path, tensors: Tensors, **settings: object) -> ModelSource:
    folder.mkdir(exist_ok=True)
    config = {"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}}
    (folder / "config.json").write_text(json.dumps(config | settings), encoding="utf-8")
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")
    return find_model(folder)


def element(tensors: Tensors, place: int, block: int, nested: int | None) -> np.float32:
    byte = int(tensors[NAME].reshape(-1)[place // 2])
    code = byte >> 4 if place % 2 == 0 else byte & 15
    scale = tensors[f"{NAME}.absmax"][place // block]
    if nested is not None:
        above = tensors[f"{NAME}.nested_absmax"][place // block // nested]
        scale = tensors[f"{NAME}.nested_quant_map"][scale] * above + np.float32(0.03)
    return tensors[f"{NAME}.quant_map"][code] * scale


@pytest.mark.parametrize(("kind", "dtype", "shape", "block", "nested"), CASES)
def test_elements_of_four_bits(
    tmp_path: Path, kind: str, dtype: str, shape: tuple[int, int], block: int, nested: int | None
) -> None:
    tensors = four_bits(kind, dtype, shape, block, nested)
    weights = saved(tmp_path, tensors).weights
    assert weights.names() == (NAME,)
    found = weights.load(NAME)
    every = [element(tensors, at, block, nested) for at in range(shape[0] * shape[1])]
    wanted = np.array(every, np.float32).reshape(shape).astype(TYPES[dtype])
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()
    assert weights.type_of(NAME).shape == shape
    part = weights.read_slice(NAME, (slice(1, 3), slice(2, 9)))
    np.testing.assert_array_equal(part, wanted[1:3, 2:9])


@pytest.mark.parametrize(("kind", "dtype", "shape", "block", "nested"), CASES)
def test_four_bits_are_those_of_the_library(
    tmp_path: Path, kind: str, dtype: str, shape: tuple[int, int], block: int, nested: int | None
) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("bitsandbytes", reason="the oracle of its own format")
    tensors = four_bits(kind, dtype, shape, block, nested)
    found = saved(tmp_path, tensors).weights.load(NAME)
    given = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
    codes = given.pop(NAME)
    state = library.functional.QuantState.from_dict(given, "cpu")
    theirs = library.functional.dequantize_4bit(codes, state).float().numpy()
    # The code 8 of fp4 is -0 in the table of the library, 0 in that of files.
    assert (found.astype(np.float32) + np.float32(0)).tobytes() == (theirs + 0).tobytes()


def test_elements_of_eight_bits(tmp_path: Path) -> None:
    tensors = eight_bits()
    weights = saved(tmp_path, tensors).weights
    assert weights.names() == (NAME,)
    rows = tensors["a.proj.SCB"][:, None]
    wanted = tensors[NAME].astype(np.float32) * rows * np.float32(7.874015718698502e-3)
    assert weights.load(NAME).tobytes() == wanted.tobytes()
    as_stored = Params(weights, backend=create()).tensor(NAME).numpy()
    np.testing.assert_allclose(as_stored, wanted, rtol=2e-7)
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("bitsandbytes", reason="the oracle of its own format")
    codes, scales = (torch.from_numpy(tensors[name]) for name in (NAME, "a.proj.SCB"))
    theirs = library.functional.int8_vectorwise_dequant(codes, scales).numpy()
    assert theirs.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (f"{NAME}.quant_map", np.zeros(15, np.float32), r"is `f32\[15\]`, not `f32\[16\]`"),
        (f"{NAME}.absmax", np.zeros(4, np.float32), r"not `ui8\[16\]`"),
        (f"{NAME}.nested_absmax", np.zeros(3, np.float32), r"not `f32\[4\]`"),
        (f"{NAME}.nested_quant_map", None, "comes without"),
        (NAME, np.zeros((511, 1), np.uint8), r"stands for \[16, 64\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, array: np.ndarray | None, message: str
) -> None:
    tensors = four_bits("nf4", "float16", (16, 64), 64, 4)
    del tensors[name]
    if array is not None:
        tensors[name] = array
    weights = saved(tmp_path, tensors).weights
    with pytest.raises(CheckpointError, match=message):
        weights.load(NAME)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"blocksize": 0}, "blocksize"),
        ({"nested_blocksize": 1 << 62}, r"not `f32\[1\]`"),
        ({"dtype": "int8"}, "dtype"),
        ({"shape": [1 << 40, 1 << 40]}, "stands for"),
        ({"shape": []}, "shape"),
        ({"nested_offset": "a"}, "nested_offset"),
        ({"nested_dtype": "float16"}, "nested_dtype"),
        ({"quant_type": "af4"}, "quant_type"),
    ],
    ids=str,
)
def test_states_that_do_not_fit_are_refused(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    tensors = four_bits("nf4", "float16", (16, 64), 64, 4)
    state = json.loads(tensors[f"{NAME}.quant_state.bitsandbytes__nf4"].tobytes())
    weights = saved(tmp_path, with_state(tensors, "nf4", state | changed)).weights
    with pytest.raises(CheckpointError, match=message):
        weights.type_of(NAME)


def test_weights_of_other_orders_and_kinds_are_refused(tmp_path: Path) -> None:
    tensors = eight_bits() | {"a.proj.weight_format": np.array(2, np.uint8)}
    with pytest.raises(CheckpointError, match=r"not by rows.*save it again"):
        saved(tmp_path / "order", tensors).weights.load(NAME)
    with pytest.raises(ModelError, match=r"`gpt2` that bitsandbytes rounded.*--weights q8"):
        saved(tmp_path / "kind", eight_bits(), model_type="gpt2")


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "m" / "model.safetensors"
    for tensors in (four_bits("nf4", "float16", (16, 64), 64, 4), eight_bits()):
        saved(tmp_path / "m", tensors)
        whole = path.read_bytes()
        for seed in range(150):
            path.write_bytes(mutated(Dice(seed), whole, whole, WORDS))
            try:
                weights = find_model(path.parent).weights
                for name in weights.names():
                    weights.load(name)
            except GptrsError:
                continue
