"""Rotary embeddings agree with transformers, bit for bit where they are constants."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.errors import UsageError
from gptrs.functionals.rotary import RotaryScaling
from gptrs.ir import dtypes
from support.tensors import f32

pytestmark = pytest.mark.usefixtures("on_backend")

DEPTH, THETA, LONGEST = 64, 500000.0, 128


LONG, SHORT = (tuple(1 + i * step for i in range(DEPTH // 2)) for step in (0.5, 0.01))
SCALINGS: dict[str, tuple[RotaryScaling, dict[str, object]]] = {
    "linear": (F.LinearScaling(4.0), {"rope_type": "linear", "factor": 4.0}),
    "proportional": (
        F.ProportionalScaling(0.3, 2.0),
        {"rope_type": "proportional", "partial_rotary_factor": 0.3, "factor": 2.0},
    ),
    "dynamic": (F.DynamicScaling(2.0, LONGEST), {"rope_type": "dynamic", "factor": 2.0}),
    "yarn": (F.YarnScaling(8.0, 16), {"rope_type": "yarn", "factor": 8.0}),
    "yarn, not truncated": (
        F.YarnScaling(8.0, 16, truncate=False),
        {"rope_type": "yarn", "factor": 8.0, "truncate": False},
    ),
    "yarn, DeepSeek": (
        F.YarnScaling(8.0, 16, beta_fast=16, beta_slow=2, mscale=0.7, mscale_all_dim=0.4),
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.4,
        },
    ),
    "yarn, magnitude given": (
        F.YarnScaling(8.0, 16, attention_factor=1.25),
        {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.25},
    ),
    "llama3": (
        F.Llama3Scaling(8.0, 1.0, 4.0, 16),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
    "longrope": (
        F.LongRopeScaling(LONG, SHORT, 8.0, 16),
        {"rope_type": "longrope", "long_factor": [*LONG], "short_factor": [*SHORT]},
    ),
}


def _theirs(settings: dict[str, object], length: int | None) -> tuple[np.ndarray, float]:
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    parameters = {"rope_theta": THETA, **settings}
    if settings["rope_type"] in ("yarn", "llama3", "longrope"):
        parameters["original_max_position_embeddings"] = 16
    config = transformers.LlamaConfig(
        hidden_size=2 * DEPTH,
        num_attention_heads=2,
        head_dim=DEPTH,
        max_position_embeddings=LONGEST,
        rope_parameters=parameters,
    )
    kind = str(settings["rope_type"])
    frequencies, magnitude = rope.ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=length)
    return frequencies.numpy(), magnitude


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", [None, 1, LONGEST, LONGEST + 1, 1000])
def test_frequencies_are_those_of_transformers(name, length):
    scaling, settings = SCALINGS[name]
    wanted, magnitude = _theirs(settings, length)
    found = F.rotary_frequencies(DEPTH, THETA, scaling, length).numpy()
    np.testing.assert_allclose(found, wanted, rtol=2.0**-22, atol=0)
    assert scaling.magnitude == pytest.approx(magnitude, rel=1e-15)


@pytest.mark.parametrize("length", [1, LONGEST, LONGEST + 1, 1000])
@pytest.mark.parametrize("name", ["dynamic", "llama3", "longrope"])
def test_a_length_that_is_a_tensor(name, length):
    """One compiled step serves all lengths; two of the scalings depend on them."""
    scaling, _ = SCALINGS[name]
    step = gptrs.jit(lambda n: F.rotary_frequencies(DEPTH, THETA, scaling, n))
    found = step(gptrs.tensor(np.int64(length))).numpy()
    wanted = F.rotary_frequencies(DEPTH, THETA, scaling, length).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=0)


def test_the_scalings_differ():
    found = {
        F.rotary_frequencies(DEPTH, THETA, s, 1000).numpy().tobytes() for s, _ in SCALINGS.values()
    }
    plain = F.rotary_frequencies(DEPTH, THETA).numpy().tobytes()
    assert plain not in found
    assert len(found) == len(SCALINGS) - 1, "a given magnitude leaves the frequencies alone"


@pytest.mark.long
def test_the_model_of_transformers_gives_the_same_tables_and_turns():
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    torch = pytest.importorskip("torch")
    config = transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=2, head_dim=16, max_position_embeddings=64
    )
    positions = np.array([[0, 1, 2, 3, 4], [30, 31, 32, 33, 63]])
    rng = np.random.default_rng(0)
    query, key = (rng.standard_normal((2, n, 5, 16)).astype(np.float32) for n in (4, 2))
    embedding = llama.LlamaRotaryEmbedding(config)
    cos, sin = embedding(torch.from_numpy(query), torch.from_numpy(positions))
    wanted = llama.apply_rotary_pos_emb(torch.from_numpy(query), torch.from_numpy(key), cos, sin)
    tables = F.rotary_tables(gptrs.tensor(positions), 16)
    np.testing.assert_allclose(tables[0].numpy(), cos[..., :8].numpy(), atol=1e-6)
    np.testing.assert_allclose(tables[1].numpy(), sin[..., :8].numpy(), atol=1e-6)
    for x, turned in zip((query, key), wanted, strict=True):
        found = F.rotary(gptrs.tensor(x), *tables).numpy()
        np.testing.assert_allclose(found, turned.numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_depend_on_distances_alone(interleaved):
    """What rotary embeddings are for: q at i and k at j score as q at i + 9 and k at j + 9."""
    rng = np.random.default_rng(0)
    query, key = (
        gptrs.tensor(rng.standard_normal((1, 1, 4, 16)).astype(np.float32)) for _ in range(2)
    )

    def scores(start: int) -> np.ndarray:
        tables = F.rotary_tables(F.arange(start, start + 4), 16)
        q, k = (F.rotary(x, *tables, interleaved=interleaved) for x in (query, key))
        return F.matmul(q, F.transpose(k, (0, 1, 3, 2))).numpy()

    np.testing.assert_allclose(scores(9), scores(0), atol=1e-5)
    assert np.abs(scores(0) - F.matmul(query, F.transpose(key, (0, 1, 3, 2))).numpy()).max() > 0.1


def test_the_two_forms_are_one_up_to_the_order_of_components():
    x = gptrs.tensor(np.random.default_rng(0).standard_normal((1, 2, 3, 8)).astype(np.float32))
    order = np.array([0, 4, 1, 5, 2, 6, 3, 7])
    tables = F.rotary_tables(F.arange(3), 8)
    halves = F.rotary(x, *tables).numpy()
    pairs = F.rotary(gptrs.tensor(x.numpy()[..., order]), *tables, interleaved=True).numpy()
    np.testing.assert_array_equal(pairs, halves[..., order])


def test_position_zero_and_the_components_behind_are_kept():
    x = gptrs.tensor(np.random.default_rng(0).standard_normal((1, 1, 2, 8)).astype(np.float32))
    found = F.rotary(x, *F.rotary_tables(F.arange(2), 4)).numpy()
    np.testing.assert_array_equal(found[:, :, 0], x.numpy()[:, :, 0])
    np.testing.assert_array_equal(found[..., 4:], x.numpy()[..., 4:])
    assert (found[:, :, 1, :4] != x.numpy()[:, :, 1, :4]).all()


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16])
def test_tables_of_f32_round_small_floats_once(dtype):
    wide = np.random.default_rng(0).standard_normal((1, 2, 5, 8)).astype(np.float32)
    x = F.cast(gptrs.tensor(wide), dtype)
    positions = F.arange(5)
    tables = F.rotary_tables(positions, 8)
    once = F.rotary(x, *tables)
    assert once.dtype is dtype
    wanted = F.cast(F.rotary(F.cast(x, dtypes.f32), *tables), dtype)
    np.testing.assert_array_equal(once.numpy(), wanted.numpy())
    small = F.rotary_tables(positions, 8, dtype=dtype)
    assert {table.dtype for table in small} == {dtype}
    assert F.rotary(x, *small).dtype is dtype


@pytest.mark.parametrize("shape", [(1, 2, 0, 8), (0, 2, 3, 8), (2, 0, 3, 8)])
def test_empty_tensors(shape):
    tables = F.rotary_tables(F.arange(shape[2]), 8)
    assert F.rotary(gptrs.tensor(np.zeros(shape, np.float32)), *tables).shape == shape


X, TABLE = f32(2, 3, 5, 8), f32(5, 4)
REFUSALS = [
    (
        lambda: F.rotary_frequencies(7),
        "`rotary_frequencies` needs an even head_dim of at least 2, got 7",
    ),
    (
        lambda: F.rotary_frequencies(0),
        "`rotary_frequencies` needs an even head_dim of at least 2, got 0",
    ),
    (
        lambda: F.rotary_frequencies(8, 1.0),
        "`rotary_frequencies` needs a finite theta above 1, got 1.0",
    ),
    (
        lambda: F.rotary_frequencies(8, length=-1),
        "`rotary_frequencies` needs a length of at least 0, got -1",
    ),
    (
        lambda: F.rotary_frequencies(8, length=f32()),
        "`rotary_frequencies` needs an integer `length`, got `f32[]`",
    ),
    (
        lambda: F.rotary_frequencies(2, scaling=F.DynamicScaling(2.0, 8)),
        "`DynamicScaling` needs a head_dim of at least 4, got 2",
    ),
    (
        lambda: F.rotary_tables(f32(5), 8),
        "`rotary_tables` needs an integer `positions`, got `f32[5]`",
    ),
    (
        lambda: F.rotary_tables(F.arange(5), 8, dtype=dtypes.si8),
        "`rotary_tables` makes tables of a floating-point type, got si8",
    ),
    (
        lambda: F.rotary(f32(5, 8), TABLE, TABLE),
        "`rotary` needs `x` of rank 4 [B, H, T, D], got `f32[5, 8]`",
    ),
    (lambda: F.rotary(X, TABLE, TABLE, heads_axis=3), "`rotary` takes heads_axis=1 or 2, got 3"),
    (
        lambda: F.rotary(F.cast(X, dtypes.f16), *[F.cast(TABLE, dtypes.bf16)] * 2),
        "`rotary` of `f16[2, 3, 5, 8]` needs tables of f16 or f32, got `bf16[5, 4]`",
    ),
    (
        lambda: F.rotary(X, TABLE, F.cast(TABLE, dtypes.f16)),
        "`rotary` needs tensors of one element type, got `f32[5, 4]`, `f16[5, 4]`",
    ),
    (
        lambda: F.rotary(X, f32(4, 4), f32(4, 4)),
        "`rotary` of `f32[2, 3, 5, 8]` needs tables [5, R / 2] or [2, 5, R / 2],"
        " got `f32[4, 4]` and `f32[4, 4]`",
    ),
    (
        lambda: F.rotary(X, TABLE, f32(5, 3)),
        "`rotary` of `f32[2, 3, 5, 8]` needs tables [5, R / 2] or [2, 5, R / 2],"
        " got `f32[5, 4]` and `f32[5, 3]`",
    ),
    (
        lambda: F.rotary(X, f32(5, 5), f32(5, 5)),
        "`rotary` with tables of `f32[5, 5]` rotates 10 components, but `f32[2, 3, 5, 8]` has 8",
    ),
    (lambda: F.LinearScaling(0.5), "`LinearScaling` needs a finite factor of at least 1, got 0.5"),
    (
        lambda: F.DynamicScaling(2.0, 0),
        "`DynamicScaling` needs `max_position` of at least 1, got 0",
    ),
    (
        lambda: F.YarnScaling(2.0, 8, beta_fast=1, beta_slow=2),
        "`YarnScaling` needs 0 < beta_slow <= beta_fast, got 2 and 1",
    ),
    (
        lambda: F.LongRopeScaling((1.0, 2.0), (1.0,), 2.0, 8),
        "`LongRopeScaling` needs as many positive factors for long texts as for short ones,"
        " got 2 and 1",
    ),
    (
        lambda: F.rotary_frequencies(6, scaling=F.LongRopeScaling((1.0,), (1.0,), 2.0, 8)),
        "`LongRopeScaling` needs 3 factors for 6 rotated components, got 1",
    ),
    (
        lambda: F.Llama3Scaling(2.0, 4.0, 4.0, 8),
        "`Llama3Scaling` needs 0 < low_frequency_factor < high_frequency_factor, got 4.0 and 4.0",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusal(call, message):
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.message == message
