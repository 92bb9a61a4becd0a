"""`gptrs.numba.conv_chain.f32.v1`: convolutions one after another, some rows at a time.

Operands: an image [N, H, W, C], then for each of the `stages` the other operands of its call. The
attributes are those of the calls with `_0`, `_1` .. after their names, as are `target` and `shape`,
that of the result. The rows that a window needs are computed again where chunks meet.

`gptrs.numba.bf16_conv_chain.v1` has the same form: layers of images that nothing else reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.cost_model import need_numbers
from gptrs_backend_numba.lowering import amx_convolution
from gptrs_backend_numba.lowering.convolution import (
    DEPTHWISE_TASKS,
    Job,
    arranged,
    call_fits,
    depthwise,
    direct,
    layer,
    on_amx,
    packed_weight,
    rounding,
    windows,
)
from gptrs_backend_numba.lowering.convolution_calls import TASKS, Operands, Windows
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import (
    CHAIN,
    DEPTHWISE,
    ROUNDED_CHAIN,
    KernelCall,
    ScheduleBuilder,
)
from gptrs_backend_numba.views import View

# 512, 1024 and 1536 KiB are the same within the noise (MobileNetV2, Sapphire Rapids).
_BYTES_AT_ONCE = 768 * 1024
"""Bytes of the images between the stages: they stay in the L2 cache until they are read."""


class _Stage(Struct, frozen=True):
    given: Operands
    at: Windows
    depthwise: bool
    right: View | None
    """The packed weight, None for a depthwise stage and for one on AMX."""

    def compute(
        self, builder: ScheduleBuilder, x: View, out: View, first: int = 0, tasks: int | None = 1
    ) -> None:
        """Add the calls that compute rows of the result from `first` on, None for any `tasks`."""
        top, bottom = self._reach(first, out.shape[1])
        rows, (left, right) = self.given.x.shape[1], self.at.padding[2:]
        padding = (max(0, -top), max(0, bottom - rows), left, right)
        residual = self.given.residual
        given = replace(
            self.given,
            x=x,
            out=out,
            residual=residual and rows_of(residual, first, out.shape[1]),
        )
        at = replace(self.at, padding=padding)
        if self.depthwise:
            depthwise(builder, given, at, tasks or DEPTHWISE_TASKS)
        elif self.right is None:
            amx_convolution.convolution(builder, given, at, tasks or TASKS)
        else:
            direct(builder, given, at, self.right, tasks or TASKS)

    def needs(self, first: int, count: int) -> tuple[int, int]:
        """Return the first row of the image that some rows of the result need, and their number."""
        top, bottom = self._reach(first, count)
        top = max(0, top)
        return top, min(bottom, self.given.x.shape[1]) - top

    def _reach(self, first: int, count: int) -> tuple[int, int]:
        at = self.at
        top = first * at.stride[0] - at.padding[0]
        return top, top + (count - 1) * at.stride[0] + (at.window[0] - 1) * at.dilation[0] + 1


def rows_of(image: View, first: int, count: int) -> View:
    """Return a view of some rows of an image."""
    n, _, width, channels = image.shape
    return image.sliced((0, first, 0, 0), (n, count, width, channels), (1, 1, 1, 1))


def _call(attrs: Dictionary, number: int) -> CustomCall:
    """Return the call of a stage."""
    end = f"_{number}"
    own = {name.removesuffix(end): attrs[name] for name in attrs if name.endswith(end)}
    result = TensorType(dtypes.f32, cast("Shape", own.pop("shape")))
    return CustomCall(cast("str", own.pop("target")), (result,), Dictionary.of(own))


def _when(op: CustomCall, types: Sequence[TensorType]) -> bool:
    if "stages" not in set(op.attrs) or not types:
        return False
    x, rest = types[0], list(types[1:])
    for number in range(cast("int", op.attrs["stages"])):
        call = _call(op.attrs, number)
        own, rest = rest[: _count(call)], rest[_count(call) :]
        if not call_fits(call, [x, *own]):
            return False
        x = call.results[0]
    return not rest and op.results == (x,)


def _count(call: CustomCall) -> int:
    """Return the number of operands of a call, without the image."""
    return 1 + sum(bool(call.attrs[name]) for name in ("scale", "shift", "residual"))


@custom_call(CHAIN, when=_when)
def conv_chain(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add all stages, image by image and chunk by chunk of rows."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    views = [builder.view(value) for value in unit.last.operands]
    need_numbers(size for view in views for size in view.shape)
    out = builder.define(unit.last.result)
    x = builder.contiguous(views[0])
    stages = _stages(builder, op.attrs, views[1:], x, out)
    if x.shape[0] == 1 and _chunks(stages) == 1:
        # Cut rows of 14x14 and 7x7 cost 1.3 to 1.6 times the products before a 5x5 window.
        # All fits the cache: threads share each stage, and no row is computed twice.
        for stage in stages:
            stage.compute(builder, stage.given.x, stage.given.out, tasks=None)
        return
    # With a call for each stage, a thread reads what another one wrote: MobileNetV2 went from 5.3
    # to 4.3 ms on two threads with this and depthwise layers by rows.
    job = Job(out)
    # A task computes a chunk through all stages, so that none reads what another core has written.
    for image in range(x.shape[0]):
        _compute_image(builder, [_of_image(stage, image) for stage in stages], job)
    job.emit(builder)


def _stages(
    builder: ScheduleBuilder, attrs: Dictionary, rest: Sequence[View], x: View, out: View
) -> list[_Stage]:
    return [
        _stage(builder, given, at, target == DEPTHWISE)
        for target, given, at in _layers(builder, attrs, rest, x, out)
    ]


def _layers(
    builder: ScheduleBuilder, attrs: Dictionary, rest: Sequence[View], x: View, out: View
) -> Iterator[tuple[str, Operands, Windows]]:
    """Yield the target of each stage, its views and its windows.

    What is between stages may never be there as a whole: of this one only the shape is used.
    """
    count = cast("int", attrs["stages"])
    for number in range(count):
        call = _call(attrs, number)
        own, rest = rest[: _count(call)], rest[_count(call) :]
        shape = call.results[0].shape
        target = out if number == count - 1 else builder.fresh(dtypes.f32, shape)
        has = {name: bool(call.attrs[name]) for name in ("scale", "shift", "residual")}
        given = arranged(builder, [x, *own], has, cast("str", call.attrs["activation"]), target)
        yield call.target, rounding(builder, given, call.target), windows(call)
        x = target


@custom_call(ROUNDED_CHAIN, when=_when)
def rounded_chain(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one layer after another; on AMX, one writes the planes that the next one reads."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    views = [builder.view(value) for value in unit.last.operands]
    need_numbers(size for view in views for size in view.shape)
    out = builder.define(unit.last.result)
    if not out.size:
        return
    x = builder.contiguous(views[0])
    layers = [
        amx_convolution.Following(given, at)
        for _, given, at in _layers(builder, op.attrs, views[1:], x, out)
    ]
    planes: View | None = None
    for each, following in zip(layers, [*layers[1:], None], strict=True):
        given, at = each.given, each.at
        if not on_amx(builder, given, at):
            layer(builder, given, at)
            continue
        reads = (
            following is not None
            and following.reads_planes(given)
            and on_amx(builder, following.given, following.at)
        )
        joined = following if reads else None
        made = amx_convolution.convolution(builder, given, at, left=planes, following=joined)
        planes = made if joined else None


def _stage(builder: ScheduleBuilder, given: Operands, at: Windows, depthwise: bool) -> _Stage:
    """Return the stage with its weight packed as its kernel reads it."""
    if depthwise:
        given = replace(given, weight=builder.contiguous(given.weight))
        return _Stage(given, at, depthwise, None)
    # By the whole image: chunks and threads must not show in a result.
    if amx_convolution.suits(builder, given, at, None):
        return _Stage(given, at, depthwise, None)
    return _Stage(given, at, depthwise, packed_weight(builder, given, at))


def _of_image(stage: _Stage, image: int) -> _Stage:
    def one(view: View) -> View:
        return view.sliced((image, 0, 0, 0), (1, *view.shape[1:]), (1, 1, 1, 1))

    given = stage.given
    residual = given.residual and one(given.residual)
    given = replace(given, x=one(given.x), out=one(given.out), residual=residual)
    return replace(stage, given=given)


def _chunks(stages: Sequence[_Stage]) -> int:
    """Return into how many parts of an image: between the stages, one stays in the cache."""
    between = sum(4 * math.prod(stage.given.out.shape) for stage in stages[:-1])
    return max(1, -(-between // _BYTES_AT_ONCE))


def _compute_image(builder: ScheduleBuilder, stages: Sequence[_Stage], job: Job) -> None:
    rows = stages[-1].given.out.shape[1]
    # No result depends on the rows that are computed with it, so their number may vary. Chunks are
    # a multiple of the threads, so that all have about as much to do.
    threads = builder.context.threads
    chunks = max(1, min(rows, -(-_chunks(stages) // threads) * threads))
    for chunk in range(chunks):
        first, end = chunk * rows // chunks, (chunk + 1) * rows // chunks
        start = len(builder.steps)
        _compute_rows(builder, stages, first, end - first)
        job.add([step for step in builder.steps[start:] if isinstance(step, KernelCall)])
        del builder.steps[start:]


def _compute_rows(
    builder: ScheduleBuilder, stages: Sequence[_Stage], first: int, count: int
) -> None:
    wanted = [(first, count)]
    for stage in reversed(stages):
        wanted.insert(0, stage.needs(*wanted[0]))
    x = rows_of(stages[0].given.x, *wanted[0])
    for stage, (begin, rows) in zip(stages, wanted[1:], strict=True):
        out = stage.given.out
        if stage is stages[-1]:
            target = rows_of(out, begin, rows)
        else:
            target = builder.fresh(dtypes.f32, (1, rows, *out.shape[2:]))
        stage.compute(builder, x, target, begin)
        x = target
