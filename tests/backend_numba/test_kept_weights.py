"""Packed weights of a model are mapped by the next one that reads the same file."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gptrs
from fuzzing import tiny_gguf
from gptrs.backend import weight_identity
from gptrs.backend.contract import InputRole
from gptrs.backend.weight_identity import WeightFile, WeightIdentity
from gptrs.capture.parameter import Parameter
from gptrs.checkpoint.formats.gguf import GgufFile, open_header
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.params import Params
from gptrs.checkpoint.quantized_tensor import Part
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.backend import create
from gptrs_backend_numba.kept_weights import weight_store as weight_store_module
from gptrs_backend_numba.kept_weights.weight_store import WeightStore, weight_store
from gptrs_backend_numba.packing import PACKED_WEIGHTS, Layout
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.quantizing import quantizing_source
from gptrs_runtime.quantizing.tensor_rounding import RoundedTensor
from runtime import tiny_resnet
from runtime.generation.tiny_lms import save_tiny_lm
from runtime.tiny_gpt2 import save_tiny_gpt2

TOKENS = np.array([[5, 1, 7, 7, 3]])
SIZES = {"n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 32}
"""Matrices of 256 KiB and more."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightStore]:
    """An empty store, and files that were just written count as old."""
    monkeypatch.setattr(weight_identity, "_SETTLED_NS", -1 << 62)
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GPTRS_WEIGHT_CACHE_BYTES", str(1 << 30))
    weight_store.cache_clear()
    yield weight_store()
    weight_store().writer.end(1)
    weight_store.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_gpt2(tmp_path / "m", **SIZES)


def load(folder: Path, budget: str = "off") -> LoadedModel:
    return gptrs.load_model(folder, "numba", threads=1, weight_budget=budget)


def logits(folder: Path, budget: str = "off") -> bytes:
    """The logits of a new model, whose forms are all on disk afterwards."""
    model = load(folder, budget)
    result = model.forward(TOKENS).tobytes()
    weight_store().writer.finish()
    return result


def note_reads(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the tensors that are read from now on, or looked at, and their bytes."""
    seen: dict[str, int] = {}

    def noted(original: Callable[[MappedTensors, str], np.ndarray]) -> Callable[..., np.ndarray]:
        def noting(self: MappedTensors, name: str) -> np.ndarray:
            array = original(self, name)
            seen[name] = array.nbytes
            return array

        return noting

    for method in ("read", "view"):
        monkeypatch.setattr(MappedTensors, method, noted(getattr(MappedTensors, method)))
    return seen


def forbid_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(self: Layout, array: np.ndarray, threads: int) -> np.ndarray:
        raise AssertionError(f"{self} is packed")

    monkeypatch.setattr(Layout, "packed", packed)


def test_the_second_model_packs_nothing(store, folder, monkeypatch):
    first = logits(folder)
    written = store.written
    assert written.count >= 4 * SIZES["n_layer"]
    forbid_packing(monkeypatch)
    assert logits(folder) == first
    assert store.written == written


@pytest.mark.exhaustive
@pytest.mark.long
def test_parts_of_quantized_weights_are_kept_in_the_form_that_is_read(store, tmp_path, monkeypatch):
    """Of a first model, nothing but panels and the table of tokens; the second one decodes none."""
    monkeypatch.setattr(weight_store_module, "LEAST", 1)
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf.llama(("Q4_0",), width=256))
    first = logits(path)
    with open_header(path) as (_, header):
        matrices = sum(tensor.type.format is not None for tensor in header.tensors)
    written = 2 * matrices + 2
    assert store.written.count == written, "codes and scales as panels, those of the table by rows"

    def forbidden(self: GgufFile, name: str, part: Part) -> np.ndarray:
        raise AssertionError(f"{part} of {name} is decoded")

    monkeypatch.setattr(GgufFile, "read_part", forbidden)
    assert logits(path) == first
    assert store.written.count == written


def test_weights_quantized_at_load_are_quantized_once(store, folder, monkeypatch):
    """Nor are those of which only scales would be missing, which are small."""

    def forward() -> bytes:
        model = gptrs.load_model(folder, "numba", threads=1, weights="q4")
        result = model.forward(TOKENS).tobytes()
        weight_store().writer.finish()
        return result

    first = forward()
    names = store.written.count

    def forbidden(rounded: RoundedTensor) -> dict[Part, np.ndarray]:
        raise AssertionError(f"{rounded.name} is quantized again")

    monkeypatch.setattr(quantizing_source, "made_parts", forbidden)
    assert forward() == first
    assert store.written.count == names > 2 * 4 * SIZES["n_layer"]


def test_deferred_weights_are_read_by_whoever_asks(store, tmp_path):
    backend = create(1)
    stored = np.arange(1 << 17, dtype=np.float32).reshape(256, -1)
    identity = WeightIdentity.of(b"w", WeightFile(bytes(16), "/made/up", lambda: True))
    loads: list[int] = []

    def read() -> np.ndarray:
        loads.append(1)
        return stored

    type_ = TensorType(dtypes.f32, stored.shape)
    weight = backend.weight_to_device(identity, type_, read, "read")
    assert (weight.shape, weight.dtype, loads) == (stored.shape, stored.dtype, [])
    program = gptrs.ir.parse_program("""
        ptir.v0.5
        func @main(%w: f32[256, 512]) -> (f32[256, 512], f32[256, 512]) {
          %0 = add %w, %w : f32[256, 512]
          return %0, %w
        }
        """)
    twice, same = backend.compile(program, [InputRole.PARAMETER]).run([weight])
    np.testing.assert_array_equal(np.asarray(twice), 2 * stored)
    np.testing.assert_array_equal(np.asarray(same), stored)
    np.testing.assert_array_equal(backend.to_host(weight), stored)
    assert loads == [1]
    store.writer.finish()
    again = backend.weight_to_device(identity, type_, read, "read")
    np.testing.assert_array_equal(backend.to_host(again), stored)
    assert loads == [1], "it is on disk"


def test_a_deferred_weight_may_be_a_small_argument(store):
    """What programs derive of weights takes these as arguments, and copies the small ones."""
    backend = create(1)
    stored = np.arange(6, dtype=np.float32)
    identity = WeightIdentity.of(b"w", WeightFile(bytes(16), "/made/up", lambda: True))
    type_ = TensorType(dtypes.f32, stored.shape)
    program = gptrs.ir.parse_program(
        "ptir.v0.5\nfunc @main(%w: f32[6]) -> f32[6] {\n  %0 = neg %w : f32[6]\n  return %0\n}\n"
    )
    weight = backend.weight_to_device(identity, type_, lambda: stored, "read")
    assert np.isnan(np.asarray(weight)).all(), "whoever does not ask for its elements notices"
    (found,) = backend.compile(program, [InputRole.ARGUMENT]).run([weight])
    np.testing.assert_array_equal(np.asarray(found), -stored)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["mamba2", "qwen3_next"])
def test_small_weights_of_bf16_that_programs_derive_from_are_read(store, tmp_path, kind):
    """Decays are `-exp(A_log)`; the file counts as old, so that its weights are deferred."""
    folder = save_tiny_lm(tmp_path / "m", kind, dtypes.bf16)
    expected = gptrs.load_model(folder, "ref").forward(TOKENS)
    for _ in range(2):
        np.testing.assert_allclose(load(folder).forward(TOKENS), expected, rtol=1e-4, atol=1e-4)


def test_a_changed_file_is_packed_again(store, folder, monkeypatch):
    first = logits(folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-SIZES["n_embd"] * 4096 :] = bytes(SIZES["n_embd"] * 4096)
    with path.open("r+b") as file:
        file.write(content)
    changed = logits(folder)
    assert changed != first
    monkeypatch.setenv("GPTRS_WEIGHT_CACHE_BYTES", "0")
    weight_store.cache_clear()
    assert logits(folder) == changed


def test_derived_and_converted_weights_are_not_made_again(store, tmp_path, monkeypatch):
    """Batch norms are folded into convolutions, which then are weights of their own."""
    monkeypatch.setattr(tiny_resnet, "WIDTHS", (8, 16, 96, 128))
    folder = tiny_resnet.save_tiny_resnet(tmp_path / "m")
    images = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    first = load(folder).forward(images)
    store.writer.finish()
    assert store.written.count > 0
    read = note_reads(monkeypatch)
    assert load(folder).forward(images).tobytes() == first.tobytes()
    assert max(read.values()) < 1 << 18, "larger ones come from the store, in the form that is read"


def test_streamed_weights_are_mapped_and_leave_with_the_budget(store, folder, monkeypatch):
    first = logits(folder)
    forbid_packing(monkeypatch)
    gc.collect()
    before = PACKED_WEIGHTS.nbytes
    model = load(folder, "60%")
    assert model.forward(TOKENS).tobytes() == first
    assert model.streamer is not None
    assert 0 < PACKED_WEIGHTS.nbytes - before <= model.streamer.streaming.budget


def test_streamed_weights_are_written_at_once(store, folder, monkeypatch):
    first = load(folder, "60%").forward(TOKENS).tobytes()
    assert store.written.count >= 4 * SIZES["n_layer"]
    forbid_packing(monkeypatch)
    assert logits(folder, "60%") == first


def test_weights_are_prefetched_from_the_store(store, folder, monkeypatch):
    logits(folder)
    read = note_reads(monkeypatch)
    parameters = Params(FileSource.of_file(folder / "model.safetensors"), backend=create(1))
    matrix, bias = (f"transformer.h.0.attn.c_attn.{name}" for name in ("weight", "bias"))
    for name in (matrix, bias):
        weight = parameters.tensor(name).source
        assert isinstance(weight, Parameter)
        weight.prefetch()
    assert list(read) == [bias], "the matrix is read in its packed form"
