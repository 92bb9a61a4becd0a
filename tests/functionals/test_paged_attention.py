"""Attention over pages agrees with attention text by text, and says what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.errors import ExecutionError, UsageError
from gptrs.functionals.matching import capture
from gptrs.ir import dtypes
from gptrs.ir.type_text import parse_type
from gptrs_conformance.uses.attention import attended, seen
from gptrs_conformance.uses.paged_attention import SIZE, paged, ragged, updated
from support.tensors import f32

pytestmark = pytest.mark.usefixtures("on_backend")


def _attended(arrays, **settings) -> np.ndarray:
    return F.paged_attention(*map(gptrs.tensor, arrays), **settings).numpy()


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("length", [1, SIZE, 11])
def test_one_text_is_causal_attention(length, window):
    query, keys, values, table, starts, lengths = ragged((length,), (length,), 4, 2)
    whole = [
        np.concatenate(list(pool[table[0]]), axis=1)[None, :, :length] for pool in (keys, values)
    ]
    queries = np.swapaxes(query, 0, 1)[None]
    wanted = attended(queries, *whole, seen(length, length, 0, window))[0]
    found = _attended((query, keys, values, table, starts, lengths), window=window)
    np.testing.assert_allclose(found, np.swapaxes(wanted, 0, 1), atol=1e-5, rtol=1e-5)


def test_what_no_row_sees_may_be_anything():
    arrays = ragged((2, 1), (6, 9), 4, 2)
    wanted = _attended(arrays, window=3)
    _, keys, values, table, _, _ = arrays
    for pool in (keys, values):
        pool[0] = np.nan
        pool[table[0][1], :, 6 % SIZE :] = np.inf  # behind the last position
        pool[table[1][0]] = np.nan  # before the window
    np.testing.assert_array_equal(_attended(arrays, window=3), wanted)


@pytest.mark.long
@pytest.mark.parametrize("pool", [dtypes.bf16, dtypes.f16])
@pytest.mark.parametrize("query", [dtypes.f32, dtypes.bf16, dtypes.f64])
def test_pools_may_have_another_float_type(query, pool):
    arrays = ragged((3, 1), (5, 9), 4, 2)
    casts = (query, pool, pool)
    floats = [F.cast(gptrs.tensor(x), to) for x, to in zip(arrays[:3], casts, strict=True)]
    found = F.paged_attention(*floats, *map(gptrs.tensor, arrays[3:]))
    wide = [F.cast(x, dtypes.f64).numpy() for x in floats]
    assert found.dtype is query
    tolerance = 2.0**-8 if query is dtypes.bf16 else 1e-5
    wanted = paged(*wide, *arrays[3:])
    result = F.cast(found, dtypes.f64).numpy()
    np.testing.assert_allclose(result, wanted, atol=tolerance, rtol=tolerance)


def test_without_texts_or_rows():
    arrays = ragged((0, 0), (3, 0), 4, 2, padding=2)
    np.testing.assert_array_equal(_attended(arrays), np.zeros((2, 4, 5)))
    assert _attended(ragged((0,), (3,), 4, 2)).shape == (0, 4, 5)
    none = ragged((), (), 4, 2, padding=2)
    np.testing.assert_array_equal(_attended(none), np.zeros((2, 4, 5)))


def test_sizes_may_be_symbolic():
    pools = {name: parse_type("f16[?3, 2, 32, 8]") for name in ("key_pool", "value_pool")}
    texts = {"page_table": "si32[?1, ?2]", "row_starts": "si32[?1+1]", "lengths": "si32[?1]"}
    types = {name: parse_type(text) for name, text in texts.items()}
    program = capture(F.paged_attention, {"query": parse_type("f32[?0, 4, 8]"), **pools, **types})
    assert str(program.main.body.results[0].type) == "f32[?0, 4, 8]"
    rows = {"new": parse_type("f32[?0, 2, 8]"), "slots": parse_type("si32[?0]")}
    written = capture(F.update_pages, {"pool": pools["key_pool"], **rows})
    assert written.main.body.results[0].type == pools["key_pool"]


def test_no_key_is_repeated_for_rows_or_heads():
    types = {"query": "f32[7, 6, 8]", "page_table": "si32[2, 5]"}
    types |= {"row_starts": "si32[3]", "lengths": "si32[2]"}
    types |= dict.fromkeys(("key_pool", "value_pool"), "f32[9, 2, 4, 8]")
    program = capture(F.paged_attention, {name: parse_type(text) for name, text in types.items()})
    sizes = [value.type.size for made in program.main.body.walk() for value in made.results]
    assert max(sizes) == max(7 * 6 * 5 * 4, 9 * 2 * 4 * 8)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16])
def test_a_donated_pool_is_updated(dtype):
    pool = np.random.default_rng(1).standard_normal((5, 2, SIZE, 3)).astype(dtype.numpy)
    new = np.random.default_rng(2).standard_normal((3, 2, 3)).astype(np.float32)
    slots = np.array([6, 19, 4], np.int32)
    step = gptrs.jit(F.update_pages, donate=[0])
    found = step(gptrs.tensor(pool), gptrs.tensor(new), gptrs.tensor(slots))
    np.testing.assert_array_equal(found.numpy(), updated(pool, new.astype(dtype.numpy), slots))


@pytest.mark.parametrize("slot", [-1, 20])
def test_a_slot_outside_of_the_pool(slot):
    with pytest.raises(ExecutionError, match="index"):
        F.update_pages(f32(5, 2, 4, 3), f32(1, 2, 3), gptrs.tensor([slot])).numpy()


Q, POOL = f32(3, 4, 8), f32(5, 2, 4, 8)
TABLE, STARTS, COUNTS = (gptrs.tensor(np.zeros(n, np.int32)) for n in ((2, 3), (3,), (2,)))

REFUSALS = [
    (
        lambda: F.paged_attention(f32(1, 4, 3, 8), POOL, POOL, TABLE, STARTS, COUNTS),
        "`paged_attention` needs `query` of rank 3, got `f32[1, 4, 3, 8]`",
    ),
    (
        lambda: F.paged_attention(Q, f32(5, 2, 4, 7), POOL, TABLE, STARTS, COUNTS),
        "`paged_attention` needs `key_pool` of shape [5, 2, 4, 8], got `f32[5, 2, 4, 7]`",
    ),
    (
        lambda: F.paged_attention(Q, POOL, f32(5, 2, 5, 8), TABLE, STARTS, COUNTS),
        "`paged_attention` needs `value_pool` of shape [5, 2, 4, 8], got `f32[5, 2, 5, 8]`",
    ),
    (
        lambda: F.paged_attention(Q, POOL, F.cast(POOL, dtypes.f16), TABLE, STARTS, COUNTS),
        "`paged_attention` needs tensors of one element type, got `f32[5, 2, 4, 8]`,"
        " `f16[5, 2, 4, 8]`",
    ),
    (
        lambda: F.paged_attention(f32(3, 3, 8), POOL, POOL, TABLE, STARTS, COUNTS),
        "`paged_attention` needs the heads of the query to be a multiple of those of the pools,"
        " got 3 and 2",
    ),
    (
        lambda: F.paged_attention(Q, POOL, POOL, STARTS, STARTS, COUNTS),
        "`paged_attention` needs a page table [B, W], got `si32[3]`",
    ),
    (
        lambda: F.paged_attention(Q, POOL, POOL, TABLE, COUNTS, COUNTS),
        "`paged_attention` needs `row_starts` of shape [3], got `si32[2]`",
    ),
    (
        lambda: F.paged_attention(Q, POOL, POOL, TABLE, STARTS, COUNTS, window=0),
        "`paged_attention` needs a window of at least 1 key, got 0",
    ),
    (
        lambda: F.paged_attention(Q, POOL, POOL, TABLE, STARTS, COUNTS, softcap=-1.0),
        "`paged_attention` needs a finite softcap above 0, got -1.0",
    ),
    (
        lambda: F.update_pages(POOL, f32(3, 4, 8), STARTS),
        "`update_pages` needs `new` of shape [3, 2, 8], got `f32[3, 4, 8]`",
    ),
    (
        lambda: F.update_pages(POOL, f32(3, 2, 8), COUNTS),
        "`update_pages` needs `slots` of shape [3], got `si32[2]`",
    ),
    (
        lambda: F.update_pages(f32(5, 2, 8), f32(3, 2, 8), STARTS),
        "`update_pages` needs `pool` of rank 4, got `f32[5, 2, 8]`",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message):
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.message == message
