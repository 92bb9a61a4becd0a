"""`gptrs.numba.conv2d.f32.v1`, with its depthwise and its grouped form: images, channels last.

Operands: x [N, H, W, C]; weight [KH * KW * C, O], or [KH * KW, C] of a depthwise convolution, or
[KH * KW * C / groups, groups, O / groups] of a grouped one; a factor and a term for each channel of
the result if `scale` and `shift`; a tensor to add if `residual`, of the result's type. `window`,
`stride`, `padding` and `dilation` are those of `extract_patches`. The result is
`activation(conv(x, weight) * scale + shift + residual)`, `activation` one of none, relu, relu6,
silu, hard_swish, gelu.

`gptrs.numba.bf16_conv2d.v1` and `bf16_grouped_conv2d.v1` are the same for the precision `bf16`:
where the processor multiplies bf16, both operands are rounded to it, or what Winograd's algorithm
makes of them is, and sums are f32. Other processors compute them in f32, as do all where the weight
is no parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import cast

from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.vector_ir import WIDTH
from gptrs_backend_numba.cost_model import need_numbers
from gptrs_backend_numba.kernels.convolution import depthwise as depthwise_kernels
from gptrs_backend_numba.kernels.convolution import job as kernels
from gptrs_backend_numba.kernels.convolution.activation import ACTIVATED
from gptrs_backend_numba.kernels.convolution.job import (
    DEPTHWISE_FIELDS,
    ROUND_FIELDS,
)
from gptrs_backend_numba.kernels.convolution.rounding import round_task
from gptrs_backend_numba.kernels.matmul.bf16_ir import HAS_DOT
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import amx_convolution
from gptrs_backend_numba.lowering.convolution_calls import (
    PADDED_A_TASK,
    PARALLEL_FROM,
    TASKS,
    Operands,
    Windows,
    geometry,
    multiply,
    packed,
    packed_pairs,
    padded,
    run,
    side_of,
    tiles,
    winograd,
)
from gptrs_backend_numba.lowering.matmul import parameter
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import (
    BF16_CONV2D,
    BF16_GROUPED,
    CONV2D,
    DEPTHWISE,
    GROUP_OUTPUTS,
    GROUPED,
    KernelCall,
    ScheduleBuilder,
)
from gptrs_backend_numba.views import Storage, View

BOUNDS = {
    **{name: (-math.inf, math.inf) for name in ("none", *ACTIVATED)},
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
}
"""The lower and upper bound that each activation clamps to, by name."""
KNOWN_COLUMNS = 5, 7
"""Columns of depthwise windows with kernels of their own."""
DEPTHWISE_TASKS, _ROWS_A_TASK = 8, 4
"""Tasks of many rows share more of what they read: so many tasks at most, of so many rows."""
_BYTES_OF_ROWS = 24 * 1024
"""Most bytes of the rows of a depthwise window: they stay in the L1 cache."""


def windows(op: CustomCall) -> Windows:
    """Return the windows of a call."""
    given = (op.attrs[name] for name in ("window", "stride", "padding", "dilation"))
    return Windows(*(cast("Shape", value) for value in given))


def _operands(builder: ScheduleBuilder, unit: Unit) -> tuple[Operands, Windows]:
    """Return the views of a call, contiguous except the weight, and its windows.

    Its result is defined.
    """
    op = unit.last.op
    assert isinstance(op, CustomCall)
    views = [builder.view(value) for value in unit.last.operands]
    need_numbers(size for view in views for size in view.shape)
    has = {name: bool(op.attrs[name]) for name in ("scale", "shift", "residual")}
    out = builder.define(unit.last.result)
    given = arranged(builder, views, has, cast("str", op.attrs["activation"]), out)
    return rounding(builder, given, op.target), windows(op)


def rounding(builder: ScheduleBuilder, given: Operands, target: str) -> Operands:
    """Return the operands of a call, marked as rounded if they are to be multiplied in bf16."""
    is_parameter = parameter(builder, given.weight) is not None
    rounded = target in (BF16_CONV2D, BF16_GROUPED) and HAS_DOT and is_parameter
    return replace(given, rounded=rounded)


def arranged(
    builder: ScheduleBuilder,
    views: Sequence[View],
    has: Mapping[str, bool],
    activation: str,
    out: View,
) -> Operands:
    """Return the views of a call as `Operands`, with constants for the operands that it lacks."""
    x, weight, *rest = views
    found = {name: builder.contiguous(rest.pop(0)) if has[name] else None for name in has}
    channels = out.shape[-1]
    return Operands(
        builder.contiguous(x),
        weight,
        found["scale"] or builder.row(1.0, count=channels),
        found["shift"] or builder.row(0.0, count=channels),
        found["residual"],
        builder.row(*BOUNDS[activation]),
        out,
        activation,
    )


def call_fits(op: CustomCall, types: Sequence[TensorType]) -> bool:
    """Return whether a call of one of the targets has the form that the module describes."""
    return (_when_depthwise if op.target == DEPTHWISE else _when_conv2d)(op, types)


def _when_conv2d(op: CustomCall, types: Sequence[TensorType]) -> bool:
    return _fits(op, types) and types[1].shape[0] == windows(op).taps * types[0].shape[3]


def _when_grouped(op: CustomCall, types: Sequence[TensorType]) -> bool:
    if len(types) < 2 or types[0].rank != 4 or types[1].rank != 3:
        return False
    depth, groups, outputs = types[1].shape
    whole = TensorType(types[1].dtype, (depth, groups * outputs))
    fits = groups > 0 and depth * groups == windows(op).taps * types[0].shape[3]
    return fits and outputs % GROUP_OUTPUTS == 0 and _fits(op, [types[0], whole, *types[2:]])


def _when_depthwise(op: CustomCall, types: Sequence[TensorType]) -> bool:
    return _fits(op, types) and types[1].shape == (windows(op).taps, types[0].shape[3])


_ATTRIBUTES = {
    "window", "stride", "padding", "dilation", "scale", "shift", "residual", "activation"
}  # fmt: skip


def _fits(op: CustomCall, types: Sequence[TensorType]) -> bool:
    """Return whether attributes and types have that form, and the windows fit the padded images."""
    attrs = op.attrs
    if set(attrs) != _ATTRIBUTES or attrs["activation"] not in BOUNDS or len(op.results) != 1:
        return False
    (result,) = op.results
    if any(type_.dtype is not dtypes.f32 for type_ in (*types, result)):
        return False
    if len(types) < 2 or types[0].rank != 4 or types[1].rank != 2 or result.rank != 4:
        return False
    channels = TensorType(dtypes.f32, (types[1].shape[1],))
    wanted = [channels] * (bool(attrs["scale"]) + bool(attrs["shift"]))
    wanted += [result] if attrs["residual"] else []
    same = result.shape[0] == types[0].shape[0] and result.shape[3] == channels.shape[0]
    return list(types[2:]) == wanted and same and _inside(op, types[0], result)


def _inside(op: CustomCall, x: TensorType, result: TensorType) -> bool:
    """Return whether no window reaches beyond the padding."""
    at = windows(op)
    if [len(sizes) for sizes in (at.window, at.stride, at.padding, at.dilation)] != [2, 2, 4, 2]:
        return False
    return all(
        (result.shape[1 + i] - 1) * at.stride[i] + (at.window[i] - 1) * at.dilation[i]
        < x.shape[1 + i] + at.padding[2 * i] + at.padding[2 * i + 1]
        for i in (0, 1)
    )


@custom_call(BF16_CONV2D, when=_when_conv2d)
@custom_call(CONV2D, when=_when_conv2d)
def conv2d(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the calls of the fastest algorithm for this layer: AMX, Winograd or direct."""
    given, at = _operands(builder, unit)
    if given.out.size:
        layer(builder, given, at)


def on_amx(builder: ScheduleBuilder, given: Operands, at: Windows) -> bool:
    """Return whether AMX is the fastest for a layer."""
    return amx_convolution.suits(builder, given, at, side_of(builder, given, at))


def layer(builder: ScheduleBuilder, given: Operands, at: Windows) -> None:
    """Add the calls of one layer."""
    side = side_of(builder, given, at)
    if amx_convolution.suits(builder, given, at, side):
        amx_convolution.convolution(builder, given, at)
    elif side is None:
        direct(builder, given, at)
    else:
        winograd(builder, given, at, side)


@custom_call(BF16_GROUPED, when=_when_grouped)
@custom_call(GROUPED, when=_when_grouped)
def grouped_conv2d(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the direct algorithm, in which the panels of a group read its channels alone."""
    given, at = _operands(builder, unit)
    if given.out.size:
        groups = given.weight.shape[1]
        weight = builder.contiguous(given.weight)
        weight = weight.reshaped((weight.shape[0], given.out.shape[3]))
        assert weight is not None, "contiguous"
        # Half of a pair of an odd number of channels would be of another group.
        whole = given.x.shape[3] // groups % 2 == 0 and parameter(builder, weight) is not None
        given = replace(given, weight=weight, rounded=given.rounded and whole)
        direct(builder, given, at, groups=groups)


def direct(
    builder: ScheduleBuilder,
    given: Operands,
    at: Windows,
    right: View | None = None,
    tasks: int = TASKS,
    groups: int = 1,
) -> None:
    """Add the direct algorithm, for any windows; `right` is the weight if it is packed already."""
    x = (_rounded if given.rounded else padded)(builder, given.x, at.padding)
    n, height, width, channels = x.shape
    outputs = given.out.shape[3]
    runs = _runs(at, width, channels, apart=groups > 1)
    run = at.taps * channels // groups // len(runs)
    line = 4 * width * channels
    rows, positions = n * given.out.shape[1], given.out.shape[2]
    whole = at.taps == 1 and at.stride == (1, 1) and not any(at.padding)
    if whole:  # all positions follow one another
        rows, positions = 1, rows * positions
    fields = {
        "N": outputs, "K": run * len(runs), "RUNS": len(runs), "RUN": run,
        "IMAGE_STEP": height * line, "ROW_STEP": at.stride[0] * line,
        "STEP": 4 * at.stride[1] * channels,
        "ROWS_AN_IMAGE": rows if whole else given.out.shape[1], "POSITIONS": positions,
    }  # fmt: skip
    fields |= tiles(rows, positions, fields, tasks=tasks, paired=given.rounded)
    if groups > 1:
        each = {"PANELS_A_GROUP": outputs // groups // PANEL, "GROUP_STEP": 4 * channels // groups}
        fields |= each
    multiply(builder, (x, right or packed_weight(builder, given, at)), given, fields, runs)


def packed_weight(builder: ScheduleBuilder, given: Operands, at: Windows) -> View:
    """Return the weight as the direct algorithm reads it."""
    if given.rounded:
        return packed_pairs(builder, given.weight, at.taps)
    return packed(builder, given.weight)


def _runs(at: Windows, width: int, channels: int, apart: bool) -> list[int]:
    """Return the byte offsets of the contiguous runs of numbers in a window, or of its taps."""
    rows = [4 * i * at.dilation[0] * width * channels for i in range(at.window[0])]
    if (at.dilation[1] == 1 and not apart) or at.window[1] == 1:
        return rows
    return [row + 4 * j * at.dilation[1] * channels for row in rows for j in range(at.window[1])]


def _rounded(builder: ScheduleBuilder, x: View, padding: Shape) -> View:
    """Return the images as pairs of bf16 with zeros around them: a word for two channels."""
    n, height, width, channels = x.shape
    top, bottom, left, right = padding
    words = -(-channels // 2)
    shape = (n, top + height + bottom, left + width + right, words)
    target = builder.fresh(dtypes.f32, shape)
    rows = n * shape[1]
    block = max(1, PADDED_A_TASK // (shape[2] * channels))
    fields = {
        "H": height, "W": width, "C": channels, "TOP": top, "LEFT": left,
        "HEIGHT": shape[1], "WIDTH": shape[2], "DEPTH": 2 * words,
        "ROWS": rows, "ROWS_A_TASK": block,
    }  # fmt: skip
    builder.call_tasks(
        compiled_task(round_task),
        -(-rows // block),
        (x, x),
        target,
        geometry(ROUND_FIELDS, fields),
        builder.threads_from(PARALLEL_FROM, x.size),
    )
    return target


@custom_call(DEPTHWISE, when=_when_depthwise)
def depthwise_conv2d(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the call that computes the result row by row."""
    given, at = _operands(builder, unit)
    if given.out.size:
        depthwise(builder, given, at)


_any_window = cache(depthwise_kernels.any_window)
_window_3x3 = cache(depthwise_kernels.window_3x3)


def depthwise(
    builder: ScheduleBuilder, given: Operands, at: Windows, tasks: int = DEPTHWISE_TASKS
) -> None:
    """Add the call for a weight of any strides, in `tasks` tasks at most."""
    (n, height, width, channels), (_, rows, positions, _) = given.x.shape, given.out.shape
    items = n * rows
    work = given.out.size * at.taps
    block = max(_ROWS_A_TASK, -(-items // tasks))
    fitting = _BYTES_OF_ROWS // (4 * at.window[0] * width)
    low, reach = at.padding[2], (at.window[1] - 1) * at.dilation[1]
    first = min(positions, -(-low // at.stride[1]))
    last = max(first, min(positions, (width - 1 - reach + low) // at.stride[1] + 1))
    fields = {
        "H": height, "W": width, "C": channels, "OH": rows, "OW": positions,
        "KH": at.window[0], "KW": at.window[1], "SH": at.stride[0], "SW": at.stride[1],
        "PT": at.padding[0], "PL": low, "DH": at.dilation[0], "DW": at.dilation[1],
        "ITEMS": items, "ITEMS_A_TASK": block,
        "CHANNELS_AT_ONCE": max(1, fitting // WIDTH) * WIDTH, "FIRST": first, "LAST": last,
    }  # fmt: skip
    if given.residual is None and _in_lines(at, given.x.shape, given.out.shape):
        task = compiled_task(_window_3x3(at.stride[0]))
    else:
        known = at.window[1] in KNOWN_COLUMNS and at.dilation[1] == 1 and at.stride[1] in (1, 2)
        columns = (at.stride[1], at.window[1]) if known else ()
        task = compiled_task(_any_window(*columns))
    weight = builder.contiguous(given.weight)
    numbers = geometry(DEPTHWISE_FIELDS, fields)
    run(builder, (task, -(-items // block), work), (given.x, weight), given, numbers)


def _in_lines(at: Windows, image: Shape, result: Shape) -> bool:
    """Return whether windows are 3x3 and reach past each end of the image by one at most."""
    if at.window != (3, 3) or at.dilation != (1, 1) or at.stride not in ((1, 1), (2, 2)):
        return False
    for axis, before in ((1, at.padding[0]), (2, at.padding[2])):
        beyond = (result[axis] - 1) * at.stride[0] - before + 3 - image[axis]
        if image[axis] < 3 or before > 1 or beyond > 1:
            return False
    return True


# Calls of convolutions as one job: each task makes some of them, one after another.


_LINE = 64


class Job:
    """The calls of all tasks, which compute `out` together.

    The calls of a task may read what outside calls have written, and what it has written itself.
    """

    def __init__(self, out: View) -> None:
        self._out = out
        self._operands: dict[Storage, View] = {}
        self._tasks: list[list[KernelCall]] = []
        self._offsets: list[dict[Storage, int]] = []
        self._bytes = 0

    def add(self, calls: Sequence[KernelCall]) -> None:
        """Add the calls of another task, in order."""
        offsets: dict[Storage, int] = {}
        used = 0
        for call in calls:
            made = call.write.storage
            if made is not self._out.storage and made not in offsets:
                offsets[made] = used
                used += -(-made.nbytes // _LINE) * _LINE
            for view in call.reads:
                if view.storage not in offsets:
                    self._operands.setdefault(view.storage, replace(view, offset=0))
        self._tasks.append(list(calls))
        self._offsets.append(offsets)
        self._bytes = max(self._bytes, used)

    def emit(self, builder: ScheduleBuilder) -> None:
        """Add the call of the job, or of all its parts if it has too many operands."""
        spare = kernels.MOST_OPERANDS - 2 - len(self._operands)
        if spare < 0:
            builder.steps += [call for calls in self._tasks for call in calls]
            return
        slots = min(builder.context.threads, len(self._tasks))
        memory = builder.fresh(dtypes.ui8, (slots * self._bytes,))
        task = compiled_task(kernels.job_task)
        builder.add_job(
            compiled(kernels.run_job),
            (task, len(self._tasks), builder.context.threads),
            (memory, *self._operands.values(), *[memory] * spare),
            self._out,
            self._geometry(slots),
        )

    def _geometry(self, slots: int) -> list[int]:
        flags = kernels.OPERANDS + kernels.MOST_OPERANDS
        starts = flags + slots
        fields = {"SLOTS": slots, "SLOT_BYTES": self._bytes, "FLAGS": flags, "STARTS": starts}
        at = starts + len(self._tasks) + 1
        begins: list[int] = []
        steps: list[int] = []
        for calls, offsets in zip(self._tasks, self._offsets, strict=True):
            begins.append(at)
            for call in calls:
                step = self._step(call, offsets)
                steps += step
                at += len(step)
        room = [0] * (kernels.MOST_OPERANDS + slots)
        return [*geometry(kernels.FIELDS, fields), *room, *begins, at, *steps]

    def _step(self, call: KernelCall, offsets: dict[Storage, int]) -> list[int]:
        _, function, count, _ = cast("tuple[int, int, int, int]", call.leading)
        is_convolution = len(call.reads) > 2
        views = [*call.reads[:2], call.write, *call.reads[2:]]
        fields = {
            "FUNCTION": function, "COUNT": count, "WORDS": len(call.geometry),
            "IS_CONVOLUTION": is_convolution,
        }  # fmt: skip
        for name, view in zip(kernels.PLACES, views, strict=False):
            number, offset = self._located(view, offsets)
            fields |= {f"{name}_OPERAND": number, f"{name}_OFFSET": offset}
        return geometry(kernels.STEP_FIELDS, fields, call.geometry)

    def _located(self, view: View, offsets: dict[Storage, int]) -> tuple[int, int]:
        """Return the number of the operand that a view lies in, and its offset in bytes."""
        offset = view.offset * view.dtype.itemsize
        if view.storage in offsets:
            return 0, offsets[view.storage] + offset
        if view.storage is self._out.storage:
            own = self._out.offset * self._out.dtype.itemsize
            return kernels.MOST_OPERANDS - 1, offset - own
        return 1 + list(self._operands).index(view.storage), offset
