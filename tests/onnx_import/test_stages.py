"""Graphs whose sizes follow from much data run in stages, and give what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same graphs")

from onnx import numpy_helper, parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.capture import events  # noqa: E402
from gptrs.errors import ExecutionError, UnsupportedError  # noqa: E402

Arrays = Mapping[str, np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def boxes(count: int) -> Arrays:
    rng = np.random.default_rng(count)
    corners = rng.random((count, 4)) * 20
    corners[:, 2:] += corners[:, :2]
    scores = rng.random(count).astype(np.float32)
    return {"b": corners.astype(np.float32), "s": scores, "f": floats(1, 3, 30, count // 50)}


STORED = {"w": floats(2, 3, 3, 3), "half": np.float32(0.5), "zero": np.int64(0)} | {
    name: np.array([value], np.int64)
    for name, value in (("most", 1000), ("z", 0), ("one", 1), ("two", 2), ("three", 3))
}
IMAGES: list[Arrays] = [{"x": floats(1, 3, 48, 50)}, {"x": -floats(2, 3, 40, 44)}]
# Inputs and outputs, nodes, calls.
GRAPHS: dict[str, tuple[str, str, list[Arrays]]] = {
    "a detector with its selection": (
        "(float[n, 4] b, float[n] s, float[1, 3, h, w] f)"
        " => (float[k, 3, 2, 2] y, float[k] t, float[m, 4] good)",
        """i0 = Unsqueeze (b, z) s0 = Unsqueeze (s, z) s1 = Unsqueeze (s0, z)
        kept = NonMaxSuppression (i0, s1, most, overlap)
        last = Slice (kept, two, three, one) i = Squeeze (last, one)
        chosen = Gather (b, i) t = Gather (s, i) count = Shape (i)
        rows = ConstantOfShape <value = int64[1] {0}> (count)
        y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 1> (f, chosen, rows)
        is_good = Greater (t, half) places = NonZero (is_good) j = Squeeze (places, z)
        good = Gather (chosen, j)""",
        [boxes(1500), boxes(1400)],
    ),
    "a branch by what an image holds": (
        "(float[n, 3, h, w] x) => (float[a, c, h, w] y, float total)",
        """h0 = Conv <pads = [1, 1, 1, 1]> (x, w) h1 = Tanh (h0)
        total = ReduceSum <keepdims = 0> (h1) few = Less (total, half)
        y = If (few)
            <then_branch = t1 () => (float[d, 2, h, w] q) { q = Concat <axis = 0> (h1, h1) },
             else_branch = t2 () => (float[e, 2, h, w] q) { q = Neg (h1) }>""",
        IMAGES,
    ),
    "as many of the largest as there are above a bound": (
        "(float[n, 3, h, w] x) => (float[k] y, int64 count)",
        """less = Neg (one) flat = Reshape (x, less) is_more = Greater (flat, half)
        codes = Cast <to = 7> (is_more) k = ReduceSum <keepdims = 1> (codes)
        y, i = TopK (flat, k) count = Squeeze (k)""",
        IMAGES,
    ),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_graphs_compute_what_onnx_runtime_does(case: str) -> None:
    slots, nodes, calls = GRAPHS[case]
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {slots} {{ {nodes} }}')
    stored = {**STORED, "overlap": np.array([0.3], np.float32)}
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(each), name)
        for name, each in stored.items()
        if name in used
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    model = gptrs_onnx.from_proto(proto, "ref")
    for given in (*calls, calls[0]):
        for found, wanted in zip(model(**given).values(), peer.run(None, given), strict=True):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


class Compiled(events.ExecutionTraceSink):
    """Notes which conversions of graphs are compiled."""

    def __init__(self) -> None:
        self.origins: list[str] = []

    def before_program(self, event: events.CompileStart) -> None:
        if "onnx_model" in event.origin:
            self.origins.append(event.origin)


def test_new_values_of_a_small_input_compile_nothing() -> None:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x, int64[1] k) => (float[m] y, float[j] top) {
      places = NonZero (x) z = Constant <value_ints = [0]> () i = Squeeze (places, z)
      h = Gather (x, i) y = Neg (h) top, order = TopK (x, k) }""")
    model, sink = gptrs_onnx.from_proto(proto, "ref"), Compiled()
    model.program(np.ones(3, np.float32), np.array([1]))  # one program has the values compiled in
    with events.tracing(sink):
        for number in range(6):
            x = np.array([number, 0, 1, -number], np.float32)
            found = model(x, np.array([2]))
            np.testing.assert_array_equal(found["y"], -x[x != 0])
            np.testing.assert_array_equal(found["top"], np.sort(x)[:-3:-1])
    assert 0 < len(sink.origins) <= 3


def test_a_loop_that_data_inside_of_it_ends_is_refused() -> None:
    model = gptrs_onnx.from_proto(
        parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x) => (float s, float[k] y) {
          top = ReduceMax <keepdims = 0> (x) t = Constant <value = bool {1}> ()
          s, y = Loop ("", t, top) <body = b (int64 i, bool c, float a)
              => (bool c2, float a2, float o) {
            half = Constant <value_float = 0.5> () a2 = Mul (a, half) o = Identity (a2)
            c2 = Greater (a2, half) }> }"""),
        "ref",
    )
    assert model(np.array([3, 5], np.float32))["y"].tolist() == [2.5, 1.25, 0.625, 0.3125]
    with pytest.raises(UnsupportedError, match="the condition of `Loop` depends on the values"):
        model(np.ones(5000, np.float32))


def test_an_input_may_have_the_name_of_a_parameter_of_python() -> None:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] self) => (float[2] y) { y = Neg (self) }""")
    model = gptrs_onnx.from_proto(proto, "ref")
    assert model(self=np.ones(2, np.float32))["y"].tolist() == [-1, -1]


def test_an_index_out_of_range_is_told_in_a_stage_too() -> None:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x, int64[m] i) => (float[k] y) {
      h = Gather (x, i) places = NonZero (h) z = Constant <value_ints = [0]> ()
      j = Squeeze (places, z) y = Gather (h, j) }""")
    model, x = gptrs_onnx.from_proto(proto, "ref"), np.arange(5000, dtype=np.float32)
    assert model(x, np.arange(5000))["y"].shape == (4999,)
    for places in (np.full(5000, 7000), np.array([7000])):
        with pytest.raises(ExecutionError, match="reads index 7000"):
            model(x, places)


def test_a_graph_in_stages_is_no_single_program_for_small_inputs_either() -> None:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x) => (float[m] y) {
      places = NonZero (x) z = Constant <value_ints = [0]> () i = Squeeze (places, z)
      y = Gather (x, i) }""")
    with pytest.raises(UnsupportedError, match="`NonZero`") as refused:
        gptrs_onnx.from_proto(proto, "ref").captured(np.ones(3, np.float32))
    assert str(refused.value.hint).startswith("calls compute it in stages")
