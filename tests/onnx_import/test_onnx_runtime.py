"""Graphs that gptrs converts give what ONNX Runtime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same graphs")

from onnx import parser  # noqa: E402

import gptrs_onnx  # noqa: E402

CONVOLUTIONS = """
g (float[n, 3, h, w] x, float[8, 3, 3, 3] k, float[8, 1, 7, 7] d, float[8] s)
    => (float[n, 8, a, b] y) {
  c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, k)
  e = Conv <group = 8, pads = [3, 3, 3, 3]> (c, d, s)
  t = Transpose <perm = [0, 2, 3, 1]> (e)
  l = LayerNormalization <axis = -1> (t, s, s)
  g = Gelu (l)
  u = Transpose <perm = [0, 3, 1, 2]> (g)
  y = Add (u, c)
}
"""
ATTENTION = """
g (float[n, t, 16] x, float[16, 48] k) => (float[n, t, 16] y) {
  shape = Constant <value_ints = [0, 0, 3, 4, 4]> ()
  flat = Constant <value_ints = [0, 0, 16]> ()
  p = MatMul (x, k)
  r = Reshape (p, shape)
  q, v, w = Split <axis = 2, num_outputs = 3> (r)
  two = Constant <value_ints = [2]> ()
  q4 = Squeeze (q, two)
  k4 = Squeeze (v, two)
  v4 = Squeeze (w, two)
  qt = Transpose <perm = [0, 2, 1, 3]> (q4)
  kt = Transpose <perm = [0, 2, 3, 1]> (k4)
  vt = Transpose <perm = [0, 2, 1, 3]> (v4)
  s = MatMul (qt, kt)
  a = Softmax <axis = -1> (s)
  o = MatMul (a, vt)
  b = Transpose <perm = [0, 2, 1, 3]> (o)
  y = Reshape (b, flat)
}
"""
RECURRENT = """
g (float[t, n, 4] x, float[2, 20, 4] w, float[2, 20, 5] r, float[2, 40] b)
    => (float[t, 2, n, 5] y, float[2, n, 5] h) {
  y, h = LSTM <direction = "bidirectional", hidden_size = 5> (x, w, r, b)
}
"""
RESIZED = """
g (float[n, 2, h, w] x) => (float[n, 2, a, b] y) {
  none = Constant <value = float[0] {}> ()
  scales = Constant <value_floats = [1.0, 1.0, 2.0, 1.5]> ()
  y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, none, scales)
}
"""
WIDENED = """
g (float[n, 3, h, w] x, float[3, 5, 2, 3] k, float[5] s) => (float[n, 5, a, b] y) {
  y = ConvTranspose <strides = [2, 3]> (x, k, s)
}
"""
CASES = {
    "widened": (WIDENED, {"x": (2, 3, 4, 5), "k": (3, 5, 2, 3), "s": (5,)}),
    "convolutions": (
        CONVOLUTIONS,
        {"x": (2, 3, 12, 16), "k": (8, 3, 3, 3), "d": (8, 1, 7, 7), "s": (8,)},
    ),
    "attention": (ATTENTION, {"x": (2, 7, 16), "k": (16, 48)}),
    "recurrent": (RECURRENT, {"x": (6, 3, 4), "w": (2, 20, 4), "r": (2, 20, 5), "b": (2, 40)}),
    "resized": (RESIZED, {"x": (1, 2, 5, 8)}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_graph_gives_the_same_on_both(case: str, backend: Any) -> None:
    text, shapes = CASES[case]
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(size).astype(np.float32) for name, size in shapes.items()}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    wanted = dict(zip([o.name for o in proto.graph.output], session.run(None, inputs), strict=True))
    found = gptrs_onnx.from_proto(proto, backend)(**inputs)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-5, err_msg=name)


SEEN = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]] * 3, bool)
MASKED = {
    "attention, i1": ("y = Attention (q, k, k, m)", SEEN),
    "attention, -inf": ("y = Attention (q, k, k, m)", np.where(SEEN, 0, -np.inf)),
    "written out": ("""
        t = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul (q, t)
        b = Add (s, m)
        p = Softmax <axis = -1> (b)
        y = MatMul (p, k)""", np.where(SEEN, 0, -np.inf)),
    "written out, least": ("""
        t = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul (q, t)
        b = Add (s, m)
        p = Softmax <axis = -1> (b)
        y = MatMul (p, k)""", np.where(SEEN, 0, np.finfo(np.float32).min)),
}  # fmt: skip
"""`Attention` gives 0 for a query that sees nothing, a `Softmax` that a file writes out NaN."""


@pytest.mark.parametrize("case", MASKED)
@pytest.mark.parametrize("opset", [23, 24])
def test_queries_that_see_nothing(case: str, opset: int, backend: Any) -> None:
    pytest.importorskip("onnx", minversion="1.23", reason="older bodies of `Attention` give NaN")
    body, mask = MASKED[case]
    mask = mask if mask.dtype == bool else mask.astype(np.float32)
    kind = "bool" if mask.dtype == bool else "float"
    head = f"g (float[1, 2, 9, 8] q, float[1, 2, 4, 8] k, {kind}[9, 4] m) => (float[1, 2, 9, 8] y)"
    proto = parser.parse_model(
        f'<ir_version: 11, opset_import: ["" : {opset}]>\n{head} {{ {body} }}'
    )
    rng = np.random.default_rng(1)
    inputs = {name: rng.standard_normal((1, 2, size, 8), np.float32) for name, size in
              (("q", 9), ("k", 4))} | {"m": mask}  # fmt: skip
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (wanted,) = session.run(None, inputs)
    assert np.isnan(wanted).any() == (case == "written out")
    found = gptrs_onnx.from_proto(proto, backend)(**inputs)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["uint8", "int8", "int32"])
def test_integers_are_resized(name: str, backend: Any) -> None:
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({name}[n, 2, h, w] x) => ({name}[n, 2, a, b] y) {{
      scales = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()
      y = Resize <mode = "linear"> (x, , scales)
    }}""")
    x = np.random.default_rng(0).integers(-99, 99, (1, 2, 5, 4)).astype(name)
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    found = gptrs_onnx.from_proto(proto, backend)(x)["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


_LIMITED = "swiglu_fusion = 1, activation_alpha = 1.702, activation_beta = 1.0, swiglu_limit = 1.0"
MIXTURES = {
    "softmax of all": ("gelu", "k = 2", {}),
    "normalized": ("silu", "k = 2, normalize_routing_weights = 1", {}),
    "limited gates": ("swiglu", f"k = 2, {_LIMITED}", {}),
    "rows of 4 bits": ("swiglu", f"k = 2, {_LIMITED}", {"bits": 4}),
    "rows of 2 bits with zeros": ("relu", "k = 1", {"bits": 2, "zeros": True}),
    "blocks of 4 bits with zeros": ("swiglu", "k = 2, swiglu_fusion = 1", {
        "bits": 4, "block": 16, "zeros": True}),
    "blocks of 8 bits with weights": ("silu", "k = 3, normalize_routing_weights = 1", {
        "bits": 8, "block": 16, "weights": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", MIXTURES)
def test_mixtures_of_experts_are_those_of_the_cpu_kernel(case: str) -> None:
    activation, attributes, form = MIXTURES[case]
    bits, block = form.get("bits", 0), form.get("block", 0)
    width = 32 * (2 if activation == "swiglu" else 1)
    rng = np.random.default_rng(len(case))
    given = {"x": rng.standard_normal((1, 5, 32), np.float32)}
    given["r"] = rng.standard_normal((5, 3), np.float32)
    given["r"][0] = 0  # of equal experts, the last ones
    names = [*"xr"]
    for layer, rows in (("1", width), ("2", 32)):
        weight = rng.standard_normal((3, rows, 32), np.float32)
        given[f"b{layer}"] = rng.standard_normal((3, rows), np.float32)
        if bits:
            scales = (3, rows, 32 // block) if block else (3, rows)
            weight = rng.integers(0, 256, (3, rows, 32 * bits // 8), np.uint8)
            given[f"s{layer}"] = rng.random(scales, np.float32) / 2 ** (bits - 1)
        given[f"w{layer}"] = weight
        names += [f"w{layer}", *[f"s{layer}"] * bool(bits), f"b{layer}"]
    if form.get("zeros"):
        names += ["", "", "", "z1", "z2"]
        for layer, rows in (("1", width), ("2", 32)):
            size = (3, rows, 32 // block * bits // 8) if block else (3, rows * bits // 8)
            given[f"z{layer}"] = rng.integers(0, 256, size, np.uint8)
    if form.get("weights"):
        names += [""] * (14 - len(names)) + ["m"]
        given["m"] = rng.random((5, 3), np.float32)
    if bits:
        attributes += f", expert_weight_bits = {bits}" + f", block_size = {block}" * bool(block)
    takes = ", ".join(
        f"{'uint8' if each.dtype == np.uint8 else 'float'}{list(each.shape)} {name}"
        for name, each in given.items()
    )
    node = f'{"Q" * bool(bits)}MoE <activation_type = "{activation}", {attributes}>'
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'
        f"g ({takes}) => (float[1, 5, 32] y) {{ y = com.microsoft.{node} ({', '.join(names)}) }}"
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (wanted,) = session.run(None, given)
    found = gptrs_onnx.from_proto(proto, "ref")(**given)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_resize_takes_the_pixels_that_coordinates_in_f32_fall_on(rounding, free):
    x = np.arange(37, dtype=np.float32).reshape(1, 1, 37)
    calls = [("asymmetric", 1.6), ("asymmetric", 0.6), ("half_pixel", 1.3), ("half_pixel", 0.3)]
    for coordinates, scale in [*calls, ("tf_half_pixel_for_nn", 0.6)]:
        proto = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[1, 1, {"w" if free else 37}] x) => (float[1, 1, v] y)
          <float[3] scales = {{1, 1, {scale}}}> {{
          y = Resize <coordinate_transformation_mode = "{coordinates}", nearest_mode = "{rounding}">
            (x, , scales) }}""")
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        found = gptrs_onnx.from_proto(proto, "ref")(x)["y"]
        np.testing.assert_array_equal(found, session.run(None, {"x": x})[0])


def test_resize_of_old_operator_sets_rounds_up_where_it_shrinks():
    proto = parser.parse_model("""
    <ir_version: 5, opset_import: ["" : 10]>
    g (float[1, 1, 5, 7] x) => (float[1, 1, v, w] y) <float[4] scales = {1, 1, 0.6, 1.6}>
    { y = Resize (x, scales) }""")
    x = np.arange(35, dtype=np.float32).reshape(1, 1, 5, 7)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    found = gptrs_onnx.from_proto(proto, "ref")(x)["y"]
    np.testing.assert_array_equal(found, session.run(None, {"x": x})[0])
