"""Claims composites that this backend computes: its kernels are called for functionals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
from msgspec import Struct

from gptrs.errors import GptrsError
from gptrs.functionals.pooling import Extents, Padding, windows_of
from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary, DictionaryValue
from gptrs.ir.builder import Builder
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import Claimed, Composite, CustomCall, Declined
from gptrs.ir.ops.elementwise import Add, Cast, Mul
from gptrs.ir.ops.layout import BroadcastTo, Reshape, Transpose
from gptrs.ir.program import Region, Value
from gptrs.ir.size_guards import Shape, usual_size
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.cost_model import FEW_POSITIONS, forced_algorithm
from gptrs_backend_numba.cost_model import VARIABLE as CONVOLUTION
from gptrs_backend_numba.fusion import is_on
from gptrs_backend_numba.kernels import normalization
from gptrs_backend_numba.lowering.attention import attention_target
from gptrs_backend_numba.lowering.attention_gradient import ATTENTION_GRADIENT, fits_gradient
from gptrs_backend_numba.lowering.elementwise import fits_rotary, rotary_target
from gptrs_backend_numba.lowering.linear import (
    GROUPED_LINEAR,
    SMALLEST,
    fits_grouped,
    linear_target,
)
from gptrs_backend_numba.lowering.matmul import FLOATS
from gptrs_backend_numba.lowering.paged_attention import (
    PAGED_ATTENTION,
    UPDATE_PAGES,
    fits_attention,
    fits_update,
)
from gptrs_backend_numba.lowering.reduction import rows_target, standardize_target
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.schedule import CONV2D, DEPTHWISE, GROUP_OUTPUTS, GROUPED

_IMAGES = 4
"""The rank of images [N, H, W, C]."""


class _Call(Struct, frozen=True):
    """A composite that may be claimed: its operands by parameter, its attributes, its result."""

    op: Composite
    types: Mapping[str, TensorType]
    result: TensorType

    def operands(self, *names: str) -> list[TensorType]:
        """Return the types of operands; ValueError unless they are some of `names`, in order."""
        if [name for name in names if name in self.types] != list(self.types):
            raise ValueError(f"the operands are {', '.join(self.types)}")
        return list(self.types.values())

    def number(self, name: str, default: float = 0.0) -> float:
        """Return an attribute that is a number, `default` where the call has none."""
        value = dict(self.op.attrs.items).get(name, default)
        if not isinstance(value, int | float):
            raise ValueError(f"`{name}` is not a number")
        return float(value)

    def replaced(self, target: str, **attrs: DictionaryValue) -> CustomCall:
        """Return a call of a kernel that takes the operands as they are."""
        return CustomCall(target, (self.result,), Dictionary.of(attrs))

    def lowered(self, call: CustomCall, **changes: Sequence[Op]) -> Claimed:
        """Return `call` behind `changes` of operands, without ops that have nothing to do."""
        builder = Builder()
        given = {name: builder.param(type_) for name, type_ in self.types.items()}
        taken = [_applied(builder, value, changes.get(name, ())) for name, value in given.items()]
        return builder.region(builder.emit(call, *taken)) if taken != list(given.values()) else call


def _applied(builder: Builder, value: Value, ops: Sequence[Op]) -> Value:
    for op in ops:
        if isinstance(op, Transpose) or op.result_types([value.type]) != (value.type,):
            value = builder.emit(op, value)
    return value


_Claim = Callable[[_Call], Claimed]


def claim(
    op: Composite,
    operands: Sequence[TensorType],
    results: Sequence[TensorType],
    precision: str = "f32",
) -> Claimed:
    """Return what computes a composite, a reason against it, or None for kinds without a kernel."""
    if op.kind == "attention_gradient.v1" and precision != "bf16":
        return Declined("its kernel rounds to bf16, the precision of another backend")
    found = _CLAIMS.get(op.kind) if is_on() else None
    if found is None:
        return _DECLINED.get(op.kind)
    given = dict(zip(op.operand_names_given, operands, strict=True))
    try:
        claimed = found(_Call(op, given, results[0]))
    except (GptrsError, ArithmeticError, LookupError, TypeError, ValueError):
        return _MISFIT  # a program by hand may have any operands and attributes
    return claimed if _is_taken(claimed, operands) else _MISFIT


def _is_taken(claimed: Claimed, operands: Sequence[TensorType]) -> bool:
    """Return whether there is a kernel for a call, which a composite of odd operands may lack."""
    if isinstance(claimed, Region):
        made = next(made for made in claimed.instructions if isinstance(made.op, CustomCall))
        claimed, operands = made.op, [value.type for value in made.operands]
    sizes = (size for type_ in operands for size in type_.shape)
    if not isinstance(claimed, CustomCall) or any(isinstance(size, SymbolicDim) for size in sizes):
        return True  # kernels derive sizes of symbols, which is for lowering
    return TABLE.refusal(claimed, operands, claimed.results) is None


def claim_softmax(
    op: Composite, operands: Sequence[TensorType], results: Sequence[TensorType]
) -> Claimed:
    """`claim` of softmax alone: what patterns of attention have in them, see `FUSE_SOFTMAX`."""
    return claim(op, operands, results) if op.kind in _SOFTMAX else None


def _softmax(call: _Call) -> Claimed:
    axis = call.op.attrs["axis"]
    if axis not in (-1, call.result.rank - 1):
        return Declined(f"the kernel takes the last axis, not axis {axis}")
    return _rows(call)


def _layer_norm(call: _Call) -> Claimed:
    numbers = range(call.result.rank)
    axes = sorted(numbers[axis] for axis in _integers(call.op.attrs["axes"]))
    if axes == [call.result.rank - 1]:
        return _rows(call, "weight", "bias")
    return _standardized(call, call.result.shape, axes)


def _rms_norm(call: _Call) -> Claimed:
    offset, made = call.number("weight_offset"), _rows(call, "weight")
    if not offset or "weight" not in call.types or not isinstance(made, CustomCall):
        return made
    x, weight = call.operands("x", "weight")
    if x.dtype is not dtypes.f32:
        return Declined("the kernel takes 16-bit weights, and theirs with the offset is wider")
    builder = Builder()
    values = [builder.param(type_) for type_ in (x, weight)]
    number = builder.emit(Constant(Literal.full(offset, dtypes.f32)))
    spread = builder.emit(BroadcastTo(weight.shape), number)
    return builder.region(builder.emit(made, values[0], builder.emit(Add(), values[1], spread)))


def _group_norm(call: _Call) -> Claimed:
    batch, *positions, channels = call.result.shape
    groups = int(call.number("groups"))
    shape = (batch, math.prod(positions), groups, channels // groups)
    return _standardized(call, shape, (1, 3))


def _instance_norm(call: _Call) -> Claimed:
    return _standardized(call, call.result.shape, range(1, call.result.rank - 1))


def _standardized(call: _Call, shape: Shape, axes: Sequence[int]) -> Claimed:
    """Return a norm over `axes` of x in another `shape`; its weight and bias follow the kernel.

    16-bit numbers are widened for it, and the result is rounded once.
    """
    call.operands("x", "weight", "bias")
    builder = Builder()
    given = {name: builder.param(type_) for name, type_ in call.types.items()}
    wide = call.result.dtype.accumulator
    values = {name: _applied(builder, value, [Cast(wide)]) for name, value in given.items()}
    x = _applied(builder, values["x"], [Reshape(shape)])
    op = standardize_target(axes, x.type, call.number("epsilon"))
    if op is None:
        return _UNFIT
    normal = _applied(builder, builder.emit(op, x), [Reshape(call.result.shape)])
    for name, join in (("weight", Mul()), ("bias", Add())):
        if name in values:
            spread = _applied(builder, values[name], [BroadcastTo(call.result.shape)])
            normal = builder.emit(join, normal, spread)
    return builder.region(_applied(builder, normal, [Cast(call.result.dtype)]))


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        raise ValueError(f"{value} are not integers")
    return cast("tuple[int, ...]", value)


def _rows(call: _Call, *vectors: str) -> Claimed:
    x, *_ = call.operands("x", *vectors)
    if x.dtype not in normalization.FLOATS:
        return _wrong_type(x.dtype, normalization.FLOATS)
    if 0 in x.shape:
        return _EMPTY
    attrs: dict[str, DictionaryValue] = {name: name in call.types for name in vectors}
    if vectors:
        attrs["epsilon"] = call.number("epsilon")
    return call.replaced(rows_target(call.op.title, x.dtype), **attrs)


def _attention(call: _Call) -> Claimed:
    query, key, value = call.operands("query", "key", "value", "mask", "offset")[:3]
    causal, keys = call.op.attrs["causal"] is True, call.op.attrs
    if query.dtype not in FLOATS:
        return _wrong_type(query.dtype, FLOATS)
    if 0 in (*query.shape, *key.shape, *value.shape):
        return _EMPTY
    mask = call.types.get("mask")
    if mask is not None and not mask.dtype.is_bool:
        return Declined("the kernel hides keys; a mask that is added is another kernel's")
    unknown = [name for name in ("window", "softcap", "offset") if name in keys]
    if unknown or (mask is not None and causal):
        what = f"`{unknown[0]}`" if unknown else "a mask and `causal`"
        return Declined(f"the kernel does not compute the mask or the scores for {what}")
    offset = "offset" in call.types
    length = query.shape[2]
    if causal and not offset and not isinstance(length, SymbolicDim) and length == 1:
        causal = False  # the last position sees all keys
    made = call.replaced(
        attention_target(query.dtype),
        causal=causal,
        guard="blind",
        mask=mask is not None,
        offset=offset,
        scale=_scale(call, query),
    )
    return call.lowered(made, offset=[Cast(dtypes.si64)])


def _scale(call: _Call, query: TensorType) -> float:
    """Return the scale in the type that scores are computed in, as its constant would be."""
    return float(np.float32(call.number("scale", 1 / math.sqrt(query.shape[-1]))))


def _attention_gradient(call: _Call) -> Claimed:
    query, key, value, _ = operands = call.operands("query", "key", "value", "cotangent")
    if not fits_gradient(operands):
        return _UNFIT
    scale, causal = call.number("scale", 1 / math.sqrt(query.shape[3])), call.op.attrs["causal"]
    attrs = Dictionary.of(scale=scale, causal=causal)
    return CustomCall(ATTENTION_GRADIENT, (query, key, value), attrs)


def _paged_attention(call: _Call) -> Claimed:
    integers = ("page_table", "row_starts", "lengths")
    call.operands("query", "key_pool", "value_pool", *integers, "sinks")
    casts = {name: [Cast(dtypes.si32)] for name in integers}
    taken = [
        type_.with_dtype(dtypes.si32) if name in integers else type_
        for name, type_ in call.types.items()
    ]
    if not fits_attention(taken):
        return _UNFIT
    made = call.replaced(
        PAGED_ATTENTION,
        scale=_scale(call, call.types["query"]),
        window=int(call.number("window")),
        softcap=float(np.float32(call.number("softcap"))),
    )
    return call.lowered(made, **casts)


def _update_pages(call: _Call) -> Claimed:
    pool, new, slots = call.operands("pool", "new", "slots")
    if not fits_update([pool, new, slots.with_dtype(dtypes.si32)]):
        return _UNFIT
    return call.lowered(call.replaced(UPDATE_PAGES), slots=[Cast(dtypes.si32)])


def _linear(call: _Call) -> Claimed:
    x, weight, *bias = call.operands("x", "weight", "bias")
    layout = call.op.attrs["layout"]
    if weight.dtype not in FLOATS:
        return _wrong_type(weight.dtype, FLOATS)
    if weight.size < SMALLEST:
        return Declined(f"to multiply with fewer than {SMALLEST} weights costs less than a call")
    if layout == "in_out" and x.rank == _IMAGES and x.dtype is dtypes.f32:
        return Declined("a product with the channels of images is a convolution of one position")
    return call.replaced(
        linear_target(x.dtype), layout=layout, activation="none", bias=bool(bias), residual=False
    )


def _conv2d(call: _Call) -> Claimed:
    x, weight, *bias = call.operands("x", "weight", "bias")
    attrs, groups = call.op.attrs, int(call.number("groups", 1))
    order = [str(attrs["layout"]).index(axis) for axis in "hwio"]
    height, width, inputs, outputs = (weight.shape[axis] for axis in order)
    depthwise = call.op.title == "depthwise_conv2d"
    if x.dtype is not dtypes.f32:
        return _wrong_type(x.dtype, (dtypes.f32,))
    if forced_algorithm() == "gemm":
        return Declined(f"`{CONVOLUTION}=gemm` needs products of patches")
    if 0 in (*call.result.shape, *weight.shape):
        return _EMPTY
    target, rows = CONV2D, height * width * inputs
    matrix: Shape = (rows, outputs)
    if depthwise:
        target, matrix = DEPTHWISE, (height * width, x.shape[3])
        if call.result.shape[3] != x.shape[3]:
            return Declined("the kernel has one window for each channel, not several")
    elif groups > 1:
        target, matrix = GROUPED, (rows, groups, outputs // groups)
        if groups == x.shape[3]:
            return Declined("with a group for each channel it is a `depthwise_conv2d`")
        if matrix[2] % GROUP_OUTPUTS:
            return Declined(f"the kernel makes multiples of {GROUP_OUTPUTS} channels of a group")
    elif usual_size(math.prod(call.result.shape[:3])) < FEW_POSITIONS:
        return Declined(f"a product is as fast for fewer than {FEW_POSITIONS} positions")
    window = _window(call, (height, width))
    flags = {"scale": False, "shift": bool(bias), "residual": False}
    made = call.replaced(target, **window, **flags, activation="none")
    turned = [Transpose(tuple(order))] if order != [0, 1, 2, 3] else []
    return call.lowered(made, weight=[*turned, Reshape(matrix)])


def _conv1d(call: _Call) -> Claimed:
    """Return a dilated convolution of sequences as one of images of a row.

    Patches of such a window are copied number by number; without dilation the products of patches
    are as fast, and layers take in more of what follows.
    """
    x, weight, *bias = call.operands("x", "weight", "bias")
    order = [str(call.op.attrs["layout"]).index(axis) for axis in "wio"]
    width, inputs, outputs = (weight.shape[axis] for axis in order)
    if x.dtype is not dtypes.f32:
        return _wrong_type(x.dtype, (dtypes.f32,))
    if forced_algorithm() == "gemm":
        return Declined(f"`{CONVOLUTION}=gemm` needs products of patches")
    at = _window(call, (width,))
    if at["dilation"] == (1,) or width == 1 or call.number("groups", 1) != 1:
        return Declined("the kernels take images; patches of sequences are rows of a product")
    if 0 in (*call.result.shape, *weight.shape):
        return _EMPTY
    (batch, length, _), (_, positions, _) = x.shape, call.result.shape
    image = call.result.with_shape((batch, 1, positions, outputs))
    made = CustomCall(
        CONV2D,
        (image,),
        Dictionary.of(
            window=(1, width), stride=(1, *at["stride"]), padding=(0, 0, *at["padding"]),
            dilation=(1, *at["dilation"]), scale=False, shift=bool(bias), residual=False,
            activation="none",
        ),
    )  # fmt: skip
    turned = [Transpose(tuple(order))] if order != [0, 1, 2] else []
    builder = Builder()
    given = [builder.param(type_) for type_ in call.types.values()]
    row = _applied(builder, given[0], [Reshape((batch, 1, length, inputs))])
    matrix = _applied(builder, given[1], [*turned, Reshape((width * inputs, outputs))])
    result = builder.emit(made, row, matrix, *given[2:])
    return builder.region(_applied(builder, result, [Reshape(call.result.shape)]))


def _window(call: _Call, kernel: Shape) -> dict[str, Shape]:
    """Return the windows of a convolution, as `extract_patches` has them."""
    attrs = call.op.attrs
    padding = attrs["padding"]
    if isinstance(padding, tuple) and len(padding) == 2 * len(kernel):
        padding = tuple(zip(padding[::2], padding[1::2], strict=True))  # attributes are flat
    stride, dilation = cast("Extents", attrs["stride"]), cast("Extents", attrs["dilation"])
    x, sides = call.types["x"], cast("Padding", padding)
    axes = windows_of(call.op.title, x, kernel, stride, sides, dilation)
    found = call.result.shape[1:-1]
    positions = tuple(axis.positions for axis in axes)
    if x.is_static and tuple(found) != positions:
        raise ValueError(f"the result has {found} positions, the windows {positions}")
    return {
        "window": kernel,
        "stride": tuple(axis.stride for axis in axes),
        "padding": tuple(side for axis in axes for side in (axis.low, axis.high)),
        # A window of one position has its neighbours nowhere; kernels ask whether it is (1, 1).
        "dilation": tuple(axis.dilation for axis in axes) if kernel != (1, 1) else (1, 1),
    }


def _grouped_linear(call: _Call) -> Claimed:
    x, weight, groups = call.operands("x", "weight", "groups")
    if not fits_grouped([x, weight, groups.with_dtype(dtypes.si64)]):
        return _UNFIT
    return call.lowered(call.replaced(GROUPED_LINEAR), groups=[Cast(dtypes.si64)])


def _rotary(call: _Call) -> Claimed:
    x, table, _ = call.operands("x", "cos", "sin")
    wide = table.with_shape((*x.shape[:3], table.shape[-1]))
    if not fits_rotary(x, wide):
        return _UNFIT
    batch, (length, half) = table.shape[:-2] or (1,), table.shape[-2:]
    between = (1, length) if call.op.attrs["heads_axis"] == 1 else (length, 1)
    # Strides of 0 say that a table was broadcast, which costs nothing.
    spread = (Reshape((*batch, *between, half)), BroadcastTo(wide.shape))
    made = call.replaced(rotary_target(x.dtype), interleaved=call.op.attrs["interleaved"])
    return call.lowered(made, cos=spread, sin=spread)


def _wrong_type(dtype: DType, known: Sequence[DType]) -> Declined:
    return Declined(f"the kernel takes {', '.join(map(str, known))}, not {dtype}")


_EMPTY = Declined("there are no elements")
_MISFIT = Declined("its operands and attributes are not those of the functional")
_UNFIT = Declined("the kernel does not take these element types or sizes")
_SOFTMAX: dict[str, _Claim] = {"softmax.v1": _softmax, "safe_softmax.v1": _softmax}
_CLAIMS: dict[str, _Claim] = {
    **_SOFTMAX,
    "layer_norm.v1": _layer_norm,
    "rms_norm.v1": _rms_norm,
    "group_norm.v1": _group_norm,
    "instance_norm.v1": _instance_norm,
    "attention.v1": _attention,
    "attention_gradient.v1": _attention_gradient,
    "paged_attention.v1": _paged_attention,
    "update_pages.v1": _update_pages,
    "linear.v1": _linear,
    "conv1d.v1": _conv1d,
    "conv2d.v1": _conv2d,
    "depthwise_conv2d.v1": _conv2d,
    "grouped_linear.v1": _grouped_linear,
    "rotary.v1": _rotary,
}
_OPS = Declined("it is an op or two, which have kernels and fold with their neighbours")
_DECLINED: dict[str, Declined] = {
    # A kernel of its own would write what the product before it holds in registers; without a
    # product, the whole chain of elementwise ops around it is one kernel, which a call would cut.
    "gelu.v1": Declined("layers take it in as their activation, and elementwise chains as a part"),
    "log_softmax.v1": Declined("there is no kernel for it; its sums and powers have theirs"),
    "max_pool.v1": _OPS,
    "average_pool.v1": _OPS,
    "global_average_pool.v1": _OPS,
}
"""Why it is better to inline these, whatever their operands are."""
