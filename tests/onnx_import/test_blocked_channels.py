"""Files that ONNX Runtime optimized for one kind of processor, in blocks of channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that writes the files")

from onnx import numpy_helper, parser  # noqa: E402

import gptrs_onnx  # noqa: E402

WEIGHTS = {
    "few": (24, 3, 3, 3), "point": (32, 24, 1, 1), "depth": (32, 1, 3, 3),
    "grouped": (32, 16, 3, 3), "out": (10, 64, 1, 1), "bias": (32,), "last": (10,),
}  # fmt: skip
NETWORK = """
g (float[n, 3, h, w] x)
    => (float[n, 10, a, b] y, float[n, 64, c, d] mean, float[n, 64, e, f] best) {
  c0 = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, few)
  r0 = Relu (c0)
  c1 = Conv (r0, point)
  low = Constant <value_float = 0.0> ()
  high = Constant <value_float = 6.0> ()
  clipped = Clip (c1, low, high)
  c2 = Conv <group = 32, pads = [1, 1, 1, 1]> (clipped, depth, bias)
  s = Sigmoid (c2)
  added = Add (s, clipped)
  c3 = Conv <group = 2, pads = [1, 1, 1, 1]> (added, grouped)
  both = Concat <axis = 1> (c3, added)
  most = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (both)
  part = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (both)
  pooled = Add (most, part)
  twice = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()
  near = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
                 nearest_mode = "floor"> (pooled, , twice)
  soft = Resize <mode = "linear"> (pooled, , twice)
  large = Add (near, soft)
  y = Conv (large, out, last)
  mean = GlobalAveragePool (pooled)
  best = GlobalMaxPool (pooled)
}
"""


def test_blocks_are_read_as_they_were_written(tmp_path: Path, backend: Any) -> None:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{NETWORK}')
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        array = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    written = {node.domain for node in onnx.load(tmp_path / "m.onnx").graph.node}
    if "com.microsoft.nchwc" not in written:
        pytest.skip("ONNX Runtime has no blocks of channels on this processor")
    model = gptrs_onnx.load(tmp_path / "m.onnx", backend)
    for shape in ((1, 3, 31, 29), (3, 3, 17, 40)):
        x = rng.standard_normal(shape).astype(np.float32)
        found = model(x)
        for name, wanted in zip(("y", "mean", "best"), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5, err_msg=name)
