"""ONNX models as their users meet them: sizes, inputs, errors, data in other files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")

from onnx import parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.api.programs import CompileStart, ExecutionTraceSink  # noqa: E402
from gptrs.capture.events import tracing  # noqa: E402
from gptrs.errors import ExecutionError, ModelError, UnsupportedError, UsageError  # noqa: E402

OPSET = 'ir_version: 10, opset_import: ["" : 21]'
MLP = """
mlp (float[batch, 4] x) => (float[batch, 2] y)
<float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] b = {0.5, -0.5}> {
  h = MatMul(x, w)
  y = Add(h, b)
}
"""


def model_of(text: str, backend: str = "ref", header: str = OPSET) -> gptrs_onnx.OnnxModel:
    return gptrs_onnx.from_proto(parser.parse_model(f"<{header}>\n{text}"), backend)


def test_one_program_serves_all_sizes_that_the_file_leaves_free() -> None:
    model = model_of(MLP, "numba")
    rng = np.random.default_rng(0)
    weight = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    for batch in (3, 1, 8, 5):
        x = rng.standard_normal((batch, 4)).astype(np.float32)
        expected = x @ weight + np.asarray([0.5, -0.5], np.float32)
        np.testing.assert_allclose(model(x)["y"], expected, rtol=1e-5)
    program = model.program(x)
    assert "f32[?0, 4]" in str(program)


class Backends(ExecutionTraceSink):
    """Notes on which backends programs are compiled."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def before_program(self, event: CompileStart) -> None:
        self.names.append(event.backend)


@pytest.mark.parametrize("name", ["ref", "numba"])
def test_a_graph_without_weights_runs_on_the_backend_of_its_model(name: str) -> None:
    model = model_of("m (float[n] x) => (float[n] y) { y = Relu (x) }", name)
    with tracing(sink := Backends()):
        assert model(np.ones(2, np.float32))["y"].tolist() == [1, 1]
    assert set(sink.names) == {name}


def test_sizes_are_computed_with_where_the_graph_does_so() -> None:
    model = model_of("""
    heads (float[b, t, 12] x) => (float[b, 3, t, 4] y) {
      shape = Shape <start = 0, end = 2> (x)
      rest = Constant <value_ints = [3, 4]> ()
      target = Concat <axis = 0> (shape, rest)
      parts = Reshape (x, target)
      y = Transpose <perm = [0, 2, 1, 3]> (parts)
    }""")
    for batch, tokens in ((2, 5), (3, 7)):
        x = np.arange(batch * tokens * 12, dtype=np.float32).reshape(batch, tokens, 12)
        expected = x.reshape(batch, tokens, 3, 4).transpose(0, 2, 1, 3)
        np.testing.assert_array_equal(model(x)["y"], expected)


def test_values_that_decide_sizes_are_part_of_what_is_compiled() -> None:
    model = model_of("""
    reshaped (float[6] x, int64[2] shape) => (float[n, m] y) {
      y = Reshape (x, shape)
    }""")
    x = np.arange(6, dtype=np.float32)
    for shape in ([2, 3], [3, -1], [6, 1], [2, 3]):
        expected = x.reshape(shape)
        np.testing.assert_array_equal(model(x, np.asarray(shape, np.int64))["y"], expected)


def test_sizes_that_depend_on_much_data_have_no_single_program() -> None:
    model = model_of("places (float[n] x) => (int64[1, m] y) { y = NonZero (x) }")
    assert model(np.asarray([0, 2, 0, 1], np.float32))["y"].tolist() == [[1, 3]]
    many = np.ones(5000, np.float32)
    assert model(many)["y"].tolist() == [list(range(5000))]
    with pytest.raises(UnsupportedError, match=r"`NonZero` depends on the values .* in stages"):
        model.program(many)


def test_functions_of_a_file_are_called_and_may_leave_out_inputs() -> None:
    model = model_of(
        """
        main (float[2] x) => (float[2] y, float[2] z) {
          y = local.scaled <factor = 3.0> (x)
          z = local.scaled (x)
        }
        <opset_import: ["" : 21], domain: "local">
        scaled <factor: float = 2.0> (x) => (y) {
          k = Constant <value_float: float = @factor> ()
          y = Mul (x, k)
        }""",
        header='ir_version: 10, opset_import: ["" : 21, "local" : 1]',
    )
    found = model(np.asarray([1, 2], np.float32))
    assert (found["y"].tolist(), found["z"].tolist()) == ([3, 6], [2, 4])


def test_a_condition_on_data_runs_one_branch() -> None:
    model = model_of("""
    chosen (bool which, float[2] x) => (float[2] y) {
      y = If (which) <
        then_branch = t () => (float[2] a) { a = Neg (x) },
        else_branch = e () => (float[2] b) { b = Identity (x) }
      >
    }""")
    x = np.asarray([1, 2], np.float32)
    assert model(np.asarray(True), x)["y"].tolist() == [-1, -2]
    assert model(np.asarray(False), x)["y"].tolist() == [1, 2]


def test_what_is_not_converted_is_refused_by_name() -> None:
    model = model_of("m (float[2] x) => (float[2] y) { y = RandomNormalLike (x) }")
    with pytest.raises(UnsupportedError, match="`RandomNormalLike` makes random numbers"):
        model(np.ones(2, np.float32))
    unknown = model_of(
        "m (float[2] x) => (float[2] y) { y = com.example.Magic (x) }",
        header='ir_version: 10, opset_import: ["" : 21, "com.example" : 1]',
    )
    with pytest.raises(UnsupportedError, match=r"`com\.example\.Magic` .* does not convert"):
        unknown(np.ones(2, np.float32))


def test_sequences_inside_a_graph_are_the_tensors_that_they_hold() -> None:
    """As exporters write `torch.split`, `stack`, and lists of scripted code."""
    model = model_of("""
    parts (float[5, 2] x) => (float[a, b] first, float[c, d] joined, float[e, f, g] stacked,
                              int64 count, float[h, i] rest, float[j] row)
    <int64 two = {2}, int64 zero = {0}, int64 last = {-1}> {
      parts = SplitToSequence <axis = 0> (x, two)
      first = SequenceAt (parts, zero)
      shorter = SequenceErase (parts, last)
      none = SequenceEmpty <dtype = 1> ()
      one = SequenceInsert (none, first)
      more = SequenceInsert (one, first, zero)
      joined = ConcatFromSequence <axis = 1> (shorter)
      stacked = ConcatFromSequence <axis = 0, new_axis = 1> (more)
      count = SequenceLength (parts)
      rest = SequenceAt (parts, last)
      rows = SplitToSequence <axis = 0, keepdims = 0> (x)
      row = SequenceAt (rows, two)
    }""")
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    found = model(x)
    assert found["count"] == 3
    np.testing.assert_array_equal(found["first"], x[:2])
    np.testing.assert_array_equal(found["joined"], np.concatenate([x[:2], x[2:4]], 1))
    np.testing.assert_array_equal(found["stacked"], np.stack([x[:2], x[:2]]))
    np.testing.assert_array_equal(found["rest"], x[4:])
    np.testing.assert_array_equal(found["row"], x[2])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("s = SplitToSequence (x) y = Relu (s)", "`s`, an input of `Relu`, is a sequence"),
        (
            "y = SplitToSequence (x)",
            "the output `y` is a sequence, and the file says it is a tensor",
        ),
        ("y = SequenceAt (x, one)", "takes a sequence, but its input 0 is not one"),
        ("s = SequenceConstruct (x) y = SequenceAt (s, one)", "element 1 of a sequence of 1"),
        ("z = Cast <to = 8> (x) y = StringConcat (z, z)", "writes numbers as strings"),
    ],
)
def test_what_a_graph_cannot_say_of_lists_is_refused_with_what_to_do(
    nodes: str, message: str
) -> None:
    model = model_of(f"m (float[2, n] x) => (float[a, b] y) <int64 one = {{1}}> {{ {nodes} }}")
    with pytest.raises((UnsupportedError, ModelError)) as caught:
        model(np.ones((2, 3), np.float32))
    assert re.search(message, f"{caught.value}")


def test_boxes_are_chosen_from_few_and_from_many() -> None:
    text = """
    m (float[b, n, 4] x, float[b, c, n] s) => (int64[k, 3] y)
        <int64 most = {2}, float overlap = {0.5}, float least = {0.1}> {
      h = Abs (x)
      y = NonMaxSuppression (h, s, most, overlap, least)
    }"""
    model = model_of(text)
    boxes = [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3], [1, 5, 0, 4], [0, 7, 1, 8]]
    x = np.array([boxes], np.float32)
    scores = np.array([[[0.7, 0.9, 0.05, 0.8, 0.2], [0, 0, 0, 0, 0.3]]], np.float32)
    # The second box hides the first one, the third has too few points, the fifth is one too many.
    wanted = [[0, 0, 1], [0, 0, 3], [0, 1, 4]]
    np.testing.assert_array_equal(model(x, scores)["y"], wanted)
    np.testing.assert_array_equal(model(-x, scores)["y"], wanted)
    many = np.zeros((1, 5000, 4), np.float32), np.zeros((1, 1, 5000), np.float32)
    assert model_of(text)(*many)["y"].shape == (0, 3)
    with pytest.raises(UnsupportedError, match=r"leaves as many boxes .* in stages"):
        model_of(text).program(*many)


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ((), {}, "lacks the input `x`"),
        ((1, 2), {}, "takes 1 inputs, got 2"),
        ((), {"z": 1}, "takes no input `z`"),
        ((np.ones((2, 4)),), {}, r"x: f32\[batch, 4\] got an array of float64"),
        ((np.ones((2, 5), np.float32),), {}, r"got an array of shape \[2, 5\]"),
        ((np.ones(4, np.float32),), {}, r"got an array of shape \[4\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(arrays: tuple, named: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        model_of(MLP)(*arrays, **named)


def test_a_model_tells_its_inputs_and_outputs() -> None:
    assert repr(model_of(MLP)) == "<OnnxModel mlp(x: f32[batch, 4]) -> (y)>"
    listed = gptrs_onnx.supported_operators()
    assert "Conv" in listed["ai.onnx"]
    assert "MatMulNBits" in listed["com.microsoft"]


@pytest.mark.parametrize("place", [-5, 4, -(2**63)])
@pytest.mark.parametrize(
    "node",
    [
        "Gather <axis = 1> (x, i)",
        "GatherElements <axis = 1> (x, i)",
        "ScatterElements <axis = 1> (x, i, u)",
        "GatherND <batch_dims = 1> (x, i)",
    ],
)
def test_an_index_outside_is_told_as_it_was_given(node: str, place: int, backend: Any) -> None:
    model = model_of(
        f"m (float[1, 4] x, int64[1, 1] i) => (float y) <float[1, 1] u = {{1}}> {{ y = {node} }}",
        backend,
    )
    x = np.arange(4, dtype=np.float32)[None]
    for right in (-4, 3):
        assert model(x, np.array([[right]]))["y"].size
    with pytest.raises(ExecutionError, match=f"index {place} "):
        model(x, np.array([[place]]))


@pytest.mark.parametrize("node", ["GatherND (x, i)", "ScatterND (x, i, u)"])
def test_an_index_of_several_axes_is_told_with_its_axis(node: str) -> None:
    text = f"m (float[3, 4] x, int64[k, 2] i, float[k] u) => (float y) {{ y = {node} }}"
    model, x = model_of(text, "ref"), np.zeros((3, 4), np.float32)
    for place, told in (([0, 9], "9 of axis 1, which has size 4"), ([-4, 0], "-4 of axis 0")):
        with pytest.raises(ExecutionError, match=f"index {told}"):
            model(x, np.array([[2, -4], place]), np.ones(2, np.float32))
    nothing = model(x, np.zeros((0, 2), np.int64), np.zeros(0, np.float32))["y"]
    assert nothing.shape == ((0,) if node.startswith("Gather") else x.shape)


def test_an_index_beyond_its_example_reads_no_other_one() -> None:
    text = "m (float[2, 4] x, int64[2, 1] i) => (float y) { y = GatherND <batch_dims = 1> (x, i) }"
    with pytest.raises(ExecutionError, match="index 4 of axis 1, which has size 4"):
        model_of(text, "ref")(np.zeros((2, 4), np.float32), np.array([[4], [0]]))


BODIES = {
    "initializer": "y = MatMul (x, w)",
    "attribute": "w = Constant <value = float {0}> () y = MatMul (x, w)",
    "branch": "c = Constant <value = bool {1}> ()"
    " y = If (c) <then_branch = one () => (float[n, 100] t)"
    " { w = Constant <value = float {0}> () t = MatMul (x, w) }, else_branch = two () =>"
    " (float[n, 100] e) { u = Constant <value = float {0}> () e = MatMul (x, u) }>",
    "function": "y = local.f (x)",
}
"""Where the weight of a model is, which lies in another file."""
FUNCTION = (
    '<opset_import: ["" : 21], domain: "local"> f (x) => (y)'
    " { w = Constant <value = float {0}> () y = MatMul (x, w) }"
)


def constants(nodes: Any) -> Iterator[Any]:
    """Yield the tensors of floats in attributes of nodes and of their branches."""
    for attribute in (each for node in nodes for each in node.attribute):
        if attribute.t.data_type == onnx.TensorProto.FLOAT:
            yield attribute.t
        yield from constants(attribute.g.node)


def with_external_weight(
    folder: Path, location: str, data: bytes, where: str = "initializer", **more: str
) -> Path:
    """Save a model whose weight [64, 100] is said to be in `location`."""
    weight = np.arange(6400, dtype=np.float32).reshape(64, 100)
    weights = " <float[64, 100] w>" if where == "initializer" else ""
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21, "local" : 1]>'
        f" m (float[n, 64] x) => (float[n, 100] y){weights} {{ {BODIES[where]} }}"
        f" {FUNCTION if where == 'function' else ''}"
    )
    tensor = onnx.numpy_helper.from_array(weight, "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    keys = {"location": location, "offset": "16", "length": str(weight.nbytes), **more}
    for key, value in keys.items():
        tensor.external_data.add(key=key, value=value)
    del model.graph.initializer[:]
    if where == "initializer":
        model.graph.initializer.append(tensor)
    for nodes in (model.graph.node, *(each.node for each in model.functions)):
        for constant in constants(nodes):
            constant.CopyFrom(tensor)
    (folder / "weights.bin").write_bytes(data)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


@pytest.mark.parametrize("where", BODIES)
def test_data_in_another_file_is_read_out_of_the_folder(tmp_path: Path, where: str) -> None:
    weight = np.arange(6400, dtype=np.float32)
    path = with_external_weight(tmp_path, "weights.bin", bytes(16) + weight.tobytes(), where)
    x = np.eye(2, 64, dtype=np.float32)
    found = gptrs_onnx.load(path, "ref")(x)["y"]
    np.testing.assert_array_equal(found, weight.reshape(64, 100)[:2])


@pytest.mark.parametrize("where", BODIES)
@pytest.mark.parametrize(
    ("location", "size", "message"),
    [
        ("../weights.bin", 25616, "outside the model's folder"),
        ("/etc/passwd", 25616, "outside the model's folder"),
        ("linked.bin", 25616, "outside the model's folder"),
        ("linked/weights.bin", 25616, "outside the model's folder"),
        ("device", 25616, "outside the model's folder"),
        ("pipe", 25616, "which is not a file"),
        ("missing.bin", 25616, "which is not a file"),
        ("", 25616, "which is not a file"),
        ("a\0b", 25616, "cannot be read: .*null"),
        ("a" * 5000, 25616, "cannot be read: .*too long|which is not a file"),
        ("weights.bin", 25000, r"ends at byte 25616 of `weights\.bin`, which has 25000"),
    ],
)
def test_data_elsewhere_or_too_short_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, location: str, size: int,
    message: str,
) -> None:  # fmt: skip
    folder = tmp_path / "model"
    folder.mkdir()
    path = with_external_weight(folder, location, bytes(size), where)
    (tmp_path / "weights.bin").write_bytes(bytes(size))
    (tmp_path / "missing.bin").write_bytes(bytes(size))
    (folder / "linked.bin").symlink_to(tmp_path / "weights.bin")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "device").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(tmp_path)  # no name counts from there
    with pytest.raises(ModelError, match=message):
        gptrs_onnx.load(path, "ref")


@pytest.mark.parametrize(
    "more", [{"offset": "-4"}, {"length": "-1"}, {"length": "16"}, {"offset": str(2**70)},
             {"length": str(2**70)}, {"offset": "abc"}],
)  # fmt: skip
def test_odd_places_in_a_file_are_refused(tmp_path: Path, more: dict[str, str]) -> None:
    path = with_external_weight(tmp_path, "weights.bin", bytes(25616), **more)
    with pytest.raises(ModelError):
        gptrs_onnx.load(path, "ref")


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    with pytest.raises(ModelError, match="is not a file"):
        gptrs_onnx.load(file)
    file.write_bytes(b"\x80\x04pickle")
    with pytest.raises(ModelError, match="is not an ONNX model"):
        gptrs_onnx.load(file)
    file.write_bytes(b"")
    with pytest.raises(ModelError, match="lacks a graph"):
        gptrs_onnx.load(file)
    old = parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 5]> m (float[2] x) => (float[2] y) { y = Neg (x) }'
    )
    with pytest.raises(UnsupportedError, match=r"operator set 5, sets 7.*version_converter"):
        gptrs_onnx.from_proto(old)
    old.opset_import[0].version = 999
    with pytest.raises(UnsupportedError, match="pip install --upgrade onnx"):
        gptrs_onnx.from_proto(old)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(ModelError, match="a pointer of Git LFS"):
        gptrs_onnx.load(file)


def test_operators_of_onnxruntime_extensions_are_refused_by_name() -> None:
    model = gptrs_onnx.from_proto(parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.contrib" : 1]>
        m (string[n] text) => (int64[n, k] ids) { ids = ai.onnx.contrib.BpeTokenizer (text) }"""
    ), "ref")  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"BpeTokenizer` is .* of onnxruntime-extensions"):
        model(np.array(["a"]))


def test_calls_that_double_forever_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gptrs_onnx.conversion.MAX_NODES", 5000)
    functions = "\n".join(
        f"""<opset_import: ["" : 21, "local" : 1], domain: "local">
        f{i} (x) => (y) {{ a = local.f{i + 1} (x)  y = local.f{i + 1} (a) }}"""
        for i in range(40)
    )
    last = '<opset_import: ["" : 21], domain: "local"> f40 (x) => (y) { y = Identity (x) }'
    proto = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        m (float[2] x) => (float[2] y) {{ y = local.f0 (x) }}
        {functions}
        {last}"""
    )
    with pytest.raises(UnsupportedError, match=r"more than .* nodes"):
        gptrs_onnx.from_proto(proto, "ref")(np.ones(2, np.float32))


def test_weights_inside_the_file_have_an_identity_that_follows_the_file(tmp_path, monkeypatch):
    from gptrs.backend import weight_identity

    path = tmp_path / "m.onnx"

    def written(seed: int) -> None:
        weight = np.random.default_rng(seed).standard_normal((80, 64)).astype(np.float32)
        proto = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        m (float[n, 80] x) => (float[n, 64] y) { y = MatMul (x, w) }""")
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        path.write_bytes(proto.SerializeToString())

    def identity() -> weight_identity.WeightIdentity:
        found = gptrs_onnx.load(path, "ref").weights.identity_of("w")
        assert found is not None
        return found

    written(0)
    new = gptrs_onnx.load(path, "ref").weights
    assert new.identity_of("w") is None  # just written: a second change might not show
    monkeypatch.setattr(weight_identity, "_SETTLED_NS", -1 << 62)
    first = identity()
    assert first.digest == identity().digest
    assert first.unchanged
    written(1)
    assert not first.unchanged
    assert identity().digest != first.digest
    assert gptrs_onnx.from_proto(onnx.load(path), "ref").weights.identity_of("w") is None


def test_integer_powers_beyond_what_squaring_reaches_are_those_of_one_and_minus_one() -> None:
    model = model_of("g (int64[n] x, int64[n] e) => (int64[n] y) { y = Pow(x, e) }")
    x = np.asarray([1, -1, -1, 2, 2, 3, 0, 1, -1, 2, 5])
    exponents = np.asarray([100, 64, 65, 70, 3, 4, 0, -2, -3, -1, 0])
    assert model(x, exponents)["y"].tolist() == [1, 1, -1, 0, 8, 81, 1, 1, -1, 0, 1]


def test_large_constants_are_weights_and_small_ones_and_results_are_not() -> None:
    """Also where a branch reads them: Paddle writes all weights as `Constant` nodes."""
    weight = np.random.default_rng(4).standard_normal((80, 80)).astype(np.float32)
    tensor = onnx.numpy_helper.from_array
    held = [
        ("w", weight), ("b", weight[0]), ("kept", weight + 1), ("rows", np.arange(5000) % 3),
    ]  # fmt: skip
    nodes = [onnx.helper.make_node("Constant", [], [n], value=tensor(a)) for n, a in held]
    info = onnx.helper.make_tensor_value_info
    branches = {
        name: onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "w"] if name == "then" else ["x", "v"], ["p"])],
            name, [], [info("p", onnx.TensorProto.FLOAT, None)],
        )
        for name in ("then", "else")
    }  # fmt: skip
    nodes += [
        onnx.helper.make_node("Transpose", ["w"], ["v"]),
        onnx.helper.make_node(
            "If", ["c"], ["p"], then_branch=branches["then"], else_branch=branches["else"]
        ),
        onnx.helper.make_node("Add", ["p", "b"], ["y"]),
        onnx.helper.make_node("Gather", ["x", "rows"], ["z"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "m",
        [info("x", onnx.TensorProto.FLOAT, [3, 80]), info("c", onnx.TensorProto.BOOL, [])],
        [info(name, kind, None) for name, kind in (
            ("y", onnx.TensorProto.FLOAT), ("z", onnx.TensorProto.FLOAT),
            ("kept", onnx.TensorProto.FLOAT))],
    )  # fmt: skip
    model = gptrs_onnx.from_proto(onnx.helper.make_model(graph), "ref")
    assert sorted(model.weights.names()) == ["rows", "w"]
    x = np.random.default_rng(5).standard_normal((3, 80)).astype(np.float32)
    for condition in (True, False):
        found = model(x=x, c=np.bool_(condition))
        product = x @ (weight if condition else weight.T)
        np.testing.assert_allclose(found["y"], product + weight[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(found["z"], x[np.arange(5000) % 3])
        np.testing.assert_array_equal(found["kept"], weight + 1)


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]], ids=["numbers", "indices"])
def test_sparse_weights_and_constants_are_read(places: list[Any]) -> None:
    indices = onnx.numpy_helper.from_array(np.array(places, np.int64), "places")
    values = onnx.numpy_helper.from_array(np.array([3, 4], np.float32), "w")
    sparse = onnx.helper.make_sparse_tensor(values, indices, [2, 3])
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 3] y) { c = Constant () h = Add (x, w) y = Add (h, c) }""")
    proto.graph.sparse_initializer.append(sparse)
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("sparse_value", sparse))
    for _ in range(2):  # the message stays as it is
        found = gptrs_onnx.from_proto(proto, "ref")(np.zeros((2, 3), np.float32))["y"]
        assert found.tolist() == [[0, 6, 0], [0, 0, 8]]
    sparse.indices.ClearField("raw_data")
    proto.graph.sparse_initializer[0].CopyFrom(sparse)
    with pytest.raises(ModelError, match=r"a sparse tensor of .* is damaged"):
        gptrs_onnx.from_proto(proto, "ref")
