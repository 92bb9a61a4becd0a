"""Modules of StableHLO with numbers of our own: inputs, and the outputs that the text must give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

NAN, INF = np.nan, np.inf


@dataclass(frozen=True)
class ModuleCase:
    """The body of `main` for inputs `%a`, `%b`, ..., and what `return` gives."""

    name: str
    body: str
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]

    def __str__(self) -> str:
        return self.name

    def text(self) -> str:
        """Return the module."""
        names = "abcdefgh"
        takes = ", ".join(f"%{names[n]}: {mlir_type(each)}" for n, each in enumerate(self.inputs))
        gives = ", ".join(map(mlir_type, self.outputs))
        return f"module {{ func.func @main({takes}) -> ({gives}) {{\n{self.body}\n}} }}"


_ELEMENTS = {"float32": "f32", "bool": "i1", "complex64": "complex<f32>"}


def mlir_type(array: np.ndarray) -> str:
    """Return the type of an array as MLIR writes it."""
    name = str(array.dtype)
    element = _ELEMENTS.get(name) or name.replace("uint", "ui").replace("int", "i")
    return f"tensor<{''.join(f'{dim}x' for dim in array.shape)}{element}>"


def f32(values: Any) -> np.ndarray:
    """Return floats."""
    return np.array(values, np.float32)


def i32(values: Any) -> np.ndarray:
    """Return integers."""
    return np.array(values, np.int32)


def one(
    name: str, operation: str, inputs: tuple[np.ndarray, ...], output: np.ndarray
) -> ModuleCase:
    """Return the case of one operation."""
    types = f"({', '.join(map(mlir_type, inputs))}) -> {mlir_type(output)}"
    result = f"return %r : {mlir_type(output)}"
    return ModuleCase(name, f"%r = {operation} : {types}\n{result}", inputs, (output,))


def unary(name: str, x: Any, wanted: Any) -> ModuleCase:
    """Return the case of an operation of one operand."""
    return one(name, f'"stablehlo.{name}"(%a)', (np.asarray(x),), np.asarray(wanted))


def binary(name: str, x: Any, y: Any, wanted: Any) -> ModuleCase:
    """Return the case of an operation of two operands."""
    pair = (np.asarray(x), np.asarray(y))
    return one(name, f'"stablehlo.{name}"(%a, %b)', pair, np.asarray(wanted))


ELEMENTWISE = [
    unary("abs", i32([-5, 0, -(2**31)]), i32([5, 0, -(2**31)])),
    unary("cbrt", f32([-27, -0.0, 0.001, 8]), f32([-3, -0.0, 0.1, 2])),
    unary("ceil", f32([-1.5, -0.2, 2.1]), f32([-1, -0.0, 3])),
    unary("count_leading_zeros", np.uint8([0, 1, 128, 20]), np.uint8([8, 7, 0, 3])),
    unary("exponential_minus_one", f32([0, 1e-8, -INF]), f32([0, 1e-8, -1])),
    unary("floor", f32([-1.5, -0.2, 2.9]), f32([-2, -1, 2])),
    unary("imag", np.complex64([1 + 2j, INF - 3j]), f32([2, -3])),
    unary("real", np.complex64([1 + 2j, INF - 3j]), f32([1, INF])),
    unary("is_finite", f32([-INF, 1, NAN]), np.array([False, True, False])),
    unary("logistic", f32([0, 100, -100]), f32([0.5, 1, 3.8e-44])),
    unary("negate", np.uint8([1, 0, 255]), np.uint8([255, 0, 1])),
    unary("not", np.array([True, False]), np.array([False, True])),
    unary("popcnt", i32([0, -1, 7, 2**30]), i32([0, 32, 3, 1])),
    unary("round_nearest_afz", f32([-2.5, -0.5, 0.49999997, 2.5]), f32([-3, -1, 0, 3])),
    unary("round_nearest_even", f32([-2.5, -0.5, 1.5, 2.5]), f32([-2, -0.0, 2, 2])),
    unary("sign", f32([-3, -0.0, 0, 9]), f32([-1, -0.0, 0, 1])),
    unary("tan", f32([0, np.pi / 4]), f32([0, 1])),
    binary("add", np.array([True, True]), np.array([False, True]), np.array([True, True])),
    binary("multiply", np.array([True, True]), np.array([False, True]), np.array([False, True])),
    binary(
        "atan2", f32([0, 1, -1, 0]), f32([-1, 0, -1, 0]), f32([np.pi, np.pi / 2, -2.3561945, 0])
    ),
    binary("complex", f32([1, -2]), f32([3, -0.0]), np.complex64([1 + 3j, complex(-2, -0.0)])),
    binary("divide", i32([7, -7, 5, -(2**31)]), i32([2, 2, 0, -1]), i32([3, -3, -1, -(2**31)])),
    binary("remainder", i32([7, -7, 5]), i32([3, 3, 0]), i32([1, -1, 5])),
    binary("remainder", f32([7.5, -7.5]), f32([2, 2]), f32([1.5, -1.5])),
    binary("maximum", f32([1, NAN]), f32([2, 1]), f32([2, NAN])),
    binary("minimum", f32([1, NAN]), f32([2, 1]), f32([1, NAN])),
    binary("power", f32([2, -2, 0]), f32([10, 3, 0]), f32([1024, -8, 1])),
    binary("shift_left", i32([1, -1, 5]), i32([3, 32, -1]), i32([8, 0, 0])),
    binary("shift_right_arithmetic", i32([-8, 8]), i32([1, 40]), i32([-4, 0])),
    binary("shift_right_logical", i32([-1, 8]), i32([28, 1]), i32([15, 4])),
    binary("xor", i32([6, -1]), i32([3, 1]), i32([5, -2])),
    one(
        "clamp",
        '"stablehlo.clamp"(%a, %b, %c)',
        (f32(-1), f32([-3, 0, 9]), f32([2, 2, 3])),
        f32([-1, 0, 3]),
    ),
    one(
        "select",
        '"stablehlo.select"(%a, %b, %c)',
        (np.array([True, False]), i32([1, 2]), i32([3, 4])),
        i32([1, 4]),
    ),
    one(
        "compare",
        "stablehlo.compare LT, %a, %b, TOTALORDER",
        (f32([-0.0, 0.0, NAN]), f32([0.0, -0.0, 1])),
        np.array([True, False, False]),
    ),
    one("convert", '"stablehlo.convert"(%a)', (i32([300, -1, 127]),), np.uint8([44, 255, 127])),
    one(
        "convert_saturates",
        '"stablehlo.convert"(%a)',
        (f32([3e9, -9.7, NAN]),),
        i32([2**31 - 1, -9, 0]),
    ),
    one(
        "bitcast",
        '"stablehlo.bitcast_convert"(%a)',
        (np.uint32([0x01020304]),),
        np.uint8([[4, 3, 2, 1]]),
    ),
    one(
        "bitcast_joined",
        '"stablehlo.bitcast_convert"(%a)',
        (np.uint8([[4, 3, 2, 1]]),),
        np.uint32([0x01020304]),
    ),
    one(
        "reduce_precision",
        "stablehlo.reduce_precision %a, format = e8m7",
        (f32([1.00390625, 1.01171875]),),
        f32([1, 1.015625]),
    ),
    one(
        "batch_norm_inference",
        '"stablehlo.batch_norm_inference"(%a, %b, %c, %d, %e)'
        " <{epsilon = 0.0 : f32, feature_index = 1 : i64}>",
        (f32([[1, 2], [3, 4]]), f32([1, 2]), f32([0, 1]), f32([2, 3]), f32([1, 4])),
        f32([[-1, 0], [1, 2]]),
    ),
    ModuleCase(
        "map",
        """%r = "stablehlo.map"(%a, %b) <{dimensions = array<i64: 0>}> ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %s = stablehlo.subtract %y, %x : tensor<f32>
          stablehlo.return %s : tensor<f32>
        }) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
        return %r : tensor<2xf32>""",
        (f32([1, 2]), f32([5, 5])),
        (f32([4, 3]),),
    ),
    ModuleCase(
        "triangular_solve",
        """%r = "stablehlo.triangular_solve"(%a, %b) <{left_side = true, lower = true,
          unit_diagonal = false, transpose_a = #stablehlo<transpose TRANSPOSE>}>
          : (tensor<2x2xf32>, tensor<2x1xf32>) -> tensor<2x1xf32>
        return %r : tensor<2x1xf32>""",
        (f32([[2, 99], [1, 4]]), f32([[5], [8]])),
        (f32([[1.5], [2]]),),
    ),
    ModuleCase(
        "cholesky",
        """%r = stablehlo.cholesky %a, lower = true : tensor<2x2xf32>
        return %r : tensor<2x2xf32>""",
        (f32([[4, 99], [2, 10]]),),
        (f32([[2, 0], [1, 3]]),),
    ),
    ModuleCase(
        "complex_constant",
        """%c = stablehlo.constant dense<[(1.0, 2.0), (0.5, -1.0)]> : tensor<2xcomplex<f32>>
        %r = stablehlo.multiply %a, %c : tensor<2xcomplex<f32>>
        return %r : tensor<2xcomplex<f32>>""",
        (np.complex64([1j, 2]),),
        (np.complex64([-2 + 1j, 1 - 2j]),),
    ),
]

LAYOUT = [
    one(
        "broadcast",
        '"stablehlo.broadcast"(%a) <{broadcast_sizes = array<i64: 2>}>',
        (i32([1, 2]),),
        i32([[1, 2], [1, 2]]),
    ),
    one(
        "broadcast_in_dim",
        "stablehlo.broadcast_in_dim %a, dims = [1, 0]",
        (i32([[1, 2]]),),
        i32([[1, 1], [2, 2]]),
    ),
    one(
        "pad",
        '"stablehlo.pad"(%a, %b) <{edge_padding_low = array<i64: 1, -1>,'
        " edge_padding_high = array<i64: -1, 2>, interior_padding = array<i64: 1, 0>}>",
        (i32([[1, 2], [3, 4]]), i32(9)),
        i32([[9, 9, 9], [2, 9, 9], [9, 9, 9]]),
    ),
    one(
        "reverse",
        "stablehlo.reverse %a, dims = [1]",
        (i32([[1, 2], [3, 4]]),),
        i32([[2, 1], [4, 3]]),
    ),
    one("iota", '"stablehlo.iota"() <{iota_dimension = 1 : i64}>', (), f32([[0, 1, 2], [0, 1, 2]])),
    one(
        "slice",
        "stablehlo.slice %a [1:2, 0:4:3]",
        (i32([[1, 2, 3, 4], [5, 6, 7, 8]]),),
        i32([[5, 8]]),
    ),
    one(
        "concatenate",
        "stablehlo.concatenate %a, %b, dim = 0",
        (i32([1]), i32([2, 3])),
        i32([1, 2, 3]),
    ),
    one(
        "transpose",
        "stablehlo.transpose %a, dims = [1, 0]",
        (i32([[1, 2], [3, 4]]),),
        i32([[1, 3], [2, 4]]),
    ),
    one("dot", "stablehlo.dot %a, %b", (i32([[1, 2], [3, 4]]), i32([5, 6])), i32([17, 39])),
    one(
        "dot_general",
        "stablehlo.dot_general %a, %b, batching_dims = [0] x [1], contracting_dims = [1] x [0]",
        (i32([[1, 2], [3, 4]]), i32([[5, 6], [7, 8]])),
        i32([19, 50]),
    ),
    one(
        "dynamic_slice",
        "stablehlo.dynamic_slice %a, %b, %c, sizes = [1, 2]",
        (i32([[1, 2, 3], [4, 5, 6]]), i32(-3), i32(7)),
        i32([[2, 3]]),
    ),
    one(
        "dynamic_update_slice",
        "stablehlo.dynamic_update_slice %a, %b, %c",
        (i32([1, 2, 3]), i32([8, 9]), i32(5)),
        i32([1, 8, 9]),
    ),
]

SIZES = [
    ModuleCase(
        "dynamic_reshape",
        """%s = stablehlo.constant dense<[3, 2]> : tensor<2xi32>
        %r = stablehlo.dynamic_reshape %a, %s : (tensor<2x3xi32>, tensor<2xi32>) -> tensor<3x2xi32>
        return %r : tensor<3x2xi32>""",
        (i32([[1, 2, 3], [4, 5, 6]]),),
        (i32([[1, 2], [3, 4], [5, 6]]),),
    ),
    ModuleCase(
        "dynamic_iota",
        """%n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<4xi32>) -> tensor<i32>
        %s = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
        %r = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi32>) -> tensor<4xi32>
        return %r : tensor<4xi32>""",
        (i32([5, 5, 5, 5]),),
        (i32([0, 1, 2, 3]),),
    ),
    ModuleCase(
        "dynamic_broadcast_in_dim",
        """%s = stablehlo.constant dense<[2, 2]> : tensor<2xi64>
        %r = stablehlo.dynamic_broadcast_in_dim %a, %s, dims = [1] : (tensor<2xi32>,
          tensor<2xi64>) -> tensor<2x2xi32>
        return %r : tensor<2x2xi32>""",
        (i32([7, 8]),),
        (i32([[7, 8], [7, 8]]),),
    ),
    ModuleCase(
        "dynamic_pad",
        """%l = stablehlo.constant dense<1> : tensor<1xi32>
        %h = stablehlo.constant dense<-1> : tensor<1xi32>
        %r = stablehlo.dynamic_pad %a, %b, %l, %h, %l :
          (tensor<3xi32>, tensor<i32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<5xi32>
        return %r : tensor<5xi32>""",
        (i32([1, 2, 3]), i32(0)),
        (i32([0, 1, 0, 2, 0]),),
    ),
    ModuleCase(
        "real_dynamic_slice",
        """%s = stablehlo.constant dense<1> : tensor<1xi32>
        %l = stablehlo.constant dense<5> : tensor<1xi32>
        %t = stablehlo.constant dense<2> : tensor<1xi32>
        %r = stablehlo.real_dynamic_slice %a, %s, %l, %t :
          (tensor<6xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
        return %r : tensor<2xi32>""",
        (i32([0, 1, 2, 3, 4, 5]),),
        (i32([1, 3]),),
    ),
    ModuleCase(
        "dynamic_gather",
        """%s = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
        %r = "stablehlo.dynamic_gather"(%a, %b, %s) <{dimension_numbers = #stablehlo.gather<
          offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0, 1],
          index_vector_dim = 1>}> :
          (tensor<2x3xi32>, tensor<2x2xi32>, tensor<2xi32>) -> tensor<2x2xi32>
        return %r : tensor<2x2xi32>""",
        (i32([[1, 2, 3], [4, 5, 6]]), i32([[0, 0], [1, 9]])),
        (i32([[1, 2], [5, 6]]),),
    ),
]

REGIONS = [
    ModuleCase(
        "case",
        """%r = "stablehlo.case"(%a) ({
          stablehlo.return %b : tensor<i32> }, {
          %m = stablehlo.negate %b : tensor<i32>
          stablehlo.return %m : tensor<i32> }) : (tensor<i32>) -> tensor<i32>
        return %r : tensor<i32>""",
        (i32(-7), i32(4)),
        (i32(-4),),
    ),
    ModuleCase(
        "if",
        """%r = "stablehlo.if"(%a) ({
          stablehlo.return %b : tensor<i32> }, {
          %m = stablehlo.negate %b : tensor<i32>
          stablehlo.return %m : tensor<i32> }) : (tensor<i1>) -> tensor<i32>
        return %r : tensor<i32>""",
        (np.array(True), i32(4)),
        (i32(4),),
    ),
    ModuleCase(
        "while",
        """%z = stablehlo.constant dense<0> : tensor<i32>
        %r:2 = stablehlo.while(%i = %z, %s = %a) : tensor<i32>, tensor<i32>
          cond {
            %c = stablehlo.compare LT, %i, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %c : tensor<i1>
          } do {
            %o = stablehlo.constant dense<1> : tensor<i32>
            %n = stablehlo.add %i, %o : tensor<i32>
            %d = stablehlo.add %s, %s : tensor<i32>
            stablehlo.return %n, %d : tensor<i32>, tensor<i32>
          }
        return %r#1 : tensor<i32>""",
        (i32(3), i32(4)),
        (i32(48),),
    ),
    ModuleCase(
        "sort_descending",
        """%r:2 = "stablehlo.sort"(%a, %b) <{dimension = 0 : i64, is_stable = true}> ({
        ^bb0(%x: tensor<i32>, %y: tensor<i32>, %p: tensor<i32>, %q: tensor<i32>):
          %c = stablehlo.compare LT, %y, %x : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }) : (tensor<4xi32>, tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>)
        return %r#0, %r#1 : tensor<4xi32>, tensor<4xi32>""",
        (i32([1, 3, 1, 2]), i32([10, 11, 12, 13])),
        (i32([3, 2, 1, 1]), i32([11, 13, 10, 12])),
    ),
    ModuleCase(
        "reduce_other",
        """%r = "stablehlo.reduce"(%a, %b) <{dimensions = array<i64: 1>}> ({
        ^bb0(%x: tensor<i32>, %y: tensor<i32>):
          %m = stablehlo.maximum %x, %y : tensor<i32>
          %s = stablehlo.subtract %m, %x : tensor<i32>
          %t = stablehlo.add %s, %x : tensor<i32>
          stablehlo.return %t : tensor<i32>
        }) : (tensor<2x3xi32>, tensor<i32>) -> tensor<2xi32>
        return %r : tensor<2xi32>""",
        (i32([[1, 5, 2], [-4, -9, -3]]), i32(-5)),
        (i32([5, -3]),),
    ),
    ModuleCase(
        "scatter_add_twice",
        """%r = "stablehlo.scatter"(%a, %b, %c) <{scatter_dimension_numbers =
          #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
          index_vector_dim = 1>}> ({
        ^bb0(%x: tensor<i32>, %y: tensor<i32>):
          %s = stablehlo.add %x, %y : tensor<i32>
          stablehlo.return %s : tensor<i32>
        }) : (tensor<3xi32>, tensor<4x1xi32>, tensor<4xi32>) -> tensor<3xi32>
        return %r : tensor<3xi32>""",
        (i32([1, 2, 3]), i32([[0], [0], [-1], [3]]), i32([10, 20, 30, 40])),
        (i32([31, 2, 3]),),
    ),
    ModuleCase(
        "reduce_window_sum",
        """%r = "stablehlo.reduce_window"(%a, %b) <{
          window_dimensions = array<i64: 2>, window_strides = array<i64: 2>, base_dilations =
          array<i64: 2>,
          window_dilations = array<i64: 3>, padding = dense<[[2, 1]]> : tensor<1x2xi64>}> ({
        ^bb0(%x: tensor<i32>, %y: tensor<i32>):
          %s = stablehlo.add %x, %y : tensor<i32>
          stablehlo.return %s : tensor<i32>
        }) : (tensor<3xi32>, tensor<i32>) -> tensor<3xi32>
        return %r : tensor<3xi32>""",
        (i32([1, 2, 3]), i32(0)),
        (i32([0, 1, 2]),),
    ),
]

MODULES = [*ELEMENTWISE, *LAYOUT, *SIZES, *REGIONS]
