"""Support vector machines of `ai.onnx.ml` vote, and share probabilities, as in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is what they compare with")

from onnx import TensorProto, helper  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.api.backends import Backend  # noqa: E402

FEATURES = 3


def machine(kernel: str, classes: int, *, shares: bool) -> onnx.ModelProto:
    random = np.random.default_rng(classes)
    counts = random.integers(2, 5, classes).tolist()
    vectors, pairs = sum(counts), classes * (classes - 1) // 2

    def numbers(count: int, scale: float = 1.0) -> list[float]:
        return (random.standard_normal(count) * scale).astype(np.float32).tolist()

    given = {
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.5, 3.0],
        "support_vectors": numbers(vectors * FEATURES),
        "coefficients": numbers(vectors * (classes - 1)),
        "vectors_per_class": counts,
        "rho": numbers(pairs, 0.3),
        "classlabels_ints": [3 * each for each in range(classes)],
        "post_transform": "NONE",
    }
    if shares:
        given |= {"prob_a": [-abs(each) for each in numbers(pairs)], "prob_b": numbers(pairs, 0.2)}
    node = helper.make_node("SVMClassifier", ["x"], ["y", "s"], domain="ai.onnx.ml", **given)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["n"])
    s = helper.make_tensor_value_info("s", TensorProto.FLOAT, ["n", "k"])
    graph = helper.make_graph([node], "machine", [x], [y, s])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_classes_and_scores_are_those_of_onnx_runtime(
    kernel: str, classes: int, shares: bool, backend: Backend
) -> None:
    model = machine(kernel, classes, shares=shares)
    x = np.random.default_rng(0).standard_normal((30, FEATURES)).astype(np.float32)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    labels, scores = session.run(None, {"x": x})
    found = gptrs_onnx.from_proto(model, backend)(x=x)
    np.testing.assert_array_equal(found["y"], labels)
    np.testing.assert_allclose(found["s"], scores, atol=1e-5 * max(1.0, np.abs(scores).max()))
