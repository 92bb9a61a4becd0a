"""Tree ensembles of `ai.onnx.ml` as boosters write them, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same trees")

from onnx import parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.api import ModelError, UnsupportedError  # noqa: E402

LEAVES = (1, 2, 4, 5)
"""Two trees of one split: nodes 0 and 3 are the roots."""


def classifier(weights: list[list[float]]) -> onnx.ModelProto:
    """Return two trees; each leaf has the weights of two classes."""
    ids = [id for _ in LEAVES for id in (0, 1)]
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 2]>
    g (float[n, 2] x) => (int64[n] y, float[n, 2] p) {{
      y, p = ai.onnx.ml.TreeEnsembleClassifier <
        classlabels_int64s = [4, 7], post_transform = "LOGISTIC",
        class_ids = {ids}, class_treeids = {[0] * 4 + [1] * 4},
        class_nodeids = {[1, 1, 2, 2] * 2}, class_weights = {[w for leaf in weights for w in leaf]},
        nodes_treeids = [0, 0, 0, 1, 1, 1], nodes_nodeids = [0, 1, 2, 0, 1, 2],
        nodes_featureids = [0, 0, 0, 1, 0, 0], nodes_values = [0.1, 0.0, 0.0, -0.2, 0.0, 0.0],
        nodes_modes = ["BRANCH_GT", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
        nodes_truenodeids = [2, 0, 0, 2, 0, 0], nodes_falsenodeids = [1, 0, 0, 1, 0, 0]> (x)
    }}""")


def test_two_classes_whose_weights_are_each_others_negatives_are_right() -> None:
    # As CatBoost writes a binary classifier.
    proto = classifier([[0.75, -0.75], [-0.5, 0.5], [0.0, 0.0], [-0.375, 0.375]])
    x = np.random.default_rng(0).standard_normal((20, 2)).astype(np.float32)
    labels, scores = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    found = gptrs_onnx.from_proto(proto, "ref")(x)
    # ONNX Runtime gives 0 and 1 for whatever numbers are the labels of such trees.
    assert set(labels.tolist()) == {0, 1}
    np.testing.assert_array_equal(found["y"], np.where(labels == 1, 7, 4))
    np.testing.assert_allclose(found["p"], scores, rtol=1e-6)


def test_two_classes_with_any_weights_are_refused() -> None:
    # ONNX Runtime looks at the sign of the second score alone, the standard at the greater one.
    proto = classifier([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1], [0.2, 0.8]])
    model = gptrs_onnx.from_proto(proto, "ref")
    with pytest.raises(UnsupportedError, match="differ"):
        model(np.zeros((1, 2), np.float32))


@pytest.mark.parametrize(
    ("attribute", "numbers", "words"),
    [
        ("nodes_truenodeids", [3, 0, 0, 2, 0, 0], "refers to a node that it lacks"),
        ("class_treeids", [2] * 8, "refers to a node that it lacks"),
        ("class_nodeids", [1], "has lists of different lengths"),
        ("nodes_nodeids", [0, 1, 1, 0, 1, 2], "has nodes that occur twice"),
        ("nodes_treeids", [0, 0, 0, 1, 1, 2**31], "beyond 31 bits"),
    ],
)
def test_nodes_that_are_not_there_are_told(attribute: str, numbers: list[int], words: str) -> None:
    proto = classifier([[0.75, -0.75], [-0.5, 0.5], [0.0, 0.0], [-0.375, 0.375]])
    (found,) = (each for each in proto.graph.node[0].attribute if each.name == attribute)
    found.ints[:] = numbers
    with pytest.raises(ModelError, match=words):
        gptrs_onnx.from_proto(proto, "ref")(np.zeros((1, 2), np.float32))
