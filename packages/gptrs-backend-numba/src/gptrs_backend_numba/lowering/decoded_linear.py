"""`gptrs.numba.decoded_linear.v1`: a product with a quantized weight, decoded in the caches.

Operands: x [.., K], f32; codes, scales and the other parts of a weight [N, K], as those of
`gptrs.numba.quantized_linear.v1`; a bias [N] if `bias`; a residual [.., N] if `residual`. The
result [.., N] is `activation(x @ weight.T + bias) + residual`, f32. With the attribute `layout`
"in_out" the weight is [K, N], groups lie along N, and the product is `x @ weight`. If `rounded`, x
and the weight are rounded to bf16. Products are added in f32. Unlike there, x has no codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.size_guards import greatest
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.cost_model import is_one
from gptrs_backend_numba.kernels.matmul import decoding, gemm
from gptrs_backend_numba.kernels.matmul.gemm import PACK
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.lowering import amx_matmul, matmul
from gptrs_backend_numba.lowering import quantized_linear as quantized
from gptrs_backend_numba.lowering.linear import multiply_rounded
from gptrs_backend_numba.lowering.product_calls import (
    PARALLEL_FROM,
    Epilogue,
    Packer,
    geometry,
)
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import Matrix, Product, View

TARGET = "gptrs.numba.decoded_linear.v1"
_OWN = ("layout", "rounded")
_LAYOUTS = ("out_in", "in_out")


def fits(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    """Return whether there is a kernel for a call with operands of these types."""
    attrs = dict(op.attrs.items)
    own = [attrs.pop(name, None) for name in _OWN]
    if own[0] not in _LAYOUTS or not isinstance(own[1], bool) or len(operands) < 3:
        return False
    flags = attrs.get("bias"), attrs.get("residual")
    x, codes = operands[:2]
    bits = attrs.get("bits")
    if flags not in _FLAGS or codes.rank != 2 or x.rank < 1 or type(bits) is not int or bits < 1:
        return False
    rows, columns = codes.shape[0], codes.shape[1] * 8 // bits
    inputs, outputs = (columns, rows) if own[0] == "out_in" else (rows, columns)
    result = TensorType(dtypes.f32, (*x.shape[:-1], outputs))
    rest = [TensorType(dtypes.f32, (outputs,))] * bool(flags[0]) + [result] * bool(flags[1])
    count = len(operands) - len(rest)
    # The weight is one that the kernels of codes take, by their rules; their x is another.
    layer = CustomCall(
        quantized.TARGET,
        (TensorType(dtypes.f32, (1, rows)),),
        Dictionary.of(attrs | {"bias": False, "residual": False}),
    )
    parts = [TensorType(dtypes.f32, (1, columns)), *operands[1:count]]
    return (
        x.dtype is dtypes.f32
        and x.shape[-1] == inputs
        and list(operands[count:]) == rest
        and op.results == (result,)
        and quantized.fits(layer, parts)
    )


_FLAGS = [(bias, residual) for bias in (False, True) for residual in (False, True)]


@custom_call(TARGET, when=fits)
def decoded_linear(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add one product, after the left side is packed."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    views = [builder.contiguous(builder.view(value)) for value in unit.last.operands]
    out = builder.define(unit.last.result)
    if out.size == 0:
        return
    of = quantized.Operands.of(op)
    x, codes = views[:2]
    *leading, k = x.shape
    rows = math.prod(leading)
    is_one(rows)  # kernels for one row differ
    flat = x.reshaped((rows, k))
    assert flat is not None, "a contiguous tensor takes any shape"
    # The right side has no strides: the function that packs it knows where its elements are.
    right = Matrix(codes, out.shape[-1], 0, 0, ())
    product = Product(Matrix(flat, rows, k, 1, ()), right, k, ())
    epilogue = Epilogue(
        of.get("bias", views), str(op.attrs["activation"]), of.get("residual", views)
    )
    packer = _packer(op, of, views)
    if op.attrs["rounded"]:
        multiply_rounded(builder, unit.last.operands, product, out, epilogue, packer)
    elif amx_matmul.suits(product):
        panels = _whole_panels(builder, product, packer)
        amx_matmul.multiply(builder, product, panels, out, epilogue)
    else:
        matmul.multiply_packed_by(builder, product, out, epilogue, packer)


def _packer(op: CustomCall, of: quantized.Operands, views: Sequence[View]) -> Packer:
    """Return what decodes blocks of the panels of the weight of a call."""
    attrs, codes = op.attrs, views[1]
    bits, size, above, zero = (
        quantized.number(op, name) for name in ("bits", "group_size", "super_group", "zero")
    )
    table = attrs["table"]
    assert isinstance(table, tuple), "checked before"
    columns = codes.shape[1] * 8 // bits
    run = quantized.block_of(size, columns)
    assert run is not None, "checked before"
    parts = [of.get(name, views) for name in _PARAMETERS]
    types = [None if view is None else view.dtype for view in parts]
    scale = types[0]
    assert scale is not None, "there is always a scale"
    form = decoding.DecodedForm(
        bits, codes.dtype is dtypes.si8, bool(table), run, scale, *types[1:]
    )
    groups, shared = columns // size, max(above, 1)
    numbers = {
        decoding.ROW_BYTES: codes.shape[1],
        decoding.GROUPS: groups,
        decoding.GROUP: size,
        decoding.SUPER_GROUPS: groups // shared,
        decoding.SUPER_GROUP: shared,
        decoding.ZERO: zero,
    }
    listed = [numbers.get(at, 0) for at in range(gemm.LENGTH, decoding.TABLE)]
    kernel = form.decoding(along_k=attrs["layout"] == "out_in", rounded=attrs["rounded"] is True)
    reads = tuple(codes if view is None else view for view in parts)
    return Packer(
        compiled_task(kernel), reads, tuple([*listed, *table]), compiled(decoding.run_decoded)
    )


_PARAMETERS = ("scale", "super_scale", "offset", "super_offset")


def _whole_panels(builder: ScheduleBuilder, product: Product, packer: Packer) -> View:
    """Return all panels, f32, decoded: tasks on AMX divide blocks of them into parts."""
    n, k = product.rhs.rows, product.k
    panels = -(-n // PANEL)
    target = builder.fresh(dtypes.f32, (panels * PANEL * greatest(k, 1),))
    fields = {gemm.N: n, gemm.K: k, gemm.LEFT: gemm.LENGTH, gemm.RIGHT: gemm.LENGTH}
    fields[PACK] = packer.function
    codes = product.rhs.view
    builder.add_job(
        packer.run,
        (
            compiled_task(gemm.panel_packing(dtypes.f32.itemsize)),
            panels,
            builder.threads_from(PARALLEL_FROM, target.size),
        ),
        (codes, codes, *packer.reads, codes, codes, codes),
        target,
        [*geometry(product, fields), *packer.numbers],
    )
    return target
