"""Attention with shared heads, masks, windows, offsets and a cache."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.capture.graph import GraphSlice
from gptrs.ir import dtypes
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs_conformance.uses.attention import attended, heads, seen
from support.covering import pairs
from support.tensors import f32

pytestmark = pytest.mark.usefixtures("on_backend")

SHARINGS = [(4, 4), (4, 2), (4, 1)]
LENGTHS = [(1, 1), (1, 6), (3, 5), (5, 5), (5, 3), (0, 4), (3, 0)]


def _close(found: gptrs.Tensor, wanted: np.ndarray, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, atol=tolerance, rtol=tolerance)


def _sequence(length: int, query_heads: int = 4, key_heads: int = 2) -> list[np.ndarray]:
    return list(heads(length, length, query_heads, key_heads))


KINDS = {
    "plain": (lambda t, s: {}, lambda t, s: None),
    "causal": (lambda t, s: {"causal": True}, lambda t, s: seen(t, s, s - t)),
    "from the start": (lambda t, s: {"causal": True, "offset": 0}, lambda t, s: seen(t, s, 0)),
    "offset of a tensor": (
        lambda t, s: {"causal": True, "offset": gptrs.tensor(np.int32(1))},
        lambda t, s: seen(t, s, 1),
    ),
    "window": (
        lambda t, s: {"causal": True, "window": 2},
        lambda t, s: seen(t, s, s - t, 2),
    ),
    "window from the start": (
        lambda t, s: {"causal": True, "window": 3, "offset": 0},
        lambda t, s: seen(t, s, 0, 3),
    ),
}


@pytest.mark.parametrize(
    ("sharing", "lengths", "kind", "scale"), pairs(SHARINGS, LENGTHS, KINDS, [None, 0.3]), ids=str
)
def test_agrees_with_torch(sharing, lengths, kind, scale):
    torch = pytest.importorskip("torch", reason="parity needs torch")
    settings, mask_of = KINDS[kind]
    queries, keys = lengths
    arrays = heads(queries, keys, *sharing)
    mask = mask_of(queries, keys)
    ours = F.attention(*map(gptrs.tensor, arrays), scale=scale, **settings(queries, keys)).numpy()
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, arrays),
        attn_mask=None if mask is None else torch.from_numpy(mask),
        scale=scale,
        enable_gqa=True,
    ).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)


MASKS = [(3, 5), (1, 5), (3, 1), (2, 1, 3, 5), (4, 1, 1), (1, 4, 3, 1), ()]


@pytest.mark.parametrize(
    ("shape", "additive", "causal"), pairs(MASKS, [False, True], [False, True]), ids=str
)
def test_masks_broadcast_and_combine(shape, additive, causal):
    rng = np.random.default_rng(7)
    mask = np.asarray(rng.random(shape) < 0.7)
    bias = np.asarray(rng.standard_normal(shape), np.float32)
    arrays = heads(3, 5, 4, 2)
    given = gptrs.tensor(bias if additive else mask)
    ours = F.attention(*map(gptrs.tensor, arrays), given, causal=causal)
    visible = np.broadcast_to(True if additive else mask, (2, 4, 3, 5))
    visible = visible & (seen(3, 5, 2) if causal else True)
    with np.errstate(invalid="ignore"):
        _close(ours, attended(*arrays, visible, bias if additive else 0))


def test_the_mask_of_a_call_and_a_given_one_mean_the_same():
    arrays = [gptrs.tensor(array) for array in heads(3, 5, 4, 2)]
    given = F.attention(*arrays, F.causal_mask(3, 5, 2)).numpy()
    np.testing.assert_array_equal(F.attention(*arrays, causal=True).numpy(), given)


def _ops(out: gptrs.Tensor) -> Counter[str]:
    graph = GraphSlice([out.source])
    program = Inlining().apply(graph.lower(graph.leaves))
    return Counter(step.op.name for step in program.main.body.walk())


def test_shared_heads_are_not_repeated():
    shared, whole = (
        _ops(F.attention(*map(gptrs.tensor, heads(3, 5, *sharing)), causal=True))
        for sharing in ((4, 2), (4, 4))
    )
    assert shared - whole == Counter({"reshape": 4})
    assert not whole - shared
    assert whole["dot_general"] == 2
    assert not {"tile", "concat", "gather", "take"} & whole.keys()


def test_what_is_not_asked_for_is_not_captured():
    plain = _ops(F.attention(*map(gptrs.tensor, heads(3, 5, 4, 4))))
    assert not {"select", "iota", "compare", "tanh", "cast", "reshape"} & plain.keys()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_small_floats_are_rounded_once(name):
    torch = pytest.importorskip("torch", reason="parity needs torch")
    wide = heads(5, 5, 4, 2)
    dtype = {"float16": dtypes.f16, "bfloat16": dtypes.bf16}[name]
    ours = F.attention(*(F.cast(gptrs.tensor(array), dtype) for array in wide), causal=True)
    assert ours.dtype is dtype
    rounded = (torch.from_numpy(array).to(getattr(torch, name)).double() for array in wide)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *rounded, is_causal=True, enable_gqa=True
    ).to(getattr(torch, name))
    found = ours.numpy().astype(np.float32)
    unequal = found != theirs.float().numpy()
    assert unequal.mean() < 0.02, "only what f32 leaves beside a half may be rounded differently"
    np.testing.assert_allclose(found, theirs.float().numpy(), rtol=2.0**-7, atol=1e-6)


def test_f64_is_computed_in_f64():
    arrays = [array.astype(np.float64) for array in heads(3, 5, 4, 2)]
    out = F.attention(*map(gptrs.tensor, arrays), causal=True)
    _close(out, attended(*arrays, seen(3, 5, 2)), 1e-14)


def test_a_softcap_bounds_the_scores():
    query, key, value = (np.float32(30) * array for array in heads(3, 5, 4, 4))
    capped = F.attention(*map(gptrs.tensor, (query, key, value)), softcap=5.0)
    _close(capped, attended(*(x.astype(np.float64) for x in (query, key, value)), softcap=5), 1e-4)
    plain = F.attention(*map(gptrs.tensor, (query, key, value)))
    assert np.abs(capped.numpy() - plain.numpy()).max() > 0.1


def test_queries_without_keys():
    query, key, value = heads(3, 2, 4, 2)
    out = F.attention(*map(gptrs.tensor, (query, key, value)), causal=True).numpy()
    assert (out[:, :, 0] == 0).all()
    assert (out[:, :, 1:] != 0).all()
    none = F.attention(*map(gptrs.tensor, heads(3, 0, 4, 2)), causal=True)
    np.testing.assert_array_equal(none.numpy(), np.zeros((2, 4, 3, 6), np.float32))
    assert F.attention(*map(gptrs.tensor, heads(0, 4, 4, 2)), causal=True).shape == (2, 4, 0, 6)


CHUNKS = {
    "whole": (6,),
    "one by one": (1,) * 6,
    "prefill and decode": (3, 1, 1, 1),
    "chunked prefill": (2, 3, 1),
}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("sharing", SHARINGS)
def test_pieces_through_the_cache_equal_the_whole(chunks, window, sharing):
    whole = _sequence(6, *sharing)
    wanted = attended(*(array.astype(np.float64) for array in whole), seen(6, 6, 0, window))
    # What lies behind the new entries gets no weight: numbers as large as these would show.
    keys, values = (
        gptrs.tensor(np.full((2, sharing[1], 9, depth), 1e3, np.float32)) for depth in (4, 6)
    )

    @gptrs.jit
    def step(q, k, v, keys, values, at):
        keys, values = F.update_cache(keys, k, at), F.update_cache(values, v, at)
        out = F.attention(q, keys, values, causal=True, window=window, offset=at)
        return out, keys, values

    start = 0
    for count in chunks:
        q, k, v = (gptrs.tensor(array[:, :, start : start + count]) for array in whole)
        out, keys, values = step(q, k, v, keys, values, gptrs.tensor(np.int64(start)))
        _close(out, wanted[:, :, start : start + count])
        start += count
    assert step.compiled == len(set(chunks))


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_batch_equals_its_sequences(side):
    lengths = [5, 2, 4]
    batch = [np.repeat(array[:1], 3, axis=0) * 1.0 for array in _sequence(5)]
    rng = np.random.default_rng(1)
    batch = [rng.standard_normal(array.shape).astype(np.float32) for array in batch]
    mask = F.padding_mask(gptrs.tensor(lengths), 5, side)
    out = F.attention(*map(gptrs.tensor, batch), mask, causal=True).numpy()
    for row, length in enumerate(lengths):
        place = slice(0, length) if side == "right" else slice(5 - length, 5)
        single = [gptrs.tensor(array[row : row + 1, :, place]) for array in batch]
        wanted = F.attention(*single, causal=True)
        np.testing.assert_allclose(
            out[row : row + 1, :, place], wanted.numpy(), atol=1e-6, rtol=1e-6
        )


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (1, 1), (4, 6), (6, 4)])
@pytest.mark.parametrize("offset", [-2, 0, 1, 9])
def test_position_masks(queries, keys, offset):
    for at in (offset, gptrs.tensor(np.int64(offset))):
        causal = F.causal_mask(queries, keys, at).numpy()
        np.testing.assert_array_equal(causal, seen(queries, keys, offset))
        for window in (1, 3, 99):
            found = F.sliding_window_mask(queries, keys, window, at).numpy()
            np.testing.assert_array_equal(found, seen(queries, keys, offset, window))


def test_update_cache_by_number_and_tensor():
    cache, new = f32(1, 2, 4, 3), F.add(f32(1, 2, 2, 3), 1)
    by_number = F.update_cache(cache, new, 2).numpy()
    np.testing.assert_array_equal(by_number, F.update_cache(cache, new, gptrs.tensor(2)).numpy())
    assert by_number[:, :, 2:].min() == 1
    assert by_number[:, :, :2].max() == 0
