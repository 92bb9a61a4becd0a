"""The attention kernels against NumPy in f64: shapes, masks, positions, what is not read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from backend_numba.attentions import attend, compiled, operands, require_close, wanted
from gptrs import functionals as F
from gptrs.capture.graph import Argument, GraphSlice
from gptrs.capture.tensor import Tensor
from gptrs.errors import UnsupportedError
from gptrs.ir.type_text import parse_type
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs.optimizer.pipeline import Pipeline
from gptrs_backend_numba.evaluation import evaluate
from gptrs_backend_numba.fusion.claims import claim
from gptrs_backend_numba.fusion.passes import FUSE
from gptrs_backend_numba.kernels.attention.many_queries import BLOCK
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("seed", range(12))
def test_random_shapes_masks_and_positions(dtype: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    batch, n_kv_heads = (int(random.integers(1, 3)) for _ in range(2))
    group = int(random.integers(1, 5))
    length = int(random.choice([1, 2, 7, 20, PANEL, PANEL + 1, 70]))
    keys = int(random.choice([1, 3, 4, 17, BLOCK, BLOCK + 1, 130]))
    head_dim = int(random.choice([1, 5, 16, 32, 40, 64, 80]))
    value_dim = int(random.choice([1, 7, PANEL - 1, PANEL, PANEL + 8, 65]))
    shape = batch, n_kv_heads, group, length, keys, head_dim, value_dim
    query, key, value = operands(random, shape, dtype)
    causal = bool(random.integers(2))
    offset = int(random.integers(-3, keys + 3)) if causal and random.integers(2) else None
    shapes = ((length, keys), (batch, 1, 1, keys), (batch, n_kv_heads * group, length, keys))
    mask = random.random(shapes[seed % 3]) < 0.7 if random.integers(2) else None
    seen = {"causal": causal, "mask": mask, "offset": offset}
    for guard in ("blind", "none"):
        found = attend(query, key, value, dtype=dtype, guard=guard, **seen)
        require_close(found, wanted(query, key, value, guard=guard, **seen), dtype)


@pytest.mark.paths
@pytest.mark.parametrize("length", [1, PANEL + 3])
@pytest.mark.parametrize("group", [1, 3, 4])
def test_heads_that_were_split_by_a_transpose(length: int, group: int) -> None:
    random = np.random.default_rng(3)
    arrays = operands(random, (2, 2, group, length, 21, 12, 9), "f32")
    transposed = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in arrays]
    found = attend(*transposed, transposed=True)
    require_close(found, wanted(*arrays))


@pytest.mark.paths
@pytest.mark.parametrize("length", [1, 5, 2 * PANEL])
def test_keys_behind_the_last_visible_one_are_not_read(length: int) -> None:
    random = np.random.default_rng(4)
    query, key, value = operands(random, (1, 2, 2, length, 200, 32, 40), "f32")
    seen = 60 + length
    want = wanted(query, key[:, :, :seen], value[:, :, :seen], causal=True, offset=60)
    key[:, :, seen:] = np.nan
    value[:, :, seen:] = np.nan
    require_close(attend(query, key, value, causal=True, offset=60), want)


@pytest.mark.paths
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("group", "length"), [(1, 1), (2, 3), (1, PANEL), (4, PANEL + 5)])
def test_a_blind_query_gives_zero_and_nan_in_programs_of_a_plain_softmax(
    group: int, length: int, dtype: str
) -> None:
    keys = BLOCK + 20
    arrays = operands(np.random.default_rng(5), (2, 2, group, length, keys, 8, 8), dtype)
    arrays[0][1, 0, 0, 2], arrays[0][1, -1, -1] = np.nan, np.inf
    mask = np.random.default_rng(6).random((2, 1, length, keys)) < 0.5
    mask[:, :, -1, : BLOCK + 3] = False  # sees none in its first block
    mask[0, 0, length // 2] = False
    for seen in (
        {"causal": True, "offset": -length},
        {"causal": True, "offset": -(length // 2) - 1},
        {"mask": mask},
        {"mask": mask[:1], "causal": True, "offset": keys - length},
        {"mask": np.zeros((1, 1, 1, keys), bool)},
    ):
        for guard in ("blind", "none"):
            found = attend(*arrays, dtype=dtype, guard=guard, **seen)
            want = wanted(*arrays, guard=guard, **seen)
            require_close(found, want, dtype)
            if guard == "blind" and (want == 0).any():
                assert (found[want == 0] == 0).all()


@pytest.mark.parametrize("offset", [2**63 - 8, -(2**63)])
def test_offsets_far_outside(offset: int) -> None:
    arrays = operands(np.random.default_rng(6), (1, 1, 1, 7, 10, 8, 8), "f32")
    found = attend(*arrays, causal=True, offset=offset)
    if offset < 0:
        assert (found == 0).all()
    else:
        require_close(found, wanted(*arrays))


@pytest.mark.parametrize("length", [2, PANEL])
def test_scores_beyond_what_powers_can_hold(length: int) -> None:
    random = np.random.default_rng(7)
    query, key, value = operands(random, (1, 1, 1, length, 3 * BLOCK, 16, 16), "f32")
    found = attend(query * 100, key * 100, value)
    np.testing.assert_allclose(found, wanted(query * 100, key * 100, value), rtol=2e-2, atol=2e-3)


@pytest.mark.paths
@pytest.mark.parametrize("length", [2, PANEL])
def test_nan_and_infinities_spread_to_their_query_alone(length: int) -> None:
    query, key, value = operands(np.random.default_rng(8), (1, 1, 1, length, 60, 16, 16), "f32")
    for bad in (np.nan, np.inf):
        query[0, 0, 1, 3] = bad
        found = attend(query, key, value)
        assert np.isnan(found[0, 0, 1]).all()
        assert np.isfinite(np.delete(found, 1, axis=2)).all()


@pytest.mark.parametrize("shape", [(1, 3, 1, 1, 900, 64, 64), (2, 2, 2, 150, 300, 40, 24)])
def test_any_number_of_threads_gives_the_same_bits(
    shape: tuple[int, int, int, int, int, int, int],
) -> None:
    arrays = operands(np.random.default_rng(9), shape, "f32")
    one = attend(*arrays, causal=True)
    for threads in (2, 3):
        assert one.tobytes() == attend(*arrays, causal=True, threads=threads).tobytes()


@pytest.mark.parametrize(
    "attrs",
    [
        'causal = false, mask = false, offset = false, guard = "none"',
        "causal = false, mask = false, offset = false, scale = 1.0",
        'causal = false, mask = false, offset = false, scale = 1, guard = "none"',
        'causal = 0, mask = false, offset = false, scale = 1.0, guard = "none"',
        'causal = false, mask = true, offset = false, scale = 1.0, guard = "none"',
        'causal = false, mask = false, offset = false, scale = 1.0, guard = "nan"',
        "causal = false, mask = false, offset = false, scale = 1.0, guard = true",
        'causal = false, mask = false, offset = false, scale = 1.0, guard = "none", window = 3',
    ],
)
def test_calls_that_say_something_else_are_refused(attrs: str) -> None:
    arrays = list(operands(np.random.default_rng(0), (1, 1, 1, 2, 3, 4, 4), "f32"))
    with pytest.raises(UnsupportedError):
        compiled(arrays, "f32", attrs)


@pytest.mark.parametrize("offset", [0, 3, 28, "given"])
@pytest.mark.parametrize("queries", [100, 128])
def test_a_causal_mask_that_is_given_is_the_setting(queries: int, offset: int | str) -> None:
    """The claim of `attention` sees the type of a mask only."""
    query, key = (f"f32[1, 2, {length}, 8]" for length in (queries, 128))
    types = [parse_type(text) for text in (query, key, key, "si64[]")]

    def optimized(use: Callable[..., Tensor]) -> str:
        leaves = [Argument(type_, place, None) for place, type_ in enumerate(types)]
        *operands, number = map(Tensor, leaves)
        result = use(*operands, number if offset == "given" else offset)
        program = GraphSlice([result.source]).lower(leaves)
        pipeline = Pipeline(inlining=Inlining(claim), fuse=FUSE, evaluate=evaluate, verify=True)
        return str(pipeline.run(program))

    masked = optimized(lambda q, k, v, n: F.attention(q, k, v, F.causal_mask(queries, 128, n)))
    assert masked == optimized(lambda q, k, v, n: F.attention(q, k, v, causal=True, offset=n))
    assert "compare" not in masked
    shared = optimized(lambda q, k, v, n: F.attention(q, k, v, F.causal_mask(1, 128, n)))
    assert "mask = true" in shared
