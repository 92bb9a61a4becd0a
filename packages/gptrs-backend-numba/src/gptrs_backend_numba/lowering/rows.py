"""`gptrs.numba.<kind>.<dtype>.v1` of norms, and of softmax over the last axis.

`layer_norm`, `rms_norm`, `softmax` and `safe_softmax` take x [.., N]; a weight [N] if the attribute
`weight`; a bias [N] if `bias`, for `layer_norm` alone. The attribute `epsilon` is that of the
functional; both kinds of softmax have no attributes. The result [.., N] is computed in f32 and
rounded once.

`gptrs.numba.standardize.f32.v1` is the middle of norms over other `axes`: `x` less its mean, over
the root of its variance and `epsilon`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dictionary import Dictionary
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.axis_lines import lines
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.kernel import SpecializedKernel
from gptrs_backend_numba.kernels import groups as groups_kernels
from gptrs_backend_numba.kernels import rows as kernels
from gptrs_backend_numba.kernels.five_operand_tasks import EXTRA, run_with_extra
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

_PARALLEL_FROM = 32_768
"""Elements from which it pays to share the work: waking a worker takes microseconds."""
_COLUMNS_A_TASK = 128
"""Channels that a task normalizes: a block of their rows stays in the L1 cache."""
_STANDARDIZE = "gptrs.numba.standardize.f32.v1"
_FLAGS = {
    "layer_norm": ("weight", "bias"), "rms_norm": ("weight",), "softmax": (), "safe_softmax": (),
}  # fmt: skip
KINDS = tuple(_FLAGS)
"""The functionals whose calls there are kernels for."""


def rows_target(kind: str, dtype: DType) -> str:
    """Return the target of one of `KINDS` for an operand of this type."""
    return f"gptrs.numba.{kind}.{dtype}.v1"


def _kind(op: CustomCall) -> str:
    return op.target.split(".")[2]


def _when(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    attrs, flags = op.attrs, _FLAGS[_kind(op)]
    wanted = {*flags, "epsilon"} if flags else set[str]()
    if set(attrs) != wanted or not all(isinstance(attrs[flag], bool) for flag in flags):
        return False
    if flags and not isinstance(attrs["epsilon"], float):
        return False
    if len(operands) != 1 + sum(bool(attrs[flag]) for flag in flags) or operands[0].rank == 0:
        return False
    x = operands[0]
    vector = TensorType(x.dtype, x.shape[-1:])
    return (
        op.target == rows_target(_kind(op), x.dtype)
        and op.results == (x,)
        and all(operand == vector for operand in operands[1:])
        and 0 not in x.shape
    )


def row_kernel(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one pass over blocks of rows."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, *vectors = (builder.view(operand) for operand in unit.last.operands)
    vectors = [builder.contiguous(vector) for vector in vectors]
    out = builder.define(unit.last.result)
    weight, bias = (vectors.pop(0) if _has(op, flag) else x for flag in ("weight", "bias"))
    epsilon = op.attrs["epsilon"] if _FLAGS[_kind(op)] else 0.0
    assert isinstance(epsilon, float)
    _add_rows(builder, _task_kernel(op, x), (x, weight, bias), out, epsilon)


def _add_rows(
    builder: ScheduleBuilder,
    kernel: SpecializedKernel,
    operands: tuple[View, View, View],
    out: View,
    epsilon: float,
) -> None:
    x, weight, bias = operands
    along = lines(x, len(x.shape) - 1)
    sizes = [along.count, along.block, along.length, along.step]
    geometry = [*[0] * EXTRA, *sizes, _bits(epsilon), *along.geometry()]
    threads = builder.threads_from(_PARALLEL_FROM, along.work)
    job = (compiled_task(kernel), along.tasks, threads)
    builder.add_job(compiled(run_with_extra), job, (x, x, weight, bias, x), out, geometry)


def _bits(epsilon: float) -> int:
    return int(np.float64(epsilon).view(np.int64))


def _has(op: CustomCall, flag: str) -> bool:
    return flag in op.attrs and bool(op.attrs[flag])


def _task_kernel(op: CustomCall, x: View) -> SpecializedKernel:
    kind = _kind(op)
    if not _FLAGS[kind]:
        return kernels.softmax(x.dtype, safe=kind == "safe_softmax")
    return kernels.norm(
        x.dtype,
        centered=kind == "layer_norm",
        weight=_has(op, "weight"),
        bias=_has(op, "bias"),
    )


@dataclass(frozen=True, slots=True)
class Groups:
    """A tensor as `images` of `positions` with `groups` of `each` channels.

    A norm takes together all positions of an image, and the channels of a group.
    """

    images: int
    positions: int
    groups: int
    each: int


def groups_of(shape: Sequence[int], axes: Sequence[int]) -> Groups | None:
    """Return how `axes` divide a shape; None unless they are neighbours but for the last ones."""
    kinds = "".join("r" if axis in axes else "k" for axis in range(len(shape)))
    found = re.fullmatch("(k*)(r+)(k*)(r*)", kinds)
    if found is None:
        return None
    sizes = (math.prod(shape[slice(*found.span(part))]) for part in range(1, 5))
    return Groups(*sizes)


def standardize_target(axes: Sequence[int], x: TensorType, epsilon: float) -> CustomCall | None:
    """Return the call that normalizes over `axes`; None if there is no kernel for it."""
    if x.dtype is not dtypes.f32 or 0 in x.shape or groups_of(x.shape, axes) is None:
        return None
    attrs = Dictionary.of({"axes": tuple(axes)}, epsilon=epsilon)
    return CustomCall(_STANDARDIZE, (x,), attrs)


def _standardizes(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    if len(operands) != 1 or set(op.attrs) != {"axes", "epsilon"}:
        return False
    axes, epsilon = op.attrs["axes"], op.attrs["epsilon"]
    return (
        isinstance(axes, tuple)
        and isinstance(epsilon, float)
        and op == standardize_target(axes, operands[0], epsilon)
    )


@custom_call(_STANDARDIZE, when=_standardizes)
def standardize(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add a pass over groups of channels, or over rows where a sample is one group."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x = builder.contiguous(builder.view(unit.last.operands[0]))
    out = builder.define(unit.last.result)
    axes, epsilon = op.attrs["axes"], op.attrs["epsilon"]
    assert isinstance(axes, tuple)
    assert isinstance(epsilon, float)
    found = groups_of(x.shape, axes)
    assert found is not None
    if found.groups == 1:
        rows = x.reshaped((found.images, found.positions * found.each))
        assert rows is not None, "contiguous"
        kernel = kernels.norm(x.dtype, centered=True, weight=False, bias=False)
        _add_rows(builder, kernel, (rows, rows, rows), out, epsilon)
        return
    channels = found.groups * found.each
    most = max(1, _COLUMNS_A_TASK // found.each) * found.each
    tasks = -(-channels // most)
    geometry = [found.positions, channels, found.each, most, tasks, _bits(epsilon)]
    threads = builder.threads_from(_PARALLEL_FROM, x.size)
    task = compiled_task(groups_kernels.standardize())
    builder.call_tasks(task, found.images * tasks, (x, x), out, geometry, threads)


for _kind_name in KINDS:
    for _dtype in kernels.FLOATS:
        custom_call(rows_target(_kind_name, _dtype), when=_when)(row_kernel)
