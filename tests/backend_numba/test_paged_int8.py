"""Pages of vectors as bytes: what is written and read is what PTIR says, in every company."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from backend_numba.paged_steps import AXES, LENGTH, STEPS, Texts, backend, step, step_arrays
from gptrs import functionals as F
from gptrs.functionals.normalization import SCALE_BYTES, read_vectors, rounded_vectors
from gptrs.ir import dtypes
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.specialize import symbols
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.evaluation import evaluate
from gptrs_backend_numba.fusion.claims import claim
from gptrs_backend_numba.kernels.attention.paged_geometry import BLOCK
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_ref.backend import create as create_ref

CLAIMS = Inlining(claim)

ODD = "f16 pool, softcap, odd sizes"
"""Every setting at once; compiling each kind of pages takes seconds."""


def as_bytes(array: np.ndarray) -> np.ndarray:
    with gptrs.use_backend(create_ref()):
        return rounded_vectors(gptrs.tensor(array.astype(np.float32))).numpy().copy()


def as_numbers(array: np.ndarray) -> np.ndarray:
    with gptrs.use_backend(create_ref()):
        return read_vectors(gptrs.tensor(array)).numpy().copy()


def in_int8(kind: str) -> tuple[Texts, Texts]:
    """Texts with pools of si8, and with pools of the f32 that these stand for."""
    texts, wide = Texts(kind), Texts(kind)
    texts.keys, texts.values = as_bytes(texts.keys), as_bytes(texts.values)
    wide.keys, wide.values = as_numbers(texts.keys), as_numbers(texts.values)
    return texts, wide


def test_vectors_are_rounded_to_half_a_step() -> None:
    array = np.random.default_rng(3).standard_normal((50, 33)).astype(np.float32)
    steps = np.abs(array).max(axis=1, keepdims=True) / 127
    difference = np.abs(as_numbers(as_bytes(array)) - array)
    assert (difference <= steps * 0.5001).all()
    assert difference.max() > steps.min() * 0.4
    assert as_bytes(array).shape == (50, 33 + SCALE_BYTES)
    np.testing.assert_array_equal(as_numbers(as_bytes(as_numbers(as_bytes(array)))),
                                  as_numbers(as_bytes(array)))  # fmt: skip


@pytest.mark.paths
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_updates_write_the_bytes_of_the_reference(dtype: str) -> None:
    new = np.random.default_rng(1).standard_normal((9, 2, 13)).astype(np.float32)
    new[0, 0], new[1, 1, 3], new[2, 0, 1] = 0, np.inf, np.nan
    new[3] *= 1e-43
    new[4, 0, 5] = -7e4
    pool = np.full((6, 2, 4, 13 + SCALE_BYTES), 5, np.int8)
    slots = np.array([6, 2, 9, 0, 23, 6, 11, 12, 13], np.int32)
    found: list[bytes] = []
    for place in (create_ref(), backend()):
        with gptrs.use_backend(place), np.errstate(all="ignore"):
            rows = F.cast(gptrs.tensor(new), getattr(dtypes, dtype))
            written = gptrs.jit(F.update_pages)(gptrs.tensor(pool), rows, gptrs.tensor(slots))
            found.append(written.numpy().tobytes())
    assert found[0] == found[1]
    assert np.isnan(as_numbers(np.frombuffer(found[1], np.int8).reshape(pool.shape))[0, 1, 2]).all()


@pytest.mark.long
@pytest.mark.sample(1)
@pytest.mark.paths
@pytest.mark.parametrize("kind", ["f32", ODD])
def test_results_are_those_of_pages_of_the_same_numbers(kind: str) -> None:
    """To the bit, of few rows and of panels, alone and in company, on one thread and on two."""
    texts, wide = in_int8(kind)
    (whole,) = wide.attend([(1, 0, LENGTH)])
    for threads, parts in (
        (1, [(1, 0, LENGTH)]),
        (2, [(0, 5, 6), (1, LENGTH - 1, LENGTH), (2, 7, 7 + PANEL)]),
        (1, [(1, BLOCK + 3, BLOCK + 6)]),
        (2, [(2, 0, 9), (1, 20, 20 + 2 * PANEL)]),
    ):
        for (text, begin, end), found in zip(parts, texts.attend(parts, threads), strict=True):
            if text == 1:
                assert found.tobytes() == whole[begin:end].tobytes()


@pytest.mark.long
@pytest.mark.paths
def test_rows_that_see_nothing_are_zero() -> None:
    texts, _ = in_int8("f32")
    texts.queries = abs(texts.queries)
    for parts, length in (([(0, 0, 3)], 1), ([(0, 0, PANEL + 9)], 4)):
        arrays = texts.arrays(parts)
        arrays[5][:] = length
        with gptrs.use_backend(backend()):
            found = F.paged_attention(*map(gptrs.tensor, arrays)).numpy()
        assert not found[:-length].any()
        assert np.isfinite(found).all()
        assert found[-length:].any()
        arrays[1] = np.full_like(arrays[1], -1)
        arrays[1][..., -SCALE_BYTES:] = np.frombuffer(np.float32(np.inf).tobytes(), np.int8)
        with gptrs.use_backend(backend()):
            assert not F.paged_attention(*map(gptrs.tensor, arrays)).numpy().any()


def test_what_no_row_sees_is_not_read() -> None:
    texts, _ = in_int8(ODD)
    wanted = texts.attend([(0, LENGTH - 2, LENGTH)])[0]
    size = texts.keys.shape[2]
    first = LENGTH - 2 - 40 + 1
    for page in texts.tables[0][: first // size]:
        texts.keys[page] = texts.values[page] = -1  # the scale is NaN
    assert texts.attend([(0, LENGTH - 2, LENGTH)])[0].tobytes() == wanted.tobytes()


def _int8_arrays(sizes: tuple[list[int], list[int], int]) -> list[np.ndarray]:
    arrays = step_arrays(*sizes)
    arrays[0], arrays[4] = as_bytes(arrays[0]), as_bytes(arrays[4])
    return arrays


@pytest.mark.long
def test_one_program_of_two_kernels_serves_all_sizes() -> None:
    dynamic = gptrs.jit(step, donate=["pool"], dynamic=AXES)
    for sizes in STEPS[:3]:
        arrays = _int8_arrays(sizes)
        with gptrs.use_backend(create_ref()):
            wanted = gptrs.jit(step)(*map(gptrs.tensor, arrays))
            wanted = [each.numpy() for each in wanted]
        with gptrs.use_backend(backend()):
            found = [each.numpy() for each in dynamic(*map(gptrs.tensor, arrays))]
        assert found[0].tobytes() == wanted[0].tobytes()
        np.testing.assert_allclose(found[1], wanted[1], atol=2e-6, rtol=1e-5)
    assert dynamic.compiled == 1
    captured = gptrs.jit(step, dynamic=AXES).lower(*map(gptrs.tensor, _int8_arrays(STEPS[0])))
    with deciding(SizeGuards(dict.fromkeys(symbols(captured), 9))):
        program = Pipeline(inlining=CLAIMS, fuse=backend().fuse(), evaluate=evaluate).run(captured)
    ops = [made.op for made in program.main.body.instructions]
    targets = [op.target for op in ops if isinstance(op, CustomCall)]
    assert targets == ["gptrs.numba.update_pages.v1", "gptrs.numba.paged_attention.v1"]
    assert {op.name for op in ops} == {"custom_call", "reshape"}
