"""Attention over pages is one kernel with the same bits in every company; updates are in place."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import gptrs
from backend_numba.paged_steps import AXES, KINDS, LENGTH, STEPS, Texts, backend, step, step_arrays
from gptrs import functionals as F
from gptrs.backend.contract import InputRole
from gptrs.errors import ExecutionError
from gptrs.functionals.matching import capture
from gptrs.ir import dtypes
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.specialize import symbols
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.kernel import kernel
from gptrs_backend_numba.evaluation import evaluate
from gptrs_backend_numba.fusion.claims import claim
from gptrs_backend_numba.kernels.attention import paged_geometry as geometry
from gptrs_backend_numba.kernels.attention.paged_geometry import BLOCK
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.memory import address_of
from gptrs_conformance.uses.paged_attention import paged

CLAIMS = Inlining(claim)


@kernel
def blocks_after(geometry, task, keys, segments, *, part):
    """Return the number of segments that are written down."""
    parts = part(geometry, task, keys, segments)
    return parts


@pytest.mark.parametrize(
    ("task", "ranges", "head", "text"),
    [(0, 2, 0, 1), (1, 2, 0, None), (1, 1, 1, 0), (3, 2, 0, None)],
)
def test_a_task_prefetches_what_its_thread_reads_next(
    task: int, ranges: int, head: int, text: int | None
) -> None:
    table = np.array([[5, 3, 1, 7], [2, 6, 4, 0]], np.int32)  # of two texts of one row, two heads
    starts, lengths = np.array([0, 1, 2], np.int32), np.array([40, 70], np.int32)
    numbers = np.zeros(len(geometry.FIELDS), np.int64)
    for field, value in {
        geometry.TABLE: address_of(table), geometry.STARTS: address_of(starts),
        geometry.LENGTHS: address_of(lengths), geometry.VALUES: 5 << 40, geometry.RANGES: ranges,
        geometry.ROWS: 2, geometry.TEXTS: 2, geometry.WIDTH_OF_TABLE: 4, geometry.PAGES: 8,
        geometry.KV_HEADS: 2, geometry.GROUP: 1, geometry.TASKS: 2,
    }.items():  # fmt: skip
        numbers[field] = value
    kind = geometry.PageKind(dtypes.f32, 32, 64, 64, windowed=False, capped=False)
    found = np.zeros((kind.segments, 4), np.int64)
    after = compiled(blocks_after.specialize(part=geometry.first_block_after(kind)))
    parts = after(address_of(numbers), task, 3 << 40, address_of(found))
    wanted: list[list[int]] = []
    if text is not None:
        for place, count in ((0, 32), (32, min(lengths[text], BLOCK) - 32)):
            line = (int(table[text, place // 32]) * 2 + head) * 32 * 4 * 64
            wanted.append([(3 << 40) + line, (5 << 40) + line, place, int(count)])
    assert found[:parts].tolist() == wanted


@cache
def texts(kind: str) -> Texts:
    return Texts(kind)


@cache
def whole(kind: str) -> list[np.ndarray]:
    """The results of whole texts, each alone."""
    return [texts(kind).attend([(text, 0, LENGTH)])[0] for text in range(3)]


@pytest.mark.sample(1)
@pytest.mark.paths
@pytest.mark.parametrize("kind", KINDS)
def test_whole_texts_are_right(kind: str) -> None:
    arrays = texts(kind).arrays([(text, 0, LENGTH) for text in range(3)])
    arrays[1:3] = [x.astype(np.float64) for x in arrays[1:3]]
    wanted = paged(*arrays, **texts(kind).settings)
    np.testing.assert_allclose(np.concatenate(whole(kind)), wanted, atol=2e-6, rtol=1e-5)


@pytest.mark.long
@pytest.mark.paths
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_the_same_bits_in_every_company(kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    parts: list[tuple[int, int, int]] = []
    for text in random.permutation(3)[: random.integers(1, 4)]:
        begin = int(random.integers(LENGTH))
        count = int(random.choice([1, 1, 3, PANEL, BLOCK + 1, LENGTH]))
        parts.append((int(text), begin, min(begin + count, LENGTH)))
    found = texts(kind).attend(parts, threads=1 + seed % 2)
    for (text, begin, end), result in zip(parts, found, strict=True):
        assert result.tobytes() == whole(kind)[text][begin:end].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_pages_may_lie_anywhere(kind: str) -> None:
    moved = Texts(kind)
    order = np.random.default_rng(7).permutation(len(moved.keys))
    places = np.argsort(order).astype(np.int32)
    moved.keys, moved.values = moved.keys[order], moved.values[order]
    moved.tables = places[moved.tables]
    found = moved.attend([(1, 0, LENGTH)])[0]
    assert found.tobytes() == whole(kind)[1].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_row_sees_is_not_read(kind: str) -> None:
    spoiled = Texts(kind)
    window, size = spoiled.settings.get("window", LENGTH), spoiled.keys.shape[2]
    end = BLOCK + 71
    kept = range(max(0, end - 2 - window + 1), end)
    for page, number in enumerate(spoiled.tables[0]):
        for slot in range(size):
            if page * size + slot not in kept:
                spoiled.keys[number, :, slot] = spoiled.values[number, :, slot] = np.nan
    found = spoiled.attend([(0, end - 2, end)])[0]
    assert found.tobytes() == whole(kind)[0][end - 2 : end].tobytes()


def test_rows_of_no_text_are_zero() -> None:
    arrays = texts("f32").arrays([(0, 7, 8), (1, 0, 40)])
    arrays[0] = np.concatenate([arrays[0][:2], arrays[0], arrays[0][:30]])
    arrays[4] += 2
    with gptrs.use_backend(backend()):
        found = F.paged_attention(*map(gptrs.tensor, arrays)).numpy()
    assert not found[:2].any()
    assert not found[43:].any()
    assert found[2].tobytes() == whole("f32")[0][7].tobytes()
    assert found[3:43].tobytes() == whole("f32")[1][:40].tobytes()


@pytest.mark.sample(1)
@pytest.mark.paths
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_see_nothing_are_zero(kind: str) -> None:
    """Few rows and a panel of them, before the first position or with no score above -inf."""
    given = Texts(kind)
    parts = [(0, 0, 2), (1, 0, 5), (2, 0, PANEL + 20)]
    arrays = given.arrays(parts)
    arrays[5] = np.array([1, 3, 15], np.int32)
    settings = dict(given.settings)
    if "sinks" in settings:
        settings["sinks"] = np.array(settings["sinks"], np.float32)
    tensors = {name: gptrs.tensor(each) if name == "sinks" else each
               for name, each in settings.items()}  # fmt: skip
    with gptrs.use_backend(backend()):
        found = F.paged_attention(*map(gptrs.tensor, arrays), **tensors).numpy()
    arrays[1:3] = [x.astype(np.float64) for x in arrays[1:3]]
    np.testing.assert_allclose(found, paged(*arrays, **settings), atol=2e-6, rtol=1e-5)
    for begin, end in ((0, 1), (2, 4), (7, 7 + PANEL + 5)):
        assert not found[begin:end].any()
        assert found[end].any()
    if "softcap" in settings:
        return  # no score is -inf
    given.queries, given.keys[:, :, :, 3] = abs(given.queries), -np.inf
    assert not np.concatenate(given.attend(parts)).any()


@pytest.mark.long
def test_one_program_of_two_kernels_serves_all_sizes() -> None:
    dynamic = gptrs.jit(step, donate=["pool"], dynamic=AXES)
    with gptrs.use_backend(backend()):
        for sizes in STEPS:
            arrays = step_arrays(*sizes)
            wanted = gptrs.jit(step)(*map(gptrs.tensor, arrays))
            found = dynamic(*map(gptrs.tensor, arrays))
            for one, other in zip(found, wanted, strict=True):
                assert one.numpy().tobytes() == other.numpy().tobytes(), sizes
    assert dynamic.compiled == 1


@pytest.mark.parametrize("sizes", STEPS)
@pytest.mark.parametrize("axes", [AXES, {}])
@pytest.mark.parametrize("sinks", [[], [np.array([0.5, -3.0, 9.0, 40.0], np.float32)]])
def test_both_are_found_in_programs(
    sizes: tuple[list[int], list[int], int], axes: object, sinks: list[np.ndarray]
) -> None:
    arrays = map(gptrs.tensor, [*step_arrays(*sizes), *sinks])
    jitted = gptrs.jit(step, dynamic=axes)  # pyright: ignore[reportArgumentType]
    captured = jitted.lower(*arrays)
    with deciding(SizeGuards(dict.fromkeys(symbols(captured), 9))):
        program = Pipeline(inlining=CLAIMS, fuse=backend().fuse(), evaluate=evaluate).run(captured)
    ops = [made.op for made in program.main.body.instructions]
    targets = [op.target for op in ops if isinstance(op, CustomCall)]
    assert targets == ["gptrs.numba.update_pages.v1", "gptrs.numba.paged_attention.v1"]
    assert {op.name for op in ops} == {"custom_call", "reshape"}


def _run_update(pool: np.ndarray, slots: list[int]) -> np.ndarray:
    new = np.ones((len(slots), *pool.shape[1:2], pool.shape[3]), np.float32)
    update = gptrs.jit(F.update_pages, donate=[0])
    arrays = (pool, new, np.array(slots, np.int32))
    with gptrs.use_backend(backend()):
        return update(*map(gptrs.tensor, arrays)).numpy()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_a_donated_pool_is_written_in_place(dtype: str, kv_heads: int) -> None:
    types = {"pool": f"{dtype}[9, {kv_heads}, 4, 6]", "new": f"f32[5, {kv_heads}, 6]"}
    given = {name: parse_type(text) for name, text in {**types, "slots": "si32[5]"}.items()}
    roles = [InputRole.DONATED, InputRole.ARGUMENT, InputRole.ARGUMENT]
    program = Pipeline(inlining=CLAIMS, fuse=backend().fuse(), evaluate=evaluate).run(
        capture(F.update_pages, given, claim=claim)
    )
    executable = backend().compile(program, roles)
    (call,) = executable.schedule.calls
    (result,) = executable.schedule.results
    assert call.write == result.view
    assert result.donated == 0
    assert not executable.schedule.scratch


def test_slots_and_pages_out_of_range() -> None:
    with pytest.raises(ExecutionError, match=r"`update_pages`: index 36 is out .* for 36 slots"):
        _run_update(np.zeros((9, 2, 4, 6), np.float32), [3, 36])
    arrays = texts("f32").arrays([(0, 0, 2)])
    arrays[3] = arrays[3].copy()
    arrays[3][0, 5] = -1
    with gptrs.use_backend(backend()), pytest.raises(ExecutionError, match="index -1 is out"):
        F.paged_attention(*map(gptrs.tensor, arrays)).numpy()
