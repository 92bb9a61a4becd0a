"""Weights of bf16 and f16 stay two bytes wide, from the file to the registers of the kernels."""

from __future__ import annotations

import gc
import json
from importlib.resources import files
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs import functionals as F
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.ir import Program, dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.symbolic_dim import evaluated, symbols_of
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.page_buffers import PagedTexts
from gptrs_backend_numba.backend import NumbaBackend, create
from gptrs_backend_numba.memory import Arena, address_of
from gptrs_backend_numba.packing import PACKED_WEIGHTS, Layout
from gptrs_backend_numba.run.executable import NumbaExecutable
from gptrs_runtime.loaded_model import LoadedModel

NARROW = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
Compiled = list[tuple[Program, NumbaExecutable]]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """What the backend compiles in a test."""
    found: Compiled = []
    for name in ("compile", "compile_symbolic"):
        _spy(monkeypatch, name, found)
    return found


def _spy(monkeypatch: pytest.MonkeyPatch, name: str, found: Compiled) -> None:
    compile_ = getattr(NumbaBackend, name)

    def spy(self: NumbaBackend, program: Program, *given: object) -> NumbaExecutable:
        executable = compile_(self, program, *given)
        found.append((program, executable))
        return executable

    monkeypatch.setattr(NumbaBackend, name, spy)


def widened_elements(program: Program) -> int:
    """Elements that the largest cast of a program gives; each of its symbols stands for 40."""
    bodies = [function.body for function in program.functions]
    made = [each for body in bodies for each in body.instructions if isinstance(each.op, Cast)]
    sizes = [each.result.type.size for each in made]
    forty = dict.fromkeys(symbols_of(sizes), 40)
    return max((evaluated(size, forty) for size in sizes), default=0)


def packed_sizes(executable: NumbaExecutable) -> set[int]:
    """Bytes an element takes in the panels that an executable reads."""
    layouts = [packing.layout for packing in executable.schedule.packings]
    return {layout.size for layout in layouts if isinstance(layout, Layout)}


def weight(array: np.ndarray, backend: NumbaBackend, key: int) -> Tensor:
    """A parameter that programs convert to f32."""
    parameter = Parameter(TensorType.of(array), key, "w", lambda: array, backend)
    return F.cast(Tensor.of_parameter(parameter), dtypes.f32)


def values(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
    """Of every size that f16 has, subnormal numbers among them."""
    random = np.random.default_rng(sum(shape))
    return (random.standard_normal(shape) * 2.0 ** random.integers(-22, 3, shape)).astype(dtype)


def require_close(found: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    """`found` is x @ w to 1e-5 of the products that are added."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    assert (np.abs(found - x @ w) <= 1e-5 * (np.abs(x) @ np.abs(w))).all()


@pytest.mark.paths
@pytest.mark.parametrize("layout", ["out_in", "in_out"])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 13, 50])
@pytest.mark.parametrize("dtype", NARROW)
def test_layers_read_panels_of_two_bytes(
    dtype: str, rows: int, layout: str, compiled: Compiled
) -> None:
    w = values((129, 75) if layout == "out_in" else (75, 129), NARROW[dtype])
    x = values((rows, 75), np.dtype(np.float32))
    parameter = weight(w, create(1), 1)
    gc.collect()
    before = PACKED_WEIGHTS.nbytes
    step = gptrs.jit(lambda x: F.linear(x, parameter, layout=layout))
    found = step(gptrs.tensor(x)).numpy()
    require_close(found, x, w.T if layout == "out_in" else w)
    (program, executable), *_ = [each for each in compiled if each[1].schedule.packings]
    assert not widened_elements(program)
    assert packed_sizes(executable) == {2}
    assert 0 < PACKED_WEIGHTS.nbytes - before < 2 * (129 + 32) * 75


@pytest.mark.paths
@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("dtype", NARROW)
def test_a_tied_embedding_lies_in_its_file_alone(dtype: str, rows: int, compiled: Compiled) -> None:
    table = values((16_400, 40), NARROW[dtype])
    parameter = weight(table, create(1), 2)
    gc.collect()
    before = PACKED_WEIGHTS.nbytes

    def scores(ids: Tensor) -> Tensor:
        return F.linear(F.embedding(ids, parameter), parameter)

    ids = np.arange(rows) * 1000
    found = gptrs.jit(scores)(gptrs.tensor(ids)).numpy()
    require_close(found, table[ids], table.T)
    assert before == PACKED_WEIGHTS.nbytes
    program, executable = compiled[-1]
    assert widened_elements(program) == rows * 40
    assert executable.schedule.scratch < table.nbytes // 8 + 4 * rows * 16_400, "no copy of it"


def test_a_weight_that_is_read_as_it_is_too_is_widened_for_that_alone(compiled: Compiled) -> None:
    w = values((64, 64), NARROW["bf16"])
    parameter = weight(w, create(1), 3)
    x = values((3, 64), np.dtype(np.float32))
    step = gptrs.jit(lambda x: (F.linear(x, parameter), F.exp(parameter)))
    product, read = step(gptrs.tensor(x))
    require_close(product.numpy(), x, w.T)
    np.testing.assert_allclose(read.numpy(), np.exp(w.astype(np.float32)), rtol=1e-6)
    assert packed_sizes(compiled[-1][1]) == {2}


def saved(folder: Path, dtype: np.dtype[np.generic], rounded: np.dtype[np.generic]) -> Path:
    """The bundled model with weights rounded to a type and saved in another one."""
    demo = files("gptrs_models") / "demo"
    folder.mkdir()
    (folder / "config.json").write_text((demo / "config.json").read_text())
    weights = load_file(str(demo / "model.safetensors"))
    narrow = {name: array.astype(rounded).astype(dtype) for name, array in weights.items()}
    save_file(narrow, folder / "model.safetensors")
    return folder


def logits(model: LoadedModel) -> list[np.ndarray]:
    """Of a whole text, and of a step after it."""
    tokens = (np.arange(40, dtype=np.int64)[None] * 7) % 300
    texts = PagedTexts(model.causal_lm(), 1, 64)
    return [model.forward(tokens), texts.append(tokens), texts.append(tokens[:, :1])]


@pytest.mark.parametrize("dtype", NARROW)
def test_a_model_computes_what_its_widened_weights_give(
    dtype: str, tmp_path: Path, compiled: Compiled
) -> None:
    narrow = saved(tmp_path / "narrow", NARROW[dtype], NARROW[dtype])
    wide = saved(tmp_path / "wide", np.dtype(np.float32), NARROW[dtype])
    gc.collect()
    before = PACKED_WEIGHTS.nbytes
    model = gptrs.load_model(narrow, "numba", 2)
    found = logits(model)
    packed = PACKED_WEIGHTS.nbytes - before
    programs = [each for each in compiled if each[1].schedule.packings]
    assert len(programs) == 3
    width = json.loads((narrow / "config.json").read_text())["n_embd"]
    for program, executable in programs:
        assert packed_sizes(executable) == {2}
        assert widened_elements(program) <= 40 * width, "rows of the embeddings"
    other = gptrs.load_model(wide, "numba", 2)
    for got, want in zip(found, logits(other), strict=True):
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    assert PACKED_WEIGHTS.nbytes - before - packed == 2 * packed, "f32 takes twice as much"


def test_biases_and_norms_are_widened_when_they_are_loaded(tmp_path: Path) -> None:
    model = gptrs.load_model(saved(tmp_path / "m", NARROW["bf16"], NARROW["bf16"]), "numba", 1)
    found: dict[int, set[DType]] = {}
    for _, tensor in model.causal_lm().named_tensors():  # type: ignore[attr-defined]
        source = tensor.source
        leaf = source if isinstance(source, Parameter) else source.node.operands[0]
        found.setdefault(leaf.type.rank, set()).add(leaf.type.dtype)
    assert found == {1: {dtypes.f32}, 2: {dtypes.bf16}}


def test_pieces_of_an_arena_are_apart_and_a_block_goes_with_its_last_piece() -> None:
    arena = Arena()
    pieces = [arena.aligned(nbytes) for nbytes in (1, 100, 3 << 20, 64, (16 << 20) + 1)]
    for number in range(len(pieces)):
        pieces[number][:] = number
    assert all(address_of(piece) % 64 == 0 for piece in pieces)
    assert all((piece == number).all() for number, piece in enumerate(pieces))
    *small, large = pieces
    bases = [piece.base for piece in small]
    assert all(base is bases[0] for base in bases)
    assert large.base is not bases[0], "it would leave too much of a block unused"
    many = [arena.aligned(16 << 20) for _ in range(4)]
    assert many[-1].base is not bases[0]
    assert many[0].base is bases[0]
    block = arena._block
    del many, small, large, pieces, bases
    assert block() is None
    assert arena.aligned(8).nbytes == 8
