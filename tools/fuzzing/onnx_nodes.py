"""Single nodes of ONNX with all their attributes, and odd inputs: what `fuzz_onnx` tries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

FLOATS: Final = ("float32", "float64", "float16")
WHOLE: Final = ("int32", "int64", "int8", "uint8")
NUMBERS: Final = ("float32", "float64", "int32", "int64")
FLAVOURS: Final = ("plain", "ties", "strange", "large")


@dataclass(frozen=True)
class Drawn:
    """An input of a type of its own; with `below`, indices that may count from the end.

    None of the elements of a `weight` is NaN or infinite. Integers that are `wide` have all values
    of their type.
    """

    dtype: str
    shape: tuple[int, ...]
    below: int = 0
    least: int | None = None
    weight: bool = False
    wide: bool = False


Input = tuple[int, ...] | Drawn | np.ndarray | None
"""A shape stands for an input of the type that is tried, an array for a constant of the file."""


@dataclass(frozen=True)
class NodeKind:
    """An operator on inputs, with the values that each of its attributes takes in turn."""

    op: str
    inputs: tuple[Input, ...]
    choices: Mapping[str, Sequence[Any]]
    types: Sequence[str] = ("float32",)
    opset: int = 21
    outputs: int = 1
    domain: str = ""
    version: int = 1
    """Of the operator set of the domain."""
    flavours: Sequence[str] = FLAVOURS

    def variants(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield all types with all combinations of attributes; None leaves one out."""
        names = list(self.choices)
        for dtype, *values in itertools.product(self.types, *self.choices.values()):
            given = zip(names, values, strict=True)
            yield dtype, {name: value for name, value in given if value is not None}

    def model(self, dtype: str, attributes: dict[str, Any]) -> onnx.ModelProto:
        """Return the node as a model; its outputs have the types that follow."""
        names = ["" if each is None else f"x{i}" for i, each in enumerate(self.inputs)]
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **attributes)
        takes, constants = [], []
        for name, each in zip(names, self.inputs, strict=True):
            if isinstance(each, np.ndarray):
                constants.append(onnx.numpy_helper.from_array(each, name))
            elif each is not None:
                own = each if isinstance(each, Drawn) else Drawn(dtype, each)
                number = helper.np_dtype_to_tensor_dtype(np.dtype(own.dtype))
                takes.append(helper.make_tensor_value_info(name, number, own.shape))
        gives = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph([node], self.op, takes, gives, constants)
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, self.version))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def arrays(self, dtype: str, flavour: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs: numbers of a flavour."""
        made: dict[str, np.ndarray] = {}
        for i, each in enumerate(self.inputs):
            if isinstance(each, Drawn):
                made[f"x{i}"] = _drawn(each, flavour, rng)
            elif isinstance(each, tuple):
                made[f"x{i}"] = _drawn(Drawn(dtype, each), flavour, rng)
        return made


def _drawn(what: Drawn, flavour: str, rng: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(what.dtype)
    if what.below:
        return rng.integers(-what.below, what.below, what.shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, what.shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (-3, 4) if flavour != "large" else (limits.min // 2, limits.max // 2)
        if what.wide:
            low, high = int(limits.min), int(limits.max) + 1
        low = max(low, limits.min) if what.least is None else what.least
        return rng.integers(low, high, what.shape).astype(dtype)
    made = rng.standard_normal(what.shape)
    if flavour == "ties":
        made = np.round(made)
    if flavour == "large":
        made = made * (100.0 if dtype == np.float16 else 1e4)
    if flavour == "strange" and not what.weight:
        odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0])
        made = np.where(rng.random(what.shape) < 0.3, rng.choice(odd, what.shape), made)
    return (made if what.least is None else np.abs(made) + what.least).astype(dtype)


def standard_kinds() -> list[NodeKind]:
    """Return all kinds of nodes of the standard that are tried."""
    parts = (_elementwise, _combining, _reduced, _moved, _indexed, _pooled, _normalized, _products)
    return [kind for part in (*parts, _resized, _quantized, _recurrent) for kind in part()]


def _elementwise() -> Iterator[NodeKind]:
    for op in (
        *("Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tan", "Atan", "Sinh"),
        *("Cosh", "Tanh", "Asinh", "Acosh", "Sigmoid", "Erf", "Floor", "Ceil", "Round", "Sign"),
        *("Relu", "Softplus", "Softsign", "HardSwish", "Mish", "IsNaN", "Identity", "Asin", "Acos"),
    ):
        yield NodeKind(op, ((3, 5),), {}, FLOATS)
    for op in ("Abs", "Neg", "Sign"):
        yield NodeKind(op, ((3, 5),), {}, WHOLE)
    for op in ("Elu", "Celu", "LeakyRelu", "ThresholdedRelu"):
        yield NodeKind(op, ((3, 5),), {"alpha": (None, 0.5, 2.0)})
    yield NodeKind("Selu", ((3, 5),), {"alpha": (None, 0.5), "gamma": (None, 2.0)})
    yield NodeKind("HardSigmoid", ((3, 5),), {"alpha": (None, 0.5), "beta": (None, 0.1)})
    yield NodeKind("Gelu", ((3, 5),), {"approximate": (None, "tanh")})
    yield NodeKind("Shrink", ((3, 5),), {"bias": (None, 0.3), "lambd": (None, 1.0)})
    signs = {"detect_negative": (None, 0), "detect_positive": (None, 0)}
    yield NodeKind("IsInf", ((3, 5),), signs)
    yield NodeKind("BitwiseNot", ((3, 5),), {}, WHOLE)
    for low, high in ((-1, 1), (None, 1), (-1, None), (2, 1), (None, None)):
        ends = [None if end is None else np.array(end, np.float32) for end in (low, high)]
        yield NodeKind("Clip", ((3, 5), *ends), {})
    for to in (1, 11, 10, 6, 7, 9, 16):
        yield NodeKind("Cast", ((3, 5),), {"to": (to,)}, (*NUMBERS, "bool"))
    yield NodeKind("Cast", ((3, 5),), {"to": (17, 19), "saturate": (None, 0)}, FLOATS)


def _combining() -> Iterator[NodeKind]:
    shapes: list[tuple[Input, ...]] = [((3, 5), (3, 5)), ((3, 1), (5,)), ((0, 5), (1, 5))]
    for pair in shapes:
        for op in ("Add", "Sub", "Mul", "Max", "Min"):
            yield NodeKind(op, pair, {}, NUMBERS)
        for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
            yield NodeKind(op, pair, {}, NUMBERS)
        yield NodeKind("Div", pair, {}, FLOATS)
        yield NodeKind("Mod", pair, {"fmod": (1,)}, ("float32", "float64"))
        yield NodeKind("Pow", pair, {}, ("float32", "float64"))
    for dtype in ("int32", "int64"):
        divisor = Drawn(dtype, (5,), least=1)
        yield NodeKind("Div", ((3, 5), divisor), {}, (dtype,))
        yield NodeKind("Mod", ((3, 5), divisor), {"fmod": (None, 1)}, (dtype,))
    for op in ("And", "Or", "Xor"):
        yield NodeKind(op, ((3, 5), (5,)), {}, ("bool",))
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield NodeKind(op, ((3, 5), (5,)), {}, WHOLE)
    shift = Drawn("uint8", (5,), least=0)
    directions = {"direction": ("LEFT", "RIGHT")}
    yield NodeKind("BitShift", (Drawn("uint8", (3, 5)), shift), directions)
    yield NodeKind("PRelu", ((3, 5), (5,)), {})
    yield NodeKind("Where", (Drawn("bool", (3, 1)), (3, 5), (5,)), {}, NUMBERS)
    for op in ("Sum", "Mean", "Max", "Min"):
        yield NodeKind(op, ((3, 5), (5,), (3, 1)), {})


def _reduced() -> Iterator[NodeKind]:
    plain = ("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin")
    others = ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
    for op in (*plain, *others):
        choices = {"keepdims": (None, 0), "noop_with_empty_axes": (None, 1)}
        for axes in ([1], [0, -1], [], None):
            given = None if axes is None else np.array(axes, np.int64)
            types = NUMBERS if op in plain else ("float32", "float64")
            yield NodeKind(op, ((2, 3, 4), given), choices, types, 20)
    for op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceLogSumExp", "ReduceL2"):
        axes = np.array([1], np.int64)
        yield NodeKind(op, ((2, 0, 4), axes), {"keepdims": (None, 0)}, opset=20)
    for op in ("ArgMax", "ArgMin"):
        choices = {"axis": (None, 1, -1), "keepdims": (None, 0), "select_last_index": (None, 1)}
        yield NodeKind(op, ((3, 4, 2),), choices, ("float32", "int32"))
    for axis in (0, -1):
        choices = {"exclusive": (None, 1), "reverse": (None, 1)}
        yield NodeKind("CumSum", ((3, 4), np.array(axis)), choices, NUMBERS)
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        yield NodeKind(op, ((3, 4, 2),), {"axis": (None, 0, 1)}, ("float32", "float64"))
        yield NodeKind(op, ((3, 4, 2),), {"axis": (None, 0, 2)}, opset=11)
    for k in (1, 3):
        choices = {"axis": (None, 0), "largest": (None, 0)}
        count = np.array([k], np.int64)
        yield NodeKind("TopK", ((4, 3), count), choices, ("float32", "int64"), outputs=2)


def _moved() -> Iterator[NodeKind]:
    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    yield NodeKind("Transpose", ((2, 3, 4),), {"perm": (None, [1, 0, 2], [2, 0, 1])}, NUMBERS)
    for shape, zero in (((0, -1), None), ((4, -1, 2), None), ((24,), 1)):
        yield NodeKind("Reshape", ((2, 3, 4), ints(*shape)), {"allowzero": (None, zero)})
    yield NodeKind("Flatten", ((2, 3, 4),), {"axis": (None, 0, 2, 3, -1)})
    yield NodeKind("Squeeze", ((1, 3, 1),), {})
    yield NodeKind("Unsqueeze", ((3, 4), ints(0, -1)), {})
    yield NodeKind("Expand", ((3, 1), ints(2, 1, 4)), {}, NUMBERS)
    yield NodeKind("Tile", ((2, 3), ints(2, 0)), {})
    yield NodeKind("Concat", ((2, 3), (0, 3), (1, 3)), {"axis": (0, -2)})
    yield NodeKind("Split", ((2, 7),), {"axis": (1, -1), "num_outputs": (3,)}, outputs=3)
    for mode in ("constant", "edge", "reflect", "wrap"):
        for pads in ((1, 2, 0, 1), (0, -1, 1, 0)):
            yield NodeKind("Pad", ((3, 4), ints(*pads)), {"mode": (mode,)}, NUMBERS)
    for diagonal in (0, 1, -2, 9):
        yield NodeKind("Trilu", ((3, 4), np.array(diagonal)), {"upper": (None, 0)}, NUMBERS)
    yield NodeKind("EyeLike", ((3, 4),), {"k": (None, 1, -2), "dtype": (None, 7)})
    for begin, end, step in ((0, 9, 2), (-1, -9, -1), (3, 1, 1), (9, 0, -2), (-3, -1, 1)):
        bounds = (ints(begin), ints(end), ints(1), ints(step))
        yield NodeKind("Slice", ((2, 5), *bounds), {}, NUMBERS)
    modes = {"blocksize": (2,), "mode": (None, "CRD")}
    yield NodeKind("DepthToSpace", ((1, 8, 2, 3),), modes)
    yield NodeKind("SpaceToDepth", ((1, 2, 4, 6),), {"blocksize": (2,)})
    lengths = np.array([1, 3, 2], np.int64)
    times = {"time_axis": (0,), "batch_axis": (1,)}
    yield NodeKind("ReverseSequence", ((4, 3, 2), lengths), times)
    yield NodeKind("CenterCropPad", ((3, 6), ints(5, 3)), {})


def _indexed() -> Iterator[NodeKind]:
    for axis in (0, 1):
        places = Drawn("int64", (2, 2), below=3)
        yield NodeKind("Gather", ((3, 3), places), {"axis": (axis,)}, NUMBERS)
        yield NodeKind("GatherElements", ((3, 3), places), {"axis": (axis,)})
        choices = {"axis": (axis,), "reduction": ("add", "mul", "max", "min")}
        yield NodeKind("ScatterElements", ((3, 3), places, (2, 2)), choices, NUMBERS)
    places = np.array([[0, -1, 1]], np.int64)
    yield NodeKind("ScatterElements", ((3, 3), places, (1, 3)), {"axis": (0, 1)})
    yield NodeKind("GatherND", ((3, 3, 2), Drawn("int64", (4, 2), below=3)), {})
    yield NodeKind("GatherND", ((2, 3, 3), Drawn("int64", (2, 1), below=3)), {"batch_dims": (1,)})
    choices = {"reduction": ("add", "mul", "max", "min")}
    yield NodeKind("ScatterND", ((3, 3), Drawn("int64", (2, 1), below=3), (2, 3)), choices)
    condition = np.array([True, False, True])
    yield NodeKind("Compress", ((3, 4), condition), {"axis": (None, 0, -1)})
    values = np.array([0.5, 2.0], np.float32)
    depth = np.array(3, np.int64)
    yield NodeKind("OneHot", (Drawn("int64", (4,), below=3), depth, values), {"axis": (None, 0)})


def _pooled() -> Iterator[NodeKind]:
    window = {"kernel_shape": ([2, 3],), "strides": (None, [2, 1])}
    padded = {**window, "pads": (None, [1, 0, 0, 2]), "ceil_mode": (None, 1)}
    yield NodeKind("MaxPool", ((1, 2, 5, 6),), {**padded, "dilations": (None, [2, 1])})
    yield NodeKind("MaxPool", ((1, 2, 5, 6),), {**window, "auto_pad": ("SAME_UPPER", "VALID")})
    yield NodeKind("MaxPool", ((1, 2, 5, 6),), {**window, "pads": (None, [1, 1, 0, 0])}, outputs=2)
    included = {**padded, "count_include_pad": (None, 1)}
    yield NodeKind("AveragePool", ((1, 2, 5, 6),), included, opset=22)
    yield NodeKind("LpPool", ((1, 2, 5, 6),), {**window, "p": (None, 1, 3)})
    for op in ("GlobalMaxPool", "GlobalAveragePool"):
        yield NodeKind(op, ((2, 3, 4, 2),), {})
    yield NodeKind("GlobalLpPool", ((2, 3, 4, 2),), {"p": (None, 1)})


def _normalized() -> Iterator[NodeKind]:
    scale = Drawn("float32", (3,), least=0)
    yield NodeKind("BatchNormalization", ((2, 3, 4), *[scale] * 4), {"epsilon": (None, 0.1)})
    yield NodeKind("InstanceNormalization", ((2, 3, 4), scale, scale), {"epsilon": (None, 0.1)})
    yield NodeKind("LayerNormalization", ((2, 4, 3), scale, scale), {"epsilon": (None, 0.1)})
    wide = Drawn("float32", (4, 3), least=0)
    yield NodeKind("LayerNormalization", ((2, 4, 3), wide), {"axis": (1, -2)})
    yield NodeKind("LpNormalization", ((2, 4, 3),), {"axis": (None, 0), "p": (None, 1)})
    yield NodeKind("MeanVarianceNormalization", ((5, 3, 4, 2),), {"axes": (None, [0], [1, 2])})
    bias = {"bias": (None, 2.0), "alpha": (None, 0.5), "size": (3,)}
    yield NodeKind("LRN", ((1, 5, 2, 2),), bias)
    four = Drawn("float32", (4,), least=0)
    yield NodeKind("GroupNormalization", ((2, 4, 3), four, four), {"num_groups": (2, 4)})


def _weight(*shape: int) -> Drawn:
    return Drawn("float32", shape, weight=True)


def _products() -> Iterator[NodeKind]:
    for shapes in (((3, 4), (4, 2)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4, 2)), ((2, 4), (4,))):
        yield NodeKind("MatMul", shapes, {}, NUMBERS)
    scales = {"alpha": (None, 0.5), "beta": (None, 2.0)}
    yield NodeKind("Gemm", ((3, 4), (4, 2), (2,)), scales)
    yield NodeKind("Gemm", ((4, 3), (2, 4)), {"transA": (1,), "transB": (1,), **scales})
    for equation in ("ab,bc->ac", "ab,cb", "ab,ab->", "...b,bc->...c"):
        second = (4, 4) if equation == "ab,cb" else (4, 2)
        second = (3, 4) if equation == "ab,ab->" else second
        yield NodeKind("Einsum", ((3, 4), second), {"equation": (equation,)})
    choices: Mapping[str, Sequence[Any]] = {"strides": (None, [2, 1]), "dilations": (None, [1, 2])}
    padded = {**choices, "pads": (None, [1, 0, 0, 2])}
    yield NodeKind("Conv", ((1, 4, 5, 6), _weight(2, 4, 2, 2), (2,)), padded)
    yield NodeKind("Conv", ((1, 4, 5, 6), _weight(4, 2, 2, 2)), {**choices, "group": (2,)})
    same = {"auto_pad": ("SAME_UPPER", "SAME_LOWER"), "strides": (None, [2, 2])}
    yield NodeKind("Conv", ((1, 4, 5, 6), _weight(2, 4, 2, 3)), same)
    more = {**padded, "output_padding": (None, [1, 0])}
    inputs = ((1, 4, 3, 4), _weight(4, 2, 2, 2))
    yield NodeKind("ConvTranspose", inputs, {**more, "strides": ([2, 2],)})


def _resized() -> Iterator[NodeKind]:
    nothing = np.zeros(0, np.float32)
    modes = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    for scales in ((1, 1, 2, 1.5), (1, 1, 0.6, 0.5)):
        given = (nothing, np.array(scales, np.float32))
        places = {"coordinate_transformation_mode": (*modes, "half_pixel_symmetric")}
        rounding = {"nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")}
        yield NodeKind("Resize", ((1, 1, 5, 4), *given), {**places, **rounding})
        smooth = {**places, "mode": ("linear", "cubic")}
        yield NodeKind("Resize", ((1, 1, 5, 4), *given), smooth)
    for sizes in ((1, 1, 3, 7), (1, 1, 1, 9)):
        given = (nothing, nothing, np.array(sizes, np.int64))
        places = {"coordinate_transformation_mode": modes, "mode": ("nearest", "linear", "cubic")}
        yield NodeKind("Resize", ((1, 1, 5, 4), *given), places)
    choices = {"mode": ("linear", "nearest", "cubic"), "align_corners": (None, 1)}
    padding = {"padding_mode": ("zeros", "border", "reflection")}
    yield NodeKind("GridSample", ((1, 2, 3, 4), (1, 2, 2, 2)), {**choices, **padding})
    regions = [[0, 0, 4, 4], [1, 1, 3, 2], [-1, -2, 10, 10], [0, 0, 30, 3], [5, 5, 3, 2]]
    boxes, rows = np.array(regions, np.float32), np.array([0, 1, 0, 1, 0])
    frames = {"coordinate_transformation_mode": ("half_pixel", "output_half_pixel")}
    bins = {"output_height": (2,), "output_width": (3,), "sampling_ratio": (0, 2), **frames}
    ways = {**bins, "mode": ("avg", "max"), "spatial_scale": (None, 0.5)}
    yield NodeKind("RoiAlign", ((2, 2, 5, 6), boxes, rows), ways, flavours=("plain", "ties"))


def _quantized() -> Iterator[NodeKind]:
    scale = np.array(0.1, np.float32)
    for zero in (np.array(3, np.uint8), np.array(-2, np.int8)):
        yield NodeKind("QuantizeLinear", ((3, 4), scale, zero), {})
        stored = Drawn(zero.dtype.name, (3, 4))
        yield NodeKind("DequantizeLinear", (stored, scale, zero), {})
    many = np.array([0.1, 0.5, 2, 1], np.float32)
    yield NodeKind("QuantizeLinear", ((3, 4), many, np.zeros(4, np.int8)), {"axis": (None, -1)})
    yield NodeKind("DynamicQuantizeLinear", ((3, 4),), {}, outputs=3)
    left, right = Drawn("uint8", (3, 4), least=0), Drawn("uint8", (4, 2), least=0)
    yield NodeKind("MatMulInteger", (left, right, np.array(1, np.uint8)), {})


def _recurrent() -> Iterator[NodeKind]:
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for ways, direction in ((1, "forward"), (1, "reverse"), (2, "bidirectional")):
            weights = [_weight(ways, 3 * gates, size) for size in (2, 3)]
            weights.append(_weight(ways, 6 * gates))
            choices: dict[str, Sequence[Any]] = {"hidden_size": (3,), "direction": (direction,)}
            if op == "GRU":
                choices["linear_before_reset"] = (None, 1)
            lengths = np.array([4, 2], np.int32)
            outputs = 3 if op == "LSTM" else 2
            for ends in (None, lengths):
                yield NodeKind(op, ((4, 2, 2), *weights, ends), choices, outputs=outputs)
