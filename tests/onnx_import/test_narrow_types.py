"""Element types that PTIR lacks are cast, quantized and moved as the standard's reference does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")

from onnx import TensorProto, helper, parser  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.errors import ModelError, UnsupportedError, UsageError  # noqa: E402

FLOATS = ("FLOAT4E2M1", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ", "FLOAT8E8M0")
INTEGERS = ("INT2", "UINT2")


def every_half() -> np.ndarray:
    return np.arange(2**16, dtype=np.uint16).view(np.float16)


def one_node(op: str, inputs: dict[str, np.ndarray], gives: str, **attributes: Any) -> Any:
    node = helper.make_node(op, list(inputs), ["y"], **attributes)
    takes = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    out = helper.make_tensor_value_info("y", getattr(TensorProto, gives), None)
    graph = helper.make_graph([node], "g", takes, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def agrees(model: Any, inputs: dict[str, np.ndarray], backend: Any) -> None:
    with np.errstate(all="ignore"):
        (wanted,) = cast("list[np.ndarray]", ReferenceEvaluator(model).run(None, inputs))
    found = gptrs_onnx.from_proto(model, backend)(**inputs)["y"]
    same(found, wanted)
    if "float" in found.dtype.name:  # the sign of what a NaN becomes is left open
        x = next(iter(inputs.values()))
        signs = [np.signbit(each[x == x].astype(np.float32)) for each in (found, wanted)]
        np.testing.assert_array_equal(*signs)


@pytest.mark.sample(3)
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("to", FLOATS)
def test_every_number_rounds_to_a_narrow_float(to: str, saturate: int, backend: Any) -> None:
    options = {} if to == "FLOAT4E2M1" else {"saturate": saturate}
    halves = every_half()
    wide = halves.astype(np.float32)
    with np.errstate(all="ignore"):
        beside = [np.nextafter(wide, np.float32(end)) for end in (-np.inf, np.inf)]
        tiny, huge = wide * 2.0**-110, wide * 2.0**100
    for x in (halves, np.concatenate([*beside, tiny, huge])):
        model = one_node("Cast", {"x": x}, to, to=getattr(TensorProto, to), **options)
        agrees(model, {"x": x}, backend)


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_scales_round_to_powers_of_two(mode: str, backend: Any) -> None:
    with np.errstate(all="ignore"):
        x = np.concatenate([every_half().astype(np.float32) * 2.0**k for k in (0, -110, 100)])
    to = TensorProto.FLOAT8E8M0
    model = one_node("Cast", {"x": x}, "FLOAT8E8M0", to=to, round_mode=mode)
    agrees(model, {"x": x}, backend)


@pytest.mark.sample(2)
@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("given", ["float32", "int8", "int64", "uint8", "bool"])
def test_integers_of_two_bits_wrap(to: str, given: str, backend: Any) -> None:
    x = np.arange(-9, 9).astype(given)
    model = one_node("Cast", {"x": x}, to, to=getattr(TensorProto, to))
    agrees(model, {"x": x}, backend)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_numbers_of_narrow_types_move_and_widen(name: str, backend: Any) -> None:
    """They are inputs, small and large initializers, constants and outputs."""
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
    codes = np.arange(8).reshape(2, 4).astype(np.float32).astype(dtype)
    large = np.resize(codes, (80, 64)).copy()
    model = parser.parse_model("""
    <ir_version: 11, opset_import: ["" : 25]>
    g (float[2, 4] x, float[2, 2, 2] like) => (float[2, 2, 2] wide, float[80, 64] rows) {
      s = Constant <value_ints = [2, 2, 2]> ()
      moved = Reshape (x, s)
      wide = CastLike (moved, like)
      turned = Transpose (large)
      back = Transpose (turned)
      rows = Cast <to = 1> (back)
    }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(large, "large"))
    model.graph.input[0].type.tensor_type.elem_type = getattr(TensorProto, name)
    out = helper.make_tensor_value_info("moved", getattr(TensorProto, name), [2, 2, 2])
    model.graph.output.append(out)
    like = np.zeros((2, 2, 2), np.float32)
    for x in (codes, codes.astype(np.float32)):
        if x.dtype != dtype:
            x = x.astype(gptrs_onnx.from_proto(model, backend).inputs["x"].dtype.numpy)
        found = gptrs_onnx.from_proto(model, backend)(x=x, like=like)
        same(found["moved"], codes.reshape(2, 2, 2))
        same(found["wide"], codes.astype(np.float32).reshape(2, 2, 2))
        same(found["rows"], large.astype(np.float32))


@pytest.mark.parametrize("precision", ["UNDEFINED", "FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("given", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_division_of_codes_rounds_as_the_node_says(precision: str, given: Any) -> None:
    x = np.random.default_rng(3).standard_normal((2, 300)).astype(given)
    inputs = {"x": x, "s": np.asarray(0.0137, given), "z": np.asarray(3, np.int8)}
    by = getattr(TensorProto, precision)
    agrees(one_node("QuantizeLinear", inputs, "INT8", precision=by), inputs, "ref")


@pytest.mark.parametrize(
    ("op", "options", "wrong"),
    [
        ("QuantizeLinear", {"precision": TensorProto.INT8}, "divides in `si8`"),
        ("QuantizeLinear", {"output_dtype": TensorProto.INT8}, "zero point of type UINT8"),
        ("QuantizeLinear", {"output_dtype": TensorProto.FLOAT}, "element type number 1"),
        ("DequantizeLinear", {"output_dtype": TensorProto.INT8}, "which is not a float"),
    ],
)
def test_wrong_types_of_codes_are_refused(op: str, options: dict[str, int], wrong: str) -> None:
    first = np.ones(3, np.float32 if op == "QuantizeLinear" else np.uint8)
    inputs = {"x": first, "s": np.float32(1).reshape(()), "z": np.uint8(1).reshape(())}
    with pytest.raises(ModelError, match=wrong):
        gptrs_onnx.from_proto(one_node(op, inputs, "UINT8", **options), "ref")(**inputs)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [*FLOATS[:3], *INTEGERS])
def test_weights_in_blocks_are_dequantized(name: str, tmp_path: Path, backend: Any) -> None:
    """4-bit floats with a scale for each block of 16, as for NVFP4, in a file of their own."""
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (64, 80)).astype(np.float32).astype(dtype)
    scales = rng.uniform(0.5, 2, (4, 80)).astype(np.float32)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    model = parser.parse_model(
        """
    <ir_version: 11, opset_import: ["" : 25]>
    g (float[n, 64] x) => (float[n, 80] y) <float[4, 80] s = {}> {
      w = DequantizeLinear <axis = 0, block_size = 16> (codes, s)
      y = MatMul (x, w)
    }""".replace("{}", "{" + ", ".join(map(repr, scales.ravel().tolist())) + "}")
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(codes, "codes"))
    wanted = x @ (codes.astype(np.float32) * np.repeat(scales, 16, 0))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=100)
    found = gptrs_onnx.load(tmp_path / "m.onnx", backend)(x)["y"]
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-4)


def test_other_operators_and_other_numbers_are_refused() -> None:
    model = one_node("Add", {"a": np.zeros(2, ml_dtypes.int2)} | {"b": np.zeros(2)}, "FLOAT")
    with pytest.raises(UnsupportedError, match="`Add` computes with numbers of type INT2"):
        gptrs_onnx.from_proto(model, "ref")(np.zeros(2, ml_dtypes.int2), np.zeros(2))
    model = one_node("Identity", {"x": np.zeros(2, ml_dtypes.float4_e2m1fn)}, "FLOAT4E2M1")
    with pytest.raises(UsageError, match="of type FLOAT4E2M1 got other numbers"):
        gptrs_onnx.from_proto(model, "ref")(np.array([1, 5], np.float16))
    narrow = one_node("Identity", {"x": np.zeros(2, ml_dtypes.float4_e2m1fn)}, "FLOAT8E8M0")
    with pytest.raises(ModelError, match="is stated to be FLOAT8E8M0, and is FLOAT4E2M1"):
        gptrs_onnx.from_proto(narrow, "ref")(np.zeros(2, ml_dtypes.float4_e2m1fn))
