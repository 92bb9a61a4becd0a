"""Graphs with loops, lists, outer names and old operator sets compute what ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same graphs")

from onnx import helper, numpy_helper, parser  # noqa: E402

import gptrs_onnx  # noqa: E402

Arrays = Mapping[str, np.ndarray]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def loop(count: int, carried: str, body: str, outputs: str = "z") -> str:
    return f"""
    m = Constant <value_int = {count}> ()
    t = Constant <value = bool {{1}}> ()
    {outputs} = Loop (m, t, {carried}) <body = b {body}>"""


NUMBERED = "k2 = Identity (k) f = Cast <to = 1> (i) v = Add (x, f)"
LIST_BODY = f"""(int64 i, bool k, seq(float[n, 3]) s) => (bool k2, seq(float[n, 3]) s2) {{
    {NUMBERED} s2 = SequenceInsert (s, v) }}"""
STACKED = f"""(int64 i, bool k, float[n, 3] s) => (bool k2, float[n, 3] s2, float[n, 3] o) {{
    {NUMBERED} s2 = Add (s, v) o = Sub (s2, x) }}"""
JOIN = "z = ConcatFromSequence <axis = 0> (l)"
SQUARES: list[Arrays] = [{"x": floats(2, 3)}, {"x": floats(4, 3)}]
STATISTICS = {name: abs(floats(2, 3)) for name in ("s", "b", "m", "v")}
# Inputs and outputs, operator set, nodes, initializers, calls.
GRAPHS: dict[str, tuple[str, int, str, Arrays, list[Arrays]]] = {
    "a list that grows in a loop": (
        "(float[n, 3] x) => (float[a, b] z)", 17,
        "e = SequenceEmpty ()" + loop(4, "e", LIST_BODY, "l") + JOIN, {}, SQUARES,
    ),
    "a list that grows in a long loop": (
        "(float[n, 3] x) => (float[a, b] z)", 17,
        "e = SequenceEmpty ()" + loop(60, "e", LIST_BODY, "l") + JOIN, {}, SQUARES,
    ),
    "results of a long loop": (
        "(float[n, 3] x) => (float[a, b] z, float[c, d, e] y)", 17,
        loop(70, "x", STACKED, "z, y"), {}, SQUARES,
    ),
    "results of no iterations": (
        "(float[2, 3] x) => (float[a, b] z, float[c, d, e] y)", 17,
        loop(0, "x", STACKED.replace("n, 3", "2, 3"), "z, y"), {}, SQUARES[:1],
    ),
    "results of iterations that an input ends": (
        "(float[n, 3] x, float most) => (float[a, b] z, float[c, d, e] y)", 17,
        """t = Constant <value = bool {1}> ()
        z, y = Loop ("", t, x) <body = b """ + STACKED.replace(
            "k2 = Identity (k)", "w = ReduceMax <keepdims = 0> (s) k2 = Less (w, most)") + ">", {},
        [{**SQUARES[0], "most": np.array(each, np.float32)} for each in (5, -9)],
    ),
    "branches of other sizes, by data": (
        "(float[n, 3] x) => (float[a, b] z)", 17,
        """w = ReduceMax <keepdims = 0> (x) c = Less (w, m)
        z = If (c) <then_branch = t1 () => (float[d, 3] q) { q = Concat <axis = 0> (x, x) },
                    else_branch = t2 () => (float[e, 3] q) { q = Neg (x) }>""",
        {"m": np.array(0, np.float32)}, [SQUARES[0], {"x": -abs(floats(2, 3))}],
    ),
    "sizes that are reduced along no axes": (
        "(float[n, 3] x) => (int64[a] z)", 18,
        "s = Shape (x) z = ReduceProd <noop_with_empty_axes = 1> (s)", {}, SQUARES,
    ),
    "a mask of operator set 7, which has the type of the input": (
        "(float[n, 3] x) => (float[a, b] z)", 7,
        "y, mask = Dropout (x) none = Sub (mask, mask) z = Add (y, none)", {}, SQUARES,
    ),
    "a graph for each element of a list": (
        "(float[4, 3] x) => (float[a, b] z)", 17,
        """p = SplitToSequence (x)
        l = SequenceMap (p, x) <body = b (float[1, 3] s, float[4, 3] w) => (float[4, 3] v) {
            v = Add (s, w) }>""" + JOIN, {}, SQUARES[1:],
    ),
    "names of outer graphs in a branch in a loop": (
        "(float[n, 3] x, bool c) => (float[a, b] z)", 17,
        loop(3, "x", """(int64 i, bool k, float[n, 3] s) => (bool k2, float[n, 3] s2) {
            k2 = Identity (k)
            s2 = If (c) <then_branch = t1 () => (float[n, 3] q) { q = Add (s, x) },
                         else_branch = t2 () => (float[n, 3] q) { q = Mul (s, x) }> }"""), {},
        [{**SQUARES[0], "c": np.array(True)}, {**SQUARES[1], "c": np.array(False)}],
    ),
    "statistics of each element, of operator set 8": (
        "(float[n, 2, 3] x) => (float[n, 2, 3] z)", 8,
        "z = BatchNormalization <spatial = 0> (x, s, b, m, v)", STATISTICS,
        [{"x": floats(5, 2, 3)}],
    ),
    "the nearest elements of mirrored positions, at ties": (
        "(float[n, 2, 5, 6] x, float[n, a, b, 2] p) => (float[n, 2, a, b] z)", 16,
        'z = GridSample <mode = "nearest", padding_mode = "reflection"> (x, p)', {},
        [{"x": floats(2, 2, 5, 6), "p": np.round(floats(2, 7, 9, 2) * 8) / 4}],
    ),
    "scales that are attributes, of operator set 7": (
        "(float[n, 2, 4, 4] x) => (float[n, 2, a, b] z)", 7,
        'z = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]> (x)', {},
        [{"x": floats(2, 2, 4, 4)}],
    ),
}  # fmt: skip


def model_of(case: str) -> Any:
    slots, opset, nodes, stored, _ = GRAPHS[case]
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g {slots} {{ {nodes} }}'
    made = parser.parse_model(text)
    made.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in stored.items())
    return made


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", GRAPHS)
def test_graphs_compute_what_onnx_runtime_does(case: str, backend: Any) -> None:
    proto = model_of(case)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    model = gptrs_onnx.from_proto(proto, backend)
    for given in GRAPHS[case][-1]:
        for found, wanted in zip(model(**given).values(), peer.run(None, given), strict=True):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_allclose(found, wanted, 1e-5, 1e-4)


def test_a_loop_of_many_iterations_may_end_early_though_it_collects_results() -> None:
    body = STACKED.replace("k2 = Identity (k)", "two = Add (i, e) k2 = Less (two, c)")
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 3] x, int64 c) => (float[a, b] z, float[c, d, e] y) {{
        e = Constant <value_int = 2> () {loop(70, "x", body, "z, y")} }}"""
    model = gptrs_onnx.from_proto(parser.parse_model(text), "ref")
    x = SQUARES[0]["x"]
    for bound, count in ((40, 39), (3, 2), (100, 70)):
        numbers = np.arange(count, dtype=np.float32).reshape(-1, 1, 1)
        wanted = x * (numbers + 1) + np.cumsum(numbers, 0)
        np.testing.assert_allclose(model(x, np.array(bound))["y"], wanted, 1e-5, 1e-4)


@pytest.mark.parametrize("count", [4, 5000])
def test_branches_may_name_their_weights_alike(count: int) -> None:
    def part(factor: float) -> Any:
        given = numpy_helper.from_array(np.full(count, factor, np.float32), "w")
        nodes = [helper.make_node("Mul", ["x", "w"], ["q"])]
        result = helper.make_tensor_value_info("q", 1, [count])
        return helper.make_graph(nodes, "part", [], [result], [given])

    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{count}] x, bool c) => (float[{count}] z) {{ z = If (c) }}""")
    proto.graph.node[0].attribute.extend(
        helper.make_attribute(f"{name}_branch", part(factor))
        for name, factor in (("then", 2.0), ("else", 3.0))
    )
    model, x = gptrs_onnx.from_proto(proto, "ref"), floats(count)
    for taken, factor in ((True, 2.0), (False, 3.0)):
        np.testing.assert_array_equal(model(x=x, c=np.array(taken))["z"], x * np.float32(factor))
