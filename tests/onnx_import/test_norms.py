"""Norms of ONNX files beside their definition in f64: equal elements, large means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same nodes")

from onnx import parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.backend.contract import Backend  # noqa: E402

SHAPE = (2, 6, 20, 36)
ULP = 2.0**-23
CHANNELS = "float[6] s, float[6] b"
NODES = {
    "LayerNormalization": ("float[36] s, float[36] b", "(x, s, b)", "", (3,)),
    "LayerNormalization with statistics": ("float[36] s, float[36] b", "(x, s, b)", "", (3,)),
    "InstanceNormalization": (CHANNELS, "(x, s, b)", "", (2, 3)),
    "GroupNormalization": (CHANNELS, "(x, s, b)", "num_groups = 1", (1, 2, 3)),
    "BatchNormalization": (
        f"{CHANNELS}, float[6] m, float[6] v", "(x, s, b, m, v)", "training_mode = 1", (0, 2, 3),
    ),
    "MeanVarianceNormalization": ("", "(x)", "axes = [0, 2]", (0, 2)),
}  # fmt: skip
"""Other inputs, the call, attributes, and the axes of what is normalized together."""
OUTPUTS = {
    "BatchNormalization": ("y, mean, variance", "float[6] mean, float[6] variance"),
    "LayerNormalization with statistics": (
        "y, mean, inverse", "float[2, 6, 20, 1] mean, float[2, 6, 20, 1] inverse",
    ),
}  # fmt: skip


def model_of(name: str, backend: Backend) -> gptrs_onnx.OnnxModel:
    inputs, call, attributes, _ = NODES[name]
    made, outputs = OUTPUTS.get(name, ("y", ""))
    values = ", ".join(str(size) for size in SHAPE)
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[{values}] x{", " if inputs else ""}{inputs})
        => (float[{values}] y{", " if outputs else ""}{outputs}) {{
      {made} = {name.split()[0]} <{attributes}> {call}
    }}
    """.replace("<>", "")
    return gptrs_onnx.from_proto(parser.parse_model(text), backend)


def samples() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    found = {f"equal {value}": np.full(SHAPE, value) for value in (12345.678, 3.3, 0.1, 1e37)}
    for mean in (0.0, 1000.0, -1e5):
        found[f"mean {mean}"] = random.standard_normal(SHAPE) + mean
    return {what: values.astype(np.float32) for what, values in found.items()}


def test_batches_of_older_files_are_normalized_by_themselves_where_more_is_listed() -> None:
    # As torch exports layers whose weights are standardized: `BiT`, `NFNet`.
    proto = parser.parse_model("""<ir_version: 7, opset_import: ["" : 13]>
    g (float[n, 2, 5] x, float[2] s, float[2] b, float[2] m, float[2] v)
        => (float[n, 2, 5] y, float[2] om, float[2] ov, float[2] sm, float[2] sv) {
      y, om, ov, sm, sv = BatchNormalization <momentum = 0.3> (x, s, b, m, v)
    }""")
    random = np.random.default_rng(0)
    given = {name: random.random(2, np.float32) for name in "sbmv"}
    given["x"] = random.standard_normal((3, 2, 5)).astype(np.float32)
    peer = onnxruntime.InferenceSession(proto.SerializeToString())
    found = gptrs_onnx.from_proto(proto, "ref")(**given)
    for one, right in zip(found.values(), peer.run(None, given), strict=True):
        np.testing.assert_allclose(one, right, rtol=2e-6, atol=1e-6)


@pytest.mark.whole
@pytest.mark.parametrize("name", NODES)
def test_norm(name: str, backend: Backend) -> None:
    axes = NODES[name][-1]
    random = np.random.default_rng(1)
    width = {"L": 36}.get(name[0], 6)
    scale, bias = (random.standard_normal(width).astype(np.float32) for _ in range(2))
    given = {"s": scale, "b": bias, "m": 0 * bias, "v": 0 * bias + 1}
    shape = (-1,) if name[0] == "L" else (-1, 1, 1)
    plain = name[0] == "M"
    factor, offset = (1, 0) if plain else (scale.reshape(shape), bias.reshape(shape))
    model = model_of(name, backend)
    for what, x in samples().items():
        wide = x.astype(np.longdouble)
        apart = wide - wide.mean(axes, keepdims=True)
        apart -= apart.mean(axes, keepdims=True)
        variance = np.square(apart).mean(axes, keepdims=True)
        deviation = np.sqrt(variance) + 1e-9 if plain else np.sqrt(variance + 1e-5)
        normal = apart / deviation
        used = {key: value for key, value in given.items() if f"] {key}" in NODES[name][0]}
        found = model(x=x, **used)
        allowed = 2 * ULP * ((1 + abs(normal)) * abs(np.asarray(factor)) + 1 + abs(offset))
        worst = (abs(found["y"] - (normal * factor + offset)) / allowed).max()
        assert worst <= 1, f"{what}: {worst:.3g} of what is allowed"
        if "inverse" in found:
            mean = wide.mean(axes, keepdims=True)
            np.testing.assert_allclose(found["mean"], mean, rtol=2e-7, atol=2e-7)
            np.testing.assert_allclose(found["inverse"], 1 / deviation, rtol=4e-7)
        if "variance" in found:
            mean = wide.mean(axes)
            np.testing.assert_allclose(found["mean"], 0.1 * mean, rtol=4e-7, atol=2e-7)
            running = 0.9 + 0.1 * variance.ravel()
            np.testing.assert_allclose(found["variance"], running, rtol=4e-7)
