"""`gptrs.numba.integer_product.v1`, with its forms for images: 8-bit integers, less zero points.

Operands: a left and a right side, each si8 or ui8; then those that the attributes of these names
say are there: `zero` si32 [], the zero point on the left; `other_zero` si32 [] or [N]; `term` si32
[N]; `scale` f32 [] or [N]; `bias` f32 [N]; `step` f32 []; `middle` f32 []. A product has the
attributes of `dot_general`; images [N, H, W, C] and their weight [KH * KW * C, O], [KH * KW *
C / groups, O] of one in `groups`, or [KH * KW, C] of a depthwise convolution, have `window`,
`stride`, `padding` and `dilation`, and what lies in the padding is the zero point.

With `s = sum_k (left - zero) * (right - other_zero) + term`, si32 that wraps, the result is s; or,
f32, `y = activation(f32(s) * scale + bias)`; or codes of 8 bits, `round_nearest_even(y / step) +
middle` between `least` and `most`, 0 for NaN. A `step` is from 2^-100 to 2^100, `middle` a whole
number of 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import numpy as np
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.size_guards import greatest
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.kernel import SpecializedKernel
from gptrs_backend_numba.codegen.vector_ir import FEATURES
from gptrs_backend_numba.cost_model import is_one, need_numbers
from gptrs_backend_numba.kernels.amx.integer import AMX_INTEGER_ROWS, STEP, amx_integer_product
from gptrs_backend_numba.kernels.matmul import integer as kernels
from gptrs_backend_numba.kernels.matmul.byte_pairs_ir import HAS_BYTE_PAIRS, panel_bytes
from gptrs_backend_numba.kernels.matmul.depthwise_quads_ir import HAS_QUADS, SIDE
from gptrs_backend_numba.kernels.matmul.epilogue import ACTIVATIONS
from gptrs_backend_numba.kernels.matmul.gemm import (
    FINISH,
    LEFT,
    LK,
    LM,
    OUT_STEP,
    RANK,
    REPEATS,
    RIGHT,
    RK,
    RN,
    TILES_A_TASK,
    K,
    M,
    N,
)
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.kernels.matmul.integer_depthwise import depthwise_tasks
from gptrs_backend_numba.kernels.matmul.integer_finish import integer_finish
from gptrs_backend_numba.kernels.matmul.integer_ir import FOUR, INTEGER_ROWS
from gptrs_backend_numba.kernels.matmul.wide_codes_ir import HAS_WIDE_CODES, WIDE, WIDE_ROWS
from gptrs_backend_numba.lowering.amx_matmul import is_wanted
from gptrs_backend_numba.lowering.contraction import product_of
from gptrs_backend_numba.lowering.convolution import windows
from gptrs_backend_numba.lowering.convolution_calls import Windows
from gptrs_backend_numba.lowering.matmul import packed_view, parameter
from gptrs_backend_numba.lowering.product_calls import (
    PARALLEL_FROM,
    column_blocks,
    division,
    repeats,
)
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.packing import BytePanels, Packing
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import Matrix, Product, View

INTEGER_PRODUCT = "gptrs.numba.integer_product.v1"
INTEGER_CONV2D = "gptrs.numba.integer_conv2d.v1"
INTEGER_GROUPED = "gptrs.numba.integer_grouped.v1"
INTEGER_DEPTHWISE = "gptrs.numba.integer_depthwise.v1"
BYTES = (dtypes.si8, dtypes.ui8)
"""The element types of both sides."""
EXTRA = ("zero", "other_zero", "term", "scale", "bias", "step", "middle")
"""The operands that may follow the sides, in their order."""
_EPILOGUE = {*EXTRA, "activation", "least", "most"}
_AXES = ("contract_lhs", "contract_rhs", "batch_lhs", "batch_rhs")
_WINDOW = ("window", "stride", "padding", "dilation")
_ROW_BYTES, _PATCH_BYTES = 1 << 17, 1 << 15
"""Most bytes of the rows of a task, in the L2 cache, and of its patches, in the L1 cache."""
_WIDE_BYTES = 1 << 18
"""Most bytes of the rows of wide codes of a task, in the L2 cache beside a panel."""
_LEAST_RUN = 48
"""Bytes of a row of a window from which it is read in place."""
_WORK_A_TASK, _TASKS_A_THREAD = 1 << 17, 4
"""Products of a depthwise convolution from which a task is worth it, and most tasks of a thread."""
_LEAST_ROWS = 32
"""Rows from which a product is for AMX: a tile of fewer is mostly empty."""
_LEAST_WIDE_ROWS = 16
"""Rows from which it pays to widen panels for all of them."""
_MOVED = 128

T = TypeVar("T")


def extra_operands(op: CustomCall, operands: Sequence[T]) -> dict[str, T]:
    """Return the operands behind the two sides by name."""
    return dict(zip((name for name in EXTRA if op.attrs[name]), operands[2:], strict=True))


def _fits_epilogue(op: CustomCall, operands: Sequence[TensorType], columns: int) -> bool:
    """Return whether attributes, and operands behind the sides, are those of the module."""
    attrs = op.attrs
    if any(type(attrs[name]) is not bool for name in EXTRA) or len(op.results) != 1:
        return False
    if len(operands) != 2 + sum(attrs[name] is True for name in EXTRA):
        return False
    if any(side.dtype not in BYTES for side in operands[:2]):
        return False
    one = TensorType(dtypes.si32, ()), TensorType(dtypes.f32, ())
    each = TensorType(dtypes.si32, (columns,)), TensorType(dtypes.f32, (columns,))
    allowed = {
        "zero": one[:1], "other_zero": (one[0], each[0]), "term": each[:1],
        "scale": (one[1], each[1]), "bias": each[1:], "step": one[1:], "middle": one[1:],
    }  # fmt: skip
    if any(type_ not in allowed[name] for name, type_ in extra_operands(op, operands).items()):
        return False
    out, floats = op.results[0].dtype, ("scale", "bias", "step", "middle")
    if attrs["activation"] not in ACTIVATIONS or out not in (dtypes.si32, dtypes.f32, *BYTES):
        return False
    if out is dtypes.si32:
        return attrs["activation"] == "none" and not any(attrs[name] for name in floats)
    if out is dtypes.f32:
        return not attrs["step"] and not attrs["middle"]
    limits = [attrs["least"], attrs["most"]]
    least, most = (-128, 127) if out is dtypes.si8 else (0, 255)
    return all(
        isinstance(each, float) and each.is_integer() and least <= each <= most for each in limits
    )


def _axes(op: CustomCall) -> DotGeneral:
    lhs, rhs, batch_lhs, batch_rhs = (cast("tuple[int, ...]", op.attrs[name]) for name in _AXES)
    return DotGeneral(lhs, rhs, batch_lhs, batch_rhs)


def _when_product(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if set(op.attrs) != {*_EPILOGUE, *_AXES} or len(operands) < 2:
        return False
    if not all(isinstance(op.attrs[name], tuple) for name in _AXES):
        return False
    axes = _axes(op)
    wide = [side.with_dtype(dtypes.si32) for side in operands[:2]]
    (result,) = axes.result_types(wide)
    free = axes.free_rhs(wide[1])
    if len(free) != 1 or not axes.contract_lhs:
        return False
    same = len(op.results) == 1 and op.results[0].shape == result.shape
    return same and _fits_epilogue(op, operands, result.shape[-1])


def _when_images(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    own = {"groups"} if op.target == INTEGER_GROUPED else set[str]()
    if set(op.attrs) != {*_EPILOGUE, *_WINDOW, *own} or len(operands) < 2:
        return False
    x, weight = operands[:2]
    if (x.rank, weight.rank) != (4, 2) or not _inside(op, x):
        return False
    columns = weight.shape[1]
    channels = x.shape[3]
    groups = op.attrs["groups"] if own else 1
    if not isinstance(groups, int) or groups < 1 or channels % groups or columns % groups:
        return False
    wanted = channels // groups * windows(op).taps, columns
    if op.target == INTEGER_DEPTHWISE:
        wanted = windows(op).taps, channels
    fits = weight.shape == wanted
    fits = fits and op.results[0].shape[3] == columns and op.results[0].shape[0] == x.shape[0]
    return fits and _fits_epilogue(op, operands, columns)


def _inside(op: CustomCall, x: TensorType) -> bool:
    """Return whether there are windows of images, and none reaches beyond the padding."""
    sizes = [op.attrs[name] for name in _WINDOW]
    lengths = [len(each) if isinstance(each, tuple) else 0 for each in sizes]
    if lengths != [2, 2, 4, 2] or len(op.results) != 1 or op.results[0].rank != 4:
        return False
    at, result = windows(op), op.results[0]
    return all(
        (result.shape[1 + i] - 1) * at.stride[i] + (at.window[i] - 1) * at.dilation[i]
        < x.shape[1 + i] + at.padding[2 * i] + at.padding[2 * i + 1]
        for i in (0, 1)
    )


@custom_call(INTEGER_PRODUCT, when=_when_product)
def integer_product(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the packing of a right side that is no parameter, and the product."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    product = product_of(builder, _axes(op), unit)
    is_one(product.lhs.rows)
    _multiply(builder, unit, product, out)


@custom_call(INTEGER_CONV2D, when=_when_images)
def integer_conv2d(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the product of patches, which tasks make for themselves."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, weight = (builder.view(value) for value in unit.last.operands[:2])
    need_numbers(size for view in (x, weight) for size in view.shape)
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    at = windows(op)
    depth, columns = weight.shape
    rows = math.prod(out.shape[:3])
    rhs = Matrix(weight, columns, weight.strides[1], weight.strides[0], ())
    if (at.window, at.stride) == ((1, 1), (1, 1)) and not any(at.padding):
        lhs = Matrix(builder.contiguous(x), rows, depth, 1, ())
        _multiply(builder, unit, Product(lhs, rhs, depth, ()), out)
        return
    fields = _image_fields(x, out, at)
    padded = _padded(builder, unit, x, fields)
    product = Product(Matrix(padded, rows, 0, 1, ()), rhs, depth, ())
    _multiply(builder, unit, product, out, fields)


@custom_call(INTEGER_GROUPED, when=_when_images)
def integer_grouped(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the padding of the images, and the product of the patches of each group."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, weight, *rest = (builder.view(value) for value in unit.last.operands)
    need_numbers(size for view in (x, weight) for size in view.shape)
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    groups = cast("int", op.attrs["groups"])
    fields = _image_fields(x, out, windows(op))
    padded = _padded(builder, unit, x, fields)
    depth, columns = weight.shape[0], weight.shape[1] // groups
    channels, rows = x.shape[3] // groups, math.prod(out.shape[:3])
    fields |= {kernels.CHANNELS: channels, OUT_STEP: out.shape[3]}
    images = fields.get(kernels.BYTE_IMAGES, 0)
    down, across = weight.strides
    for group in range(groups):
        part = _moved(weight, group * columns * across)
        rhs = Matrix(part, columns, across, down, ())
        lhs = Matrix(_moved(padded, group * channels), rows, 0, 1, ())
        own = [_moved(view, group * columns) if view.shape else view for view in rest]
        result = _moved(out, group * columns)
        # Of wide codes the channels before a group are twice as many bytes.
        behind = {kernels.BYTE_IMAGES: max(0, images - group * channels)}
        product = Product(lhs, rhs, depth, ())
        _multiply(builder, unit, product, result, fields | behind, own)


def _moved(view: View, elements: int) -> View:
    """Return a view that begins so many elements later, for kernels that know how long it is."""
    return replace(view, offset=view.offset + elements)


@custom_call(INTEGER_DEPTHWISE, when=_when_images)
def integer_depthwise(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add a job with a task for some rows of positions, which pads what they see of images."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, *views = (builder.view(value) for value in unit.last.operands)
    weight, *rest = map(builder.contiguous, views)
    need_numbers(size for view in (x, weight) for size in view.shape)
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    rows = out.shape[0] * out.shape[1]
    fields = _image_fields(x, out, windows(op))
    extra = extra_operands(op, [x, weight, *rest])
    channels = x.shape[3]
    # A product of the sizes that the epilogue reads: a row of results for each row of channels.
    product = Product(Matrix(x, rows, 0, 1, ()), Matrix(weight, channels, 1, channels, ()), 1, ())
    fields |= _fields(product, op, extra, signed=x.dtype is dtypes.si8)
    work = out.shape[2] * channels * windows(op).taps
    # Each task spreads the weights for itself.
    threads = builder.context.threads
    share = -(-rows // (_TASKS_A_THREAD * threads if threads > 1 else 1))
    fields[kernels.ROWS_A_TASK] = max(-(-_WORK_A_TASK // work), share)
    job = (
        compiled_task(depthwise_tasks(fields[kernels.TAPS_ACROSS], _quads(fields))),
        -(-rows // fields[kernels.ROWS_A_TASK]),
        builder.threads_from(PARALLEL_FROM, rows * work),
    )
    reads = (x, weight, *(extra.get(name, x) for name in EXTRA))
    geometry = kernels.integer_numbers(fields)
    builder.add_job(compiled(kernels.run_integer), job, reads, out, geometry)


def _quads(fields: Mapping[int, int]) -> int:
    """Return the stride, in columns of windows, if the columns of windows are single products.

    Weights have to be signed bytes once their zero point is subtracted.
    """
    stride, apart = fields[kernels.STRIDE_ACROSS], fields[kernels.APART_ACROSS]
    square = fields[kernels.TAPS_DOWN] == fields[kernels.TAPS_ACROSS] == SIDE
    as_they_are = not fields[kernels.HAS_OTHER_ZERO] and not fields[kernels.OTHER_FLIP]
    near = stride in (apart, 2 * apart)
    return stride // apart if HAS_QUADS and square and as_they_are and near else 0


def _image_fields(x: View, out: View, at: Windows) -> dict[int, int]:
    _, height, width, channels = x.shape
    return {
        kernels.HEIGHT: height, kernels.WIDTH_BEFORE: width, kernels.CHANNELS: channels,
        kernels.PIXEL: channels,
        kernels.IMAGE_STEP: x.strides[0], kernels.ROW_STEP: x.strides[1],
        kernels.COLUMN_STEP: x.strides[2], kernels.CHANNEL_STEP: x.strides[3],
        kernels.IMAGE_HEIGHT: height + at.padding[0] + at.padding[1],
        kernels.IMAGE_WIDTH: width + at.padding[2] + at.padding[3],
        kernels.TOP: at.padding[0], kernels.SIDE: at.padding[2],
        kernels.OUT_HEIGHT: out.shape[1], kernels.OUT_WIDTH: out.shape[2],
        kernels.TAPS_DOWN: at.window[0], kernels.TAPS_ACROSS: at.window[1],
        kernels.STRIDE_DOWN: at.stride[0], kernels.STRIDE_ACROSS: at.stride[1],
        kernels.APART_DOWN: at.dilation[0], kernels.APART_ACROSS: at.dilation[1],
    }  # fmt: skip


def _padded(builder: ScheduleBuilder, unit: Unit, x: View, fields: dict[int, int]) -> View:
    """Return images of unsigned codes with their padding, followed by `CHUNK` more.

    Behind wide ones come those of bytes, for panels that are multiplied so: `BYTE_IMAGES`.
    """
    op = unit.last.op
    assert isinstance(op, CustomCall)
    wide = _is_wide(x.shape[0] * fields[kernels.OUT_HEIGHT] * fields[kernels.OUT_WIDTH])
    signed = x.dtype is dtypes.si8
    zero = builder.view(unit.last.operands[2]) if op.attrs["zero"] else None
    rows = x.shape[0] * fields[kernels.IMAGE_HEIGHT]
    size = rows * fields[kernels.IMAGE_WIDTH] * x.shape[3] + kernels.CHUNK
    codes = size
    if wide and HAS_BYTE_PAIRS:
        fields[kernels.BYTE_IMAGES] = WIDE * size
        codes += -(-size // WIDE)
    target = builder.fresh(dtypes.ui16 if wide else dtypes.ui8, (codes,))
    flip = {kernels.FLIP: _MOVED if signed else 0}
    builder.call_tasks(
        compiled_task(kernels.byte_padding(target.dtype.itemsize)),
        rows,
        (x, zero or x),
        target,
        kernels.integer_numbers(fields | flip | {kernels.HAS_ZERO: int(zero is not None)}),
        builder.threads_from(PARALLEL_FROM, size),
    )
    return target


def _multiply(
    builder: ScheduleBuilder,
    unit: Unit,
    product: Product,
    out: View,
    image: Mapping[int, int] | None = None,
    rest: Sequence[View] | None = None,
) -> None:
    """Add the calls; `image` are the fields of windows, if the left side becomes patches.

    `rest` are the operands behind the sides, if they are not those of the unit.
    """
    op = unit.last.op
    assert isinstance(op, CustomCall)
    if rest is None:
        rest = [builder.view(value) for value in unit.last.operands[2:]]
    views = [builder.contiguous(view) for view in rest]
    extra = extra_operands(op, [product.lhs.view, product.rhs.view, *views])
    if product.rhs.view.dtype is dtypes.ui8 and "other_zero" not in extra:
        # Once they are moved, unsigned bytes have a zero point other than 0.
        extra["other_zero"] = builder.constant(np.zeros((), np.int32))
    signed = unit.last.operands[0].type.dtype is dtypes.si8
    fields = _fields(product, op, extra, signed=signed) | dict(image or {})
    on_amx = _may_use_amx() and product.lhs.rows >= _LEAST_ROWS
    wide = _is_wide(product.lhs.rows)
    tall, tasks = INTEGER_ROWS, kernels.integer_product
    if on_amx:
        fields |= {kernels.IN_PLACE: 0, kernels.ROW_BYTES: fields[kernels.DEPTH]}
        tall, tasks = AMX_INTEGER_ROWS, amx_integer_product
    if wide:
        fields[kernels.IN_PLACE] = 0
        tall, tasks = WIDE_ROWS, kernels.wide_integer_product
    tiles = -(-product.lhs.rows // tall)
    row, bytes_ = greatest(product.k, 1), _PATCH_BYTES if image else _ROW_BYTES
    if image and not on_amx and "other_zero" not in extra and _lies_in_steps(image):
        across = -(-image[kernels.OUT_WIDTH] // tall)
        fields |= {kernels.IN_PLACE: 1, kernels.TILES_OF_ROW: across}
        tiles, bytes_ = product.lhs.rows // image[kernels.OUT_WIDTH] * across, _ROW_BYTES
        if wide:  # windows share what they see
            row = image[kernels.PIXEL] * image[kernels.STRIDE_DOWN] * image[kernels.STRIDE_ACROSS]
    most = _WIDE_BYTES // (tall * WIDE * row) if wide else bytes_ // (tall * row)
    fields |= division(product, tiles, most, builder.context.threads)
    fields[REPEATS] = int(repeats(builder, product))
    axes = [*product.axes(product.lhs), *product.axes(product.rhs)]
    geometry = [*kernels.integer_numbers(fields), *axes]
    right = _packed(builder, product, geometry, fields[kernels.DEPTH])
    batch = math.prod(product.batch)
    count = batch * -(-tiles // fields[TILES_A_TASK]) * column_blocks(product.rhs.rows, fields)
    job = (
        compiled_task(tasks(_run_of(image))),
        count,
        builder.threads_from(PARALLEL_FROM, product.work),
    )
    left = product.lhs.view
    reads = (left, right, *(extra.get(name, left) for name in EXTRA))
    builder.add_job(compiled(kernels.run_integer), job, reads, out, geometry)


def _is_wide(rows: int) -> bool:
    """Return whether both sides of a product of so many rows are widened."""
    return HAS_WIDE_CODES and rows >= _LEAST_WIDE_ROWS


def _may_use_amx() -> bool:
    """Return whether panels are made for AMX, too: for products of few rows they are the same."""
    return "amx-int8" in FEATURES and is_wanted()


def _lies_in_steps(image: Mapping[int, int]) -> bool:
    """Return whether each row of a window lies side by side in images, in whole steps of a panel.

    Short rows are copied: where each has 6 steps, the ends of their loops take more time.
    """
    run = image[kernels.TAPS_ACROSS] * image[kernels.CHANNELS]
    alone = image[kernels.CHANNELS] == image[kernels.PIXEL]
    whole = run % FOUR == 0 and run >= _LEAST_RUN
    return alone and whole and image[kernels.APART_ACROSS] == 1


def _run_of(image: Mapping[int, int] | None) -> int:
    """Return the bytes of a window that lie side by side in images, 0 for a product."""
    if not image:
        return 0
    whole = image[kernels.APART_ACROSS] == 1 and image[kernels.CHANNELS] == image[kernels.PIXEL]
    taps = image[kernels.TAPS_ACROSS] if whole else 1
    return taps * image[kernels.CHANNELS]


def _fields(
    product: Product, op: CustomCall, extra: Mapping[str, View], *, signed: bool
) -> dict[int, int]:
    """Return the fields that describe the operands and what becomes of the sums.

    `signed` says what the left side was before its bytes were moved, if they were.
    """
    lhs, rhs = product.lhs, product.rhs
    other, scale = extra.get("other_zero"), extra.get("scale")
    whole = not isinstance(product.k, SymbolicDim) and product.k % FOUR == 0
    unit = STEP if _may_use_amx() else FOUR
    return {
        M: lhs.rows, N: rhs.rows, K: product.k,
        LM: lhs.row, LK: lhs.column, RN: rhs.row, RK: rhs.column,
        LEFT: kernels.INTEGER_LENGTH, RANK: len(product.batch),
        RIGHT: kernels.INTEGER_LENGTH + 2 * len(product.batch),
        FINISH: compiled_task(_finish(op, scale)), OUT_STEP: rhs.rows,
        kernels.HAS_ZERO: int("zero" in extra), kernels.HAS_TERM: int("term" in extra),
        kernels.HAS_OTHER_ZERO: int(other is not None),
        kernels.HAS_MIDDLE: int("middle" in extra),
        kernels.LEAST: int(cast("float", op.attrs["least"])),
        kernels.MOST: int(cast("float", op.attrs["most"])),
        kernels.OTHER_ZERO_STEP: int(other is not None and len(other.shape) == 1),
        kernels.FLIP: _MOVED if signed else 0,
        kernels.OTHER_FLIP: 0 if rhs.view.dtype is dtypes.si8 else _MOVED,
        kernels.ROW_BYTES: -(-product.k // FOUR) * FOUR,
        kernels.DEPTH: -(-product.k // unit) * unit,
        kernels.IN_PLACE: int(whole and not signed and lhs.column == 1 and lhs.row > 0),
    }  # fmt: skip


def _finish(op: CustomCall, scale: View | None) -> SpecializedKernel:
    attrs = op.attrs
    scales = 0 if scale is None else 1 + len(scale.shape)
    biased, divides = bool(attrs["bias"]), bool(attrs["step"])
    return integer_finish(op.results[0].dtype, scales, biased, str(attrs["activation"]), divides)


def _packed(
    builder: ScheduleBuilder, product: Product, geometry: Sequence[int], depth: int
) -> View:
    """Return the right side in panels: a parameter packed once, others in every run."""
    rhs, k = product.rhs, product.k
    input_ = parameter(builder, rhs.view)
    signed = rhs.view.dtype is dtypes.si8
    if input_ is not None and input_ not in builder.context.streamed and not product.batch:
        layout = BytePanels(rhs.rows, k, rhs.row, rhs.column, rhs.view.offset, signed, depth)
        return packed_view(builder, rhs.view, Packing(input_, layout))
    panels = math.prod(product.batch) * -(-rhs.rows // PANEL)
    target = builder.fresh(dtypes.ui8, (panels * panel_bytes(depth),))
    builder.call_tasks(
        compiled_task(kernels.byte_packing()),
        panels,
        (rhs.view, rhs.view),
        target,
        geometry,
        builder.threads_from(PARALLEL_FROM, target.size),
    )
    return target
