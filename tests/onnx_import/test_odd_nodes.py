"""Single nodes on odd inputs give what ONNX Runtime or the reference of the standard gives."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("onnx", reason="these tests read ONNX models")
pytest.importorskip("onnxruntime", reason="the peer that runs the same nodes")

from onnx import helper
from onnx.reference import ReferenceEvaluator

import gptrs_onnx
from fuzz_onnx import BOTH, KNOWN, REFERENCE, RUNTIME, kinds, outcomes_of
from fuzzing.onnx_nodes import NodeKind
from gptrs.api.importers import Converter
from gptrs_onnx.node import converts


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_variant_of_each_node_is_right(seed: int) -> None:
    outcomes = Counter[str]()
    for outcome, what in outcomes_of("ref", seed, everything=False):
        outcomes[outcome] += 1
        assert outcome != "wrong", what
    assert outcomes["right"] > 0.85 * outcomes.total()


def test_a_wrong_node_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz_onnx.kinds", lambda: [NodeKind("Relu", ((3, 5),), {})])
    assert [outcome for outcome, _ in outcomes_of("ref", 0, everything=True)] == ["right"]
    monkeypatch.setitem(converts, "Relu", Converter(lambda x: x))
    assert [outcome for outcome, _ in outcomes_of("ref", 0, everything=True)] == ["wrong"]


def test_known_differences_are_of_nodes_that_are_tried() -> None:
    tried = {kind.op for kind in kinds()}
    for each in KNOWN:
        assert tried.issuperset(each.ops.split())
        assert each.why
        assert each.peers in (RUNTIME, REFERENCE, BOTH, "")


def test_inputs_are_as_odd_as_they_are_said_to_be() -> None:
    kind, rng = NodeKind("Add", ((40, 5), (40, 5)), {}), np.random.default_rng(0)
    strange = kind.arrays("float32", "strange", rng)["x0"]
    assert {np.isnan(strange).any(), np.isposinf(strange).any(), (strange == 0).any()} == {True}
    assert kind.arrays("int8", "large", rng)["x1"].max() > 50
    ties = kind.arrays("float64", "ties", rng)["x0"]
    assert len(np.unique(ties)) < 20


def test_newer_nodes_of_onnx_runtime_and_regions_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"CausalConvWithState", "LinearAttention", "MRotaryEmbedding", "RoiAlign"}
    chosen = [kind for kind in kinds() if kind.op in names]
    monkeypatch.setattr("fuzz_onnx.kinds", lambda: chosen)
    outcomes = list(outcomes_of("ref", 0, everything=False))
    # An older ONNX Runtime lacks some of them.
    assert {outcome for outcome, _ in outcomes} <= {"right", "without a peer"}
    assert ("right", "RoiAlign") in {(outcome, what.split()[0]) for outcome, what in outcomes}


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64", "int8", "uint8"])
def test_lengths_and_shrinking_of_integers_are_cut_off_as_in_the_reference(dtype: str) -> None:
    x = np.array([[3, 4, 0], [6, 9, 1]], dtype)
    x = -x if dtype.startswith("i") else x
    nodes = [("Shrink", {"bias": 1.5, "lambd": 2.5})]
    if dtype[-1] != "8":
        nodes += [(op, {"keepdims": 0}) for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare")]
    for op, attributes in nodes:
        axes = () if op == "Shrink" else (np.array([1], np.int64),)
        proto = NodeKind(op, ((2, 3), *axes), {}, opset=20).model(dtype, attributes)
        name = proto.graph.input[0].name
        (found,) = gptrs_onnx.from_proto(proto, "ref")(**{name: x}).values()
        (expected,) = ReferenceEvaluator(proto).run(None, {name: x})
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.asarray(expected))


@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_out_of_range_wrap_in_casts_as_in_onnx_runtime(dtype: str, to: str) -> None:
    numbers = [-1.0, 300.0, -300.0, 2.5, -2.5, 65000.0]
    numbers += [] if dtype == "float16" else [3e9, 2.0**63, -(2.0**62)]
    x = np.array(numbers, dtype)
    kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    proto = NodeKind("Cast", ((len(x),),), {}, opset=19).model(dtype, {"to": kind})
    (found,) = gptrs_onnx.from_proto(proto, "ref")(x).values()
    held = 2.0 ** (31 if to[-2:] in ("t8", "16") else 64 if to == "uint64" else 63)
    bits = 8 * np.dtype(to).itemsize
    expected = [int(each) % 2**bits if abs(each) < held else 0 for each in map(float, x)]
    np.testing.assert_array_equal(found.astype(f"uint{bits}"), np.array(expected, f"uint{bits}"))


@pytest.mark.parametrize(("shape", "inverse"), [((1, 2500, 1), 0), ((2, 1030, 2), 1)])
def test_transforms_of_long_signals_are_those_of_numpy(
    shape: tuple[int, ...], inverse: int
) -> None:
    proto = NodeKind("DFT", (shape,), {}, opset=17).model("float32", {"inverse": inverse})
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (found,) = gptrs_onnx.from_proto(proto, "ref")(x).values()
    signal = x[..., 0] + 1j * (x[..., 1] if shape[-1] == 2 else 0)
    expected = (np.fft.ifft if inverse else np.fft.fft)(signal)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, rtol=0, atol=1e-3)


def test_a_transposed_convolution_fills_a_larger_output_at_its_end() -> None:
    rng = np.random.default_rng(0)
    kind = NodeKind("ConvTranspose", ((1, 1, 2), (1, 1, 1)), {})
    proto = kind.model("float32", {"output_shape": [6], "strides": [3]})
    inputs = kind.arrays("float32", "plain", rng)
    found = next(iter(gptrs_onnx.from_proto(proto, "ref")(**inputs).values()))
    wanted = np.asarray(ReferenceEvaluator(proto).run(None, inputs)[0])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert found[0, 0, 0] != 0
    assert not found[0, 0, 4:].any()
