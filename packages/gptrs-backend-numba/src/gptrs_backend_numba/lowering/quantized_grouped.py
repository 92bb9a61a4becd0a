"""`gptrs.numba.quantized_grouped.v1`: each row times a quantized matrix of its own choice.

Operands: those of `gptrs.numba.quantized_linear.v1` with x [R, K] and parts of G matrices, such as
codes [G, N, K * bits / 8], without a bias or residual; then groups si64 [R]. N is a multiple of the
columns of a panel. The result is f32 [R, N], of the same bits as the linear layer gives for each
row. The attributes are those of the layer. R may be symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.kernels.matmul import quantized_grouped as kernels
from gptrs_backend_numba.kernels.matmul.gemm_geometry import PANELS_A_TASK, K, M, N, numbers
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import quantized_linear as one
from gptrs_backend_numba.lowering.custom_calls import custom_call
from gptrs_backend_numba.lowering.grouped_linear import wrong_group
from gptrs_backend_numba.lowering.product_calls import PARALLEL_FROM, enough_panels
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import View

QUANTIZED_GROUPED = "gptrs.numba.quantized_grouped.v1"
_RANKS = 3
"""The rank of the parts of all matrices."""
_TASKS_A_THREAD = 4
_LEFT_BYTES = 7 << 16
"""Most bytes of the rows that pass by a panel together: they stay in the L2 cache."""


def fits(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    """Return whether there is a kernel for a call with operands of these types."""
    *layer, groups = operands
    if len(layer) < _RANKS or groups.dtype is not dtypes.si64 or layer[0].rank != len("RK"):
        return False
    x, codes = layer[:2]
    if any(part.rank != _RANKS or not part.is_static for part in layer[1:]):
        return False
    matrices, outputs, _ = codes.shape
    if any(part.shape[:2] != (matrices, outputs) for part in layer[1:]):
        return False
    if outputs % PANEL or groups.shape != x.shape[:1]:
        return False
    flat = [x, *(part.with_shape(_flat_shape(part.shape)) for part in layer[1:])]
    whole = CustomCall(
        op.target, (TensorType(dtypes.f32, (x.shape[0], matrices * outputs)),), op.attrs
    )
    return (
        one.fits(whole, flat)
        and op.attrs["activation"] == "none"
        and not (op.attrs["bias"] or op.attrs["residual"])
        and op.results == (TensorType(dtypes.f32, (x.shape[0], outputs)),)
    )


def _flat_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a part of all matrices, one below another."""
    return (shape[0] * shape[1], *shape[2:])


@custom_call(QUANTIZED_GROUPED, when=fits)
def quantized_grouped(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the order of rows, their rounding, and the product."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    x, *parts, groups = (builder.contiguous(builder.view(each)) for each in unit.last.operands)
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    matrices, outputs, _ = parts[0].shape
    rows, k = x.shape
    weight = one.PanelWeight.of(op, [x, *map(_flat, parts)], k)
    form, threads = weight.form, builder.context.threads
    panels, row_bytes = outputs // PANEL, k // form.block * form.record
    together = max(1, _LEFT_BYTES // row_bytes)
    a_task = max(enough_panels(1, PANEL, k), -(-panels // (_TASKS_A_THREAD * threads)))
    fields = numbers({M: rows, N: outputs, K: k, PANELS_A_TASK: a_task})
    geometry = [*fields, *weight.numbers, 0, matrices, together]
    order = builder.fresh(dtypes.si64, (kernels.order_length(rows, matrices),))
    builder.call(
        compiled(kernels.row_ordering()), (groups,), order, geometry, wrong_group(groups, matrices)
    )
    left = builder.fresh(dtypes.ui8, (rows * row_bytes,))
    builder.call_tasks(
        compiled_task(kernels.row_rounding(form)),
        -(-rows // kernels.ROUNDED_A_TASK),
        (x, order),
        left,
        geometry,
        builder.threads_from(PARALLEL_FROM, left.size),
    )
    codes, *values = [part and one.panels_of(builder, *part) for part in weight.parts]
    assert codes is not None, "there are always codes"
    reads = (left, codes, *(codes if view is None else view for view in values), order)
    job = (
        compiled_task(kernels.grouped_product(form)),
        -(-panels // a_task),
        builder.threads_from(PARALLEL_FROM, x.size * outputs),
    )
    builder.add_job(compiled(kernels.run_quantized_grouped), job, reads, out, geometry)


def _flat(view: View) -> View:
    found = view.reshaped(_flat_shape(view.shape))
    assert found is not None, "a contiguous tensor takes any shape"
    return found
