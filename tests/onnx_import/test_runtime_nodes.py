"""ONNX Runtime's own operators: what no kernel of its CPU gives, refusals, free sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")

from onnx import parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.errors import ModelError, UnsupportedError  # noqa: E402

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft": 1]>\n'


def run(text: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return gptrs_onnx.from_proto(parser.parse_model(HEAD + text), "ref")(**inputs)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "floats"])
def test_columns_of_a_weight_may_be_in_any_order_of_blocks(bits: int, zeros: str) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (3, 48))
    points = rng.integers(0, 2**bits, (3, 4))
    order, x, scales = rng.integers(0, 3, 40).astype(np.int32), floats(2, 40), floats(3, 3)

    def packed(values: np.ndarray) -> np.ndarray:
        parts = values.reshape(len(values), -1, 8 // bits)
        return (parts << (np.arange(8 // bits) * bits)).sum(-1).astype(np.uint8)

    used = np.full((3, 3), 2 ** (bits - 1)) if zeros == "none" else points[:, :3]
    weight = (codes[:, :40] - used[:, order]) * scales[:, order]
    given = {"x": x, "c": packed(codes).reshape(3, 3, -1), "s": scales, "o": order}
    kind = "float[3, 3] z" if zeros == "floats" else "uint8[3, n] z"
    if zeros != "none":
        size = -(-3 * bits // 8)
        given["z"] = used.astype(np.float32) if zeros == "floats" else packed(points)[:, :size]
    takes = "float[2, 40] x, uint8[3, 3, m] c, float[3, 3] s, int32[40] o"
    takes, z = (takes, "") if zeros == "none" else (f"{takes}, {kind}", "z")
    node = f"MatMulNBits <K = 40, N = 3, bits = {bits}, block_size = 16> (x, c, s, {z or 'e'}, o)"
    text = f"g ({takes}) => (float[2, 3] y) {{ y = com.microsoft.{node} }}"
    model = parser.parse_model(HEAD + text)
    if not z:
        model.graph.node[0].input[3] = ""
    found = gptrs_onnx.from_proto(model, "ref")(**given)["y"]
    np.testing.assert_allclose(found, x @ weight.T, rtol=1e-5, atol=1e-5)


def test_a_weight_without_codes_is_zero() -> None:
    node = "com.microsoft.MatMulNBits <K = 32, N = 3, block_size = 16> (x, c, s, e, e, b)"
    takes = "float[2, 32] x, uint8[0, 2, 8] c, float[0] s, float[3] b"
    text = f"g ({takes}) => (float[2, 3] y) {{ y = {node} }}"
    model = parser.parse_model(HEAD + text)
    model.graph.node[0].input[3] = model.graph.node[0].input[4] = ""
    given = {"x": floats(2, 32), "c": np.zeros((0, 2, 8), np.uint8), "s": np.zeros(0, np.float32)}
    found = gptrs_onnx.from_proto(model, "ref")(**given, b=floats(3))["y"]
    np.testing.assert_array_equal(found, np.broadcast_to(floats(3), (2, 3)))


@pytest.mark.parametrize("kind", [0, 1], ids=["fp4", "nf4"])
def test_floats_of_4_bits_in_blocks_across_rows(kind: int) -> None:
    runtime: Any = pytest.importorskip("onnxruntime", reason="it has the table of the codes")
    node = f"MatMulBnb4 <K = 20, N = 3, block_size = 16, quant_type = {kind}> (x, c, s)"
    takes = "float[2, 20] x, uint8[30] c, float[4] s"
    text = f"g ({takes}) => (float[2, 3] y) {{ y = com.microsoft.{node} }}"
    codes = np.random.default_rng(kind).integers(0, 256, 30).astype(np.uint8)
    given = {"x": floats(2, 20), "c": codes, "s": np.arange(1, 5, dtype=np.float32)}
    session = runtime.InferenceSession(parser.parse_model(HEAD + text).SerializeToString())
    np.testing.assert_allclose(run(text, given)["y"], session.run(None, given)[0], rtol=1e-5)


def test_query_key_and_value_may_lie_in_one_tensor() -> None:
    query, key, value = floats(2, 5, 8), floats(2, 5, 8) + 1, floats(2, 5, 8) * 2
    apart = run(
        "g (float[2, 5, 8] q, float[2, 5, 8] k, float[2, 5, 8] v) => (float[2, 5, 8] y)"
        " { y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }",
        {"q": query, "k": key, "v": value},
    )["y"]
    heads = [each.reshape(2, 5, 2, 4) for each in (query, key, value)]
    together = run(
        "g (float[2, 5, 2, 3, 4] q) => (float[2, 5, 8] y)"
        " { y = com.microsoft.MultiHeadAttention <num_heads = 2> (q) }",
        {"q": np.stack(heads, 3)},
    )["y"]
    pair = run(
        "g (float[2, 5, 8] q, float[2, 5, 2, 2, 4] k) => (float[2, 5, 8] y)"
        " { y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k) }",
        {"q": query, "k": np.stack(heads[1:], 3)},
    )["y"]
    np.testing.assert_array_equal(together, apart)
    np.testing.assert_array_equal(pair, apart)


GROUPED = """
g (float[b, s, 64] q, float[b, s, 32] kv, float[b, 2, p, 16] k, float[b, 2, p, 16] v,
   int64[b, t] mask, float[32, 8] cosines, float[32, 8] sines)
    => (float[b, s, 64] y, float[b, 2, u, 16] k2, float[b, 2, u, 16] v2) {
  one = Constant <value_ints = [1]> ()
  count = ReduceSum <keepdims = 0> (mask, one)
  less = Sub (count, one)
  last = Cast <to = 6> (less)
  shape = Shape (mask)
  axis = Constant <value_int = 1> ()
  length = Gather (shape, axis)
  total = Cast <to = 6> (length)
  y, k2, v2 = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2, do_rotary = 1>
      (q, kv, kv, k, v, last, total, cosines, sines)
}
"""
"""A layer as builders of language models write it: lengths come out of the mask."""


def grouped(start: int, steps: int, held: int) -> dict[str, np.ndarray]:
    """Return the inputs for positions `start` on of a text of 8, and zeros for the past."""
    rng = np.random.default_rng(7)
    q, kv = rng.standard_normal((2, 1, 8, 64)), rng.standard_normal((1, 8, 32))
    angles = np.outer(np.arange(32), 0.3 ** np.arange(8))
    made = {
        "q": q[0][:, start : start + steps], "kv": kv[:, start : start + steps],
        "k": np.zeros((1, 2, held, 16)), "v": np.zeros((1, 2, held, 16)),
        "cosines": np.cos(angles), "sines": np.sin(angles),
    }  # fmt: skip
    given = {name: each.astype(np.float32) for name, each in made.items()}
    return {**given, "mask": np.ones((1, start + steps), np.int64)}


def test_heads_of_queries_and_keys_are_normalized_before_they_are_rotated() -> None:
    weights, given = [1 + floats(16), 2 + floats(16)], grouped(0, 8, 0)
    normed = GROUPED.replace("do_rotary = 1", "do_rotary = 1, qk_norm_epsilon = 1e-3")
    normed = normed.replace("(q, kv, kv,", "(q, kv, v0,").replace(
        "cosines, sines)\n}", 'cosines, sines, "", "", "", "", "", qw, kw)\n}'
    )
    normed = normed.replace("float[b, s, 32] kv,", "float[b, s, 32] kv, float[b, s, 32] v0,")
    plain = normed.replace(', "", "", "", "", "", qw, kw', "")
    normed = normed.replace("int64[b, t] mask", "float[16] qw, float[16] kw, int64[b, t] mask")
    expected = dict(given, v0=given["kv"])
    for name, weight in zip(("q", "kv"), weights, strict=True):
        heads = given[name].reshape(1, 8, -1, 16)
        scale = np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-3)
        expected[name] = (heads / scale * weight).reshape(given[name].shape)
    found = run(normed, {**given, "v0": given["kv"], "qw": weights[0], "kw": weights[1]})
    for name, each in run(plain, expected).items():
        np.testing.assert_allclose(found[name], each, rtol=1e-4, atol=1e-5)


def test_steps_over_a_growing_cache_give_what_the_whole_text_gives() -> None:
    model: Any = gptrs_onnx.from_proto(parser.parse_model(HEAD + GROUPED), "ref")
    whole = model(**grouped(0, 8, 0))
    found, caches = [], {}
    for start, steps in ((0, 4), (4, 1), (5, 1), (6, 2)):
        made = model(**{**grouped(start, steps, 0), **caches})
        caches = {"k": made["k2"], "v": made["v2"]}
        found.append(made["y"])
    np.testing.assert_allclose(np.concatenate(found, 1), whole["y"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(caches["k"], whole["k2"], rtol=1e-5, atol=1e-6)
    assert not model._is_static


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("GroupQueryAttention <num_heads = 4, kv_num_heads = 2, sliding_window_cache = 1>"
         " (q, kv, kv, k, v, last, total)", "has the attribute `sliding_window_cache`"),
        ("GroupQueryAttention <num_heads = 4, kv_num_heads = 2>"
         " (q, kv, kv, k, v, last, total, q, q, q, q, q, q)", "has the input `k_scale`"),
        ("Attention <num_heads = 2, past_present_share_buffer = 1> (q, q, q)",
         "has the attribute `past_present_share_buffer`"),
        ("MultiHeadAttention <num_heads = 2> (q, q, q, q, q, q, q, q, last)", "shares the buffers"),
        ("RotaryEmbedding <scale = 2.0> (q, last, q, q)", "has a scale"),
        ("MatMulNBits <K = 16, N = 2, bits = 3, block_size = 16> (q, q, q)", "weights of 3 bits"),
        ("MatMulBnb4 <K = 64, N = 1, block_size = 64, quant_type = 2> (q, q, q)", "the type 2"),
        ("FusedConv <activation = \"Exp\"> (k, k)", "has the activation 'Exp'"),
        ("MoE <use_sparse_mixer = 1> (q, q, q, q, q)", "has the attribute `use_sparse_mixer`"),
        ("MoE <activation_type = \"swiglu\"> (q, q, q, q, q)", "has a `swiglu_fusion` of 0"),
        ("MoE (q, q, q, q, q, q, q)", "has the input `fc3_experts_weights`"),
        ("QMoE <quant_type = \"fp4\"> (q, q, q, q, q, q, q)", "bits of the type 'fp4'"),
        ("BeamSearch (last, last, last)", "searches for a text.*gptrs generate"),
        ("SparseAttention (q, q, q, k, v, last, last, last, last)", "blocks of the keys"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name(node: str, reason: str) -> None:
    text = (
        "g (float[1, 1, 64] q, float[1, 1, 32] kv, float[1, 2, 4, 16] k, float[1, 2, 4, 16] v,"
        f" int32[1] last, int32[1] total) => (float[1, 1, 64] y) {{ y = com.microsoft.{node} }}"
    )
    model = gptrs_onnx.from_proto(parser.parse_model(HEAD + text), "ref")
    given = {name: np.ones([int(size) for size in slot.shape or ()], slot.dtype.numpy)
             for name, slot in model.inputs.items()}  # fmt: skip
    with pytest.raises(UnsupportedError, match=reason):
        model(**given)


@pytest.mark.parametrize("both", [0, 1])
def test_a_bias_by_distance_is_that_of_t5(both: int) -> None:
    def bucket(distance: int) -> int:
        count, first = (4, 4 * (distance > 0)) if both else (8, 0)
        behind = abs(distance) if both else max(-distance, 0)
        exact = count // 2
        if behind < exact:
            return first + behind
        share = math.log(behind / exact) / math.log(20 / exact)
        return first + min(exact + int(share * (count - exact)), count - 1)

    text = f"""g (float[8, 3] t, float[a] q, float[b] k) => (float[1, 3, a, b] y) {{
        s = Shape (q)
        u = Shape (k)
        zero = Constant <value_int = 0> ()
        m = Gather (s, zero)
        n = Gather (u, zero)
        y = com.microsoft.RelativePositionBias
            <max_distance = 20, is_bidirectional = {both}> (t, m, n)
    }}"""
    table = floats(8, 3)
    found = run(text, {"t": table, "q": floats(31), "k": floats(33)})["y"]
    buckets = [[bucket(key - query) for key in range(33)] for query in range(31)]
    np.testing.assert_array_equal(found[0], table[buckets].transpose(2, 0, 1))


@pytest.mark.parametrize("last", [0, 1])
def test_groups_of_channels_are_normalized_in_both_layouts(last: int) -> None:
    x, skip = floats(2, 4, 3, 5), floats(2, 4)
    scale, shift, bias = floats(4), floats(4) + 1, floats(4) * 2
    total = x + skip[:, :, None, None] + bias[:, None, None]
    parts = total.reshape(2, 2, -1)
    normal = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 0.1)
    wanted = normal.reshape(x.shape) * scale[:, None, None] + shift[:, None, None]
    wanted = wanted / (1 + np.exp(-wanted))
    shape = "2, 3, 5, 4" if last else "2, 4, 3, 5"
    turn = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    settings = f"groups = 2, epsilon = 0.1, activation = 1, channels_last = {last}"
    found = run(
        f"g (float[{shape}] x, float[4] s, float[4] b, float[2, 4] k, float[4] c)"
        f" => (float[{shape}] y, float[{shape}] z)"
        f" {{ y, z = com.microsoft.SkipGroupNorm <{settings}> (x, s, b, k, c) }}",
        {
            "x": np.ascontiguousarray(x.transpose(turn)),
            "s": scale,
            "b": shift,
            "k": skip,
            "c": bias,
        },
    )
    np.testing.assert_allclose(found["z"], total.transpose(turn), rtol=1e-5)
    np.testing.assert_allclose(found["y"], wanted.transpose(turn), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_positions_of_no_number_are_the_first_one(padding: str) -> None:
    runtime: Any = pytest.importorskip("onnxruntime", reason="the standard leaves it open")
    grid = floats(1, 3, 4, 2)
    grid[0, 0, 0, 0], grid[0, 0, 1], grid[0, 1, 2, 1] = math.nan, math.inf, -math.inf
    given = {"x": floats(1, 2, 4, 5), "p": grid}
    node = f'com.microsoft.GridSample <padding_mode = "{padding}"> (x, p)'
    text = f"g (float[1, 2, 4, 5] x, float[1, 3, 4, 2] p) => (float[1, 2, 3, 4] y) {{ y = {node} }}"
    session = runtime.InferenceSession(parser.parse_model(HEAD + text).SerializeToString())
    wanted = session.run(None, given)[0]
    np.testing.assert_allclose(run(text, given)["y"], wanted, rtol=1e-5, atol=1e-6)


def test_antialiased_bytes_are_rounded_after_each_axis() -> None:
    runtime: Any = pytest.importorskip("onnxruntime", reason="the standard leaves it open")
    x = np.random.default_rng(0).integers(0, 256, (1, 2, 11, 9)).astype(np.uint8)
    node = 'Resize <mode = "cubic", antialias = 1> (x, e, e, s)'
    sizes = "<int64[4] s = {1, 2, 3, 20}>"
    text = f"g (uint8[1, 2, 11, 9] x) => (uint8[1, 2, 3, 20] y) {sizes} {{ y = {node} }}"
    model = parser.parse_model(HEAD + text)
    model.graph.node[0].input[1] = model.graph.node[0].input[2] = ""
    wanted = runtime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_array_equal(gptrs_onnx.from_proto(model, "ref")(x=x)["y"], wanted)


def test_inverses_and_determinants_of_any_size_have_one_program() -> None:
    model = gptrs_onnx.from_proto(
        parser.parse_model(
            f"{HEAD} g (float[k, m, n] x) => (float[k, m, n] y, float[k] d)"
            " { y = com.microsoft.Inverse (x) d = Det (x) }"
        ),
        "ref",
    )
    for count, size in ((2, 4), (1, 4), (3, 1), (1, 7)):
        x = floats(count, size, size)
        found = model(x)
        np.testing.assert_allclose(found["y"], np.linalg.inv(x), 1e-3, 1e-3)
        np.testing.assert_allclose(found["d"], np.linalg.det(x), 1e-4, 1e-4)
    assert np.isnan(model(np.ones((1, 2, 2), np.float32))["y"]).all()
    assert "f32[?0, ?1, ?1]" in str(model.program(floats(2, 4, 4)))
    with pytest.raises(ModelError, match="square"):
        run("g (float[m, n] x) => (float d) { d = Det (x) }", {"x": floats(2, 3)})


def test_states_after_empty_sequences_are_zeros_as_in_onnx_runtime() -> None:
    runtime: Any = pytest.importorskip("onnxruntime", reason="the standard does not say")
    text = (
        "g (float[3, b, 2] x, float[1, 6, 2] w, float[1, 6, 2] r, int32[b] l, float[1, b, 2] h)"
        " => (float[3, 1, b, 2] y, float[1, b, 2] z)"
        " { y, z = GRU <hidden_size = 2> (x, w, r, , l, h) }"
    )
    given = {
        "x": floats(3, 3, 2), "w": floats(1, 6, 2), "r": floats(1, 6, 2),
        "l": np.array([3, 0, 1], np.int32), "h": floats(1, 3, 2),
    }  # fmt: skip
    session = runtime.InferenceSession(parser.parse_model(HEAD + text).SerializeToString())
    for found, wanted in zip(run(text, given).values(), session.run(None, given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert not run(text, given)["z"][0, 1].any()
