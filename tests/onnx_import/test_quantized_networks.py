"""Quantized networks: as ONNX Runtime computes them, and on the integer kernels of `numba`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same files")

from onnx import numpy_helper, parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs_backend_numba.codegen.byte_vectors import HAS_DOTS  # noqa: E402
from gptrs_observe.profile import Profile, recording  # noqa: E402

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
RANDOM = np.random.default_rng(0)


def codes(*shape: int, signed: bool = True) -> np.ndarray:
    low = -128 if signed else 0
    return RANDOM.integers(low, low + 256, shape).astype(np.int8 if signed else np.uint8)


def scales(*shape: int) -> np.ndarray:
    return (0.003 + 0.01 * RANDOM.random(shape)).astype(np.float32)


def whole(*shape: int) -> np.ndarray:
    return RANDOM.integers(-2000, 2000, shape).astype(np.int32)


def zero(number: int, signed: bool = True) -> np.ndarray:
    return np.array(number, np.int8 if signed else np.uint8)


QUANTIZED = "xq = QuantizeLinear (x, xs, xz)\n xd = DequantizeLinear (xq, xs, xz)\n"
ROUNDED = "yq = QuantizeLinear (f, ys, yz)\n y = DequantizeLinear (yq, ys, yz)\n"
SIDES = {"xs": np.float32(0.02), "xz": zero(-5), "ys": np.float32(0.11), "yz": zero(9)}
UNSIGNED = {**SIDES, "xz": zero(130, False), "yz": zero(0, False)}

# A graph: what its nodes are, its initializers, the shapes of x and y, and its integer kernel.
GRAPHS: dict[str, tuple[str, Mapping[str, Any], str, str, str]] = {
    "a layer of a scale for each column": (
        f"{QUANTIZED} wd = DequantizeLinear <axis = 1> (w, ws, wz)\n m = MatMul (xd, wd)\n"
        f"a = Add (m, b)\n f = Relu (a)\n {ROUNDED}",
        {
            **SIDES, "w": codes(40, 70), "ws": scales(70), "wz": np.zeros(70, np.int8),
            "b": RANDOM.standard_normal(70).astype(np.float32),
        },
        "2, 9, 40", "2, 9, 70", "integer_product",
    ),
    "a layer of unsigned codes around any number": (
        f"{QUANTIZED} wd = DequantizeLinear (w, ws, wz)\n bd = DequantizeLinear (b, bs, bz)\n"
        f"f = Gemm <transB = 1> (xd, wd, bd)\n {ROUNDED}",
        {
            **UNSIGNED, "w": codes(33, 40, signed=False), "ws": scales(), "wz": zero(117, False),
            "b": whole(33), "bs": np.float32(1e-4), "bz": np.array(0, np.int32),
        },
        "7, 40", "7, 33", "integer_product",
    ),
    "a product of two results": (
        f"{QUANTIZED} t = Transpose <perm = [0, 2, 1]> (xd)\n f = MatMul (xd, t)\n {ROUNDED}",
        SIDES, "3, 9, 20", "3, 9, 9", "integer_product",
    ),
    "an image, a pool, and a residual": (
        f"{QUANTIZED} wd = DequantizeLinear <axis = 0> (w, ws, wz)\n"
        "bd = DequantizeLinear <axis = 0> (b, bs, bz)\n"
        "c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (xd, wd, bd)\n"
        "r = Relu (c)\n rq = QuantizeLinear (r, ys, yz)\n rd = DequantizeLinear (rq, ys, yz)\n"
        "p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (rd)\n"
        "pq = QuantizeLinear (p, ys, yz)\n pd = DequantizeLinear (pq, ys, yz)\n"
        f"f = Add (pd, rd)\n {ROUNDED}",
        {
            **SIDES, "w": codes(20, 3, 3, 3), "ws": scales(20), "wz": np.zeros(20, np.int8),
            "b": whole(20), "bs": (scales(20) / 50), "bz": np.zeros(20, np.int32),
        },
        "2, 3, 15, 17", "2, 20, 8, 9", "integer_conv2d",
    ),
    "channels apart": (
        f"{QUANTIZED} wd = DequantizeLinear <axis = 0> (w, ws, wz)\n"
        "c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 18> (xd, wd)\n"
        f"f = Clip (c, least, most)\n {ROUNDED}",
        {
            **UNSIGNED, "w": codes(18, 1, 3, 3), "ws": scales(18), "wz": np.zeros(18, np.int8),
            "least": np.float32(0), "most": np.float32(6),
        },
        "1, 18, 9, 8", "1, 18, 9, 8", "integer_depthwise",
    ),
    "channels in groups": (
        f"{QUANTIZED} wd = DequantizeLinear <axis = 0> (w, ws, wz)\n"
        "f = Conv <kernel_shape = [3, 3], strides = [2, 1], pads = [1, 1, 1, 1], group = 2>"
        f" (xd, wd, b)\n {ROUNDED}",
        {
            **SIDES, "w": codes(64, 5, 3, 3), "ws": scales(64), "wz": np.zeros(64, np.int8),
            "b": RANDOM.standard_normal(64).astype(np.float32),
        },
        "2, 10, 9, 8", "2, 64, 5, 8", "integer_grouped",
    ),
    "QLinearConv": (
        "xq = QuantizeLinear (x, xs, xz)\n"
        "yq = QLinearConv <kernel_shape = [3, 3], strides = [1, 2], pads = [1, 0, 1, 2]>"
        " (xq, xs, xz, w, ws, wz, ys, yz, b)\n y = DequantizeLinear (yq, ys, yz)",
        {
            **UNSIGNED, "w": codes(11, 4, 3, 3), "ws": scales(11), "wz": np.zeros(11, np.int8),
            "b": whole(11),
        },
        "1, 4, 9, 10", "1, 11, 9, 5", "integer_conv2d",
    ),
    "QLinearConv of channels apart": (
        "xq = QuantizeLinear (x, xs, xz)\n"
        "yq = QLinearConv <kernel_shape = [3, 3], group = 12> (xq, xs, xz, w, ws, wz, ys, yz, b)\n"
        "y = DequantizeLinear (yq, ys, yz)",
        {
            **UNSIGNED, "w": codes(12, 1, 3, 3, signed=False), "ws": scales(), "b": whole(12),
            "wz": zero(131, False),
        },
        "1, 12, 9, 10", "1, 12, 7, 8", "integer_depthwise",
    ),
    "QLinearMatMul": (
        "xq = QuantizeLinear (x, xs, xz)\n yq = QLinearMatMul (xq, xs, xz, w, ws, wz, ys, yz)\n"
        "y = DequantizeLinear (yq, ys, yz)",
        {**UNSIGNED, "w": codes(24, 50), "ws": scales(), "wz": zero(-7)},
        "6, 24", "6, 50", "integer_product",
    ),
    "a range of its own for each call": (
        "xq, xs, xz = DynamicQuantizeLinear (x)\n m = MatMulInteger (xq, w, xz, wz)\n"
        "c = Cast <to = 1> (m)\n s = Mul (xs, ws)\n k = Mul (c, s)\n y = Add (k, b)",
        {"w": codes(30, 44), "ws": scales(44), "wz": codes(44), "b": scales(44)},
        "5, 30", "5, 44", "integer_product",
    ),
    "images of a range of their own": (
        "xq, xs, xz = DynamicQuantizeLinear (x)\n"
        "m = ConvInteger <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (xq, w, xz, wz)\n"
        "c = Cast <to = 1> (m)\n s = Mul (xs, ws)\n y = Mul (c, s)",
        {"w": codes(16, 5, 3, 3, signed=False), "ws": scales(), "wz": zero(120, False)},
        "1, 5, 8, 9", "1, 16, 8, 9", "integer_conv2d",
    ),
}  # fmt: skip


GRAPHS["a layer that a recurrent one reads"] = (
    "xq, xs, xz = DynamicQuantizeLinear (x)\n m = MatMulInteger (xq, w, xz)\n c = Cast <to = 1> (m)"
    "\n s = Mul (c, xs)\n y, h = RNN <hidden_size = 3> (s, i, r)",
    {"w": codes(12, 6), "i": scales(1, 3, 6) / 30, "r": scales(1, 3, 3)},
    "4, 1, 12", "4, 1, 1, 3", "integer_product",
)  # fmt: skip


GRAPHS["a recurrent layer of codes"] = (
    "y, h = com.microsoft.DynamicQuantizeLSTM <hidden_size = 5, direction = \"bidirectional\">"
    " (x, w, r, b, , , , , ws, wz, rs, rz)",
    {
        "w": codes(2, 7, 20), "ws": scales(2) / 4, "wz": np.zeros(2, np.int8),
        "r": codes(2, 5, 20), "rs": scales(2, 20) / 40, "rz": np.zeros((2, 20), np.int8),
        "b": scales(2, 40),
    },
    "6, 3, 7", "6, 2, 3, 5", "integer_product",
)  # fmt: skip

GRAPHS["GELU of codes, in parts that are codes"] = (
    f"{QUANTIZED} a = Mul (xd, root)\n aq = QuantizeLinear (a, ys, yz)\n"
    "ad = DequantizeLinear (aq, ys, yz)\n e = Erf (ad)\n eq = QuantizeLinear (e, es, xz)\n"
    "ed = DequantizeLinear (eq, es, xz)\n p = Add (ed, one)\n f = Mul (p, xd)\n"
    f" {ROUNDED}",
    {
        **SIDES, "root": np.float32(0.5**0.5), "es": np.float32(1 / 127),
        "one": np.float32(1),
    },
    "3, 19, 23", "3, 19, 23", "code_table",
)  # fmt: skip


def model_of(name: str) -> Any:
    nodes, initializers, takes, gives, _ = GRAPHS[name]
    text = f"{HEAD} g (float[{takes}] x) => (float[{gives}] y) {{ {nodes} }}"
    model = parser.parse_model(text)
    made = (numpy_helper.from_array(np.asarray(array), key) for key, array in initializers.items())
    model.graph.initializer.extend(made)
    return model


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", GRAPHS)
def test_quantized_networks_run_on_integer_kernels(name: str) -> None:
    model = model_of(name)
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32) * 2
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (want,) = session.run(None, {"x": x})
    exact = gptrs_onnx.from_proto(model, "ref")(x=x)["y"]
    ours = gptrs_onnx.from_proto(model, "numba")
    ours(x=x)
    profile = Profile()
    with recording(profile):
        found = ours(x=x)["y"]
    # Codes may differ by one where quotients of floats are next to a tie; of 1,000 few are.
    step = GRAPHS[name][1].get("ys", np.float32(1e-4))
    # Without VNNI, ONNX Runtime adds products of bytes in pairs, by `vpmaddubsw`, which saturates.
    for other in (want, exact) if HAS_DOTS else (exact,):
        apart = np.abs(found - other)
        assert apart.max() <= step * 1.01, apart.max()
        assert (apart > step / 2).mean() <= 0.002
    kernels = [kernel for each in profile.programs.values() for kernel in each.kernels if each.runs]
    names = {kernel.removeprefix("gptrs.numba.").removesuffix(".v1") for kernel, _ in kernels}
    assert GRAPHS[name][4] in names
    assert not names & {"linear.f32", "conv2d.f32", "depthwise_conv2d.f32", "grouped_conv2d.f32"}


def test_a_table_of_codes_is_not_widened() -> None:
    text = f"""{HEAD} g (int64[3] i) => (float[3, 8] y) {{
      t = DequantizeLinear (codes, s, z)
      y = Gather (t, i) }}"""
    model = parser.parse_model(text)
    given: dict[str, Any] = {"codes": codes(2000, 8), "s": np.float32(0.1), "z": zero(3)}
    made = (numpy_helper.from_array(np.asarray(array), key) for key, array in given.items())
    model.graph.initializer.extend(made)
    ours = gptrs_onnx.from_proto(model, "numba")
    rows = np.array([5, 1999, 0])
    want = (given["codes"][rows].astype(np.float32) - 3) * np.float32(0.1)
    np.testing.assert_array_equal(ours(i=rows)["y"], want)
    profile = Profile()
    with recording(profile):
        ours(i=rows)
    operands = [of for each in profile.programs.values() for _, of in each.kernels if each.runs]
    assert not any("f32[2000, 8]" in of or "si32[2000, 8]" in of for of in operands), operands


@pytest.mark.parametrize(
    "name", ["channels apart", "QLinearConv", "a range of its own for each call"]
)
def test_free_sizes_of_quantized_networks(name: str) -> None:
    model = model_of(name)
    for value in (model.graph.input[0], model.graph.output[0]):
        sizes = value.type.tensor_type.shape.dim
        for axis in range(len(sizes)):
            if axis != 1 or len(sizes) == 2:
                sizes[axis].dim_param = f"{value.name}{axis}"
    if len(model.graph.input[0].type.tensor_type.shape.dim) == 2:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 30
    ours, exact = (gptrs_onnx.from_proto(model, backend) for backend in ("numba", "ref"))
    step = GRAPHS[name][1].get("ys", np.float32(1e-4))
    channels = GRAPHS[name][2].split(", ")[1]
    for sizes in ((1, 9, 8), (2, 12, 11), (1, 9, 8), (3, 7, 20)):
        shape = [sizes[0], int(channels), *sizes[1:]] if "Conv" in name or "apart" in name else None
        x = np.random.default_rng(sizes[0]).standard_normal(shape or (sizes[1], 30))
        x = x.astype(np.float32)
        apart = np.abs(ours(x=x)["y"] - exact(x=x)["y"])
        assert apart.max() <= step * 1.01
        assert (apart > step / 2).mean() <= 0.002
