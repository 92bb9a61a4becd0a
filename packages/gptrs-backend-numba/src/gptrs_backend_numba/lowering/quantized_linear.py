"""`gptrs.numba.quantized_linear.v1`: a linear layer whose weight is quantized, in one kernel.

Operands: x [.., K], f32; codes [N, K * bits / 8], ui8, or si8 of 8 bits; scales [N, G]; a scale
of these [N, G / super_group] if `super_scale`; then, if `offset` is "bias", what is added to each
element, [N, G], and, if `super_offset`, its scale, or, if it is "zero_point", si32 [N, G]; a bias
[N] if `bias`; a residual [.., N] if `residual`. The result [.., N] is
`activation(x @ weight.T + bias) + residual` of f32, with x rounded to 8 bits: by blocks of 32
values of k (16, if groups are no multiple of 32), each with a scale of its largest value / 127.

An element of the weight is `(code - zero) * scale`, `code * scale + bias` or `(code - zero_point) *
scale`; with a `table` that is not empty, codes are indices into it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.byte_vectors import HAS_LOOKUP, MOVED
from gptrs_backend_numba.codegen.compiled import compiled, compiled_task
from gptrs_backend_numba.codegen.vector_ir import FEATURES
from gptrs_backend_numba.cost_model import is_one
from gptrs_backend_numba.kernels.amx.quantized import (
    AMX_QUANTIZED_ROWS,
    amx_left_rounding,
    amx_quantized_product,
    left_bytes,
)
from gptrs_backend_numba.kernels.matmul import quantized as kernels
from gptrs_backend_numba.kernels.matmul.bf16_ir import chunks_together
from gptrs_backend_numba.kernels.matmul.epilogue import ACTIVATIONS
from gptrs_backend_numba.kernels.matmul.gemm import TILES, TILES_A_TASK, numbers
from gptrs_backend_numba.kernels.matmul.gemm_ir import PANEL
from gptrs_backend_numba.kernels.matmul.quantized_form import ANY_BYTE, Form
from gptrs_backend_numba.kernels.matmul.quantized_ir import (
    QUANTIZED_ROWS,
    USES_PAIRS,
)
from gptrs_backend_numba.lowering.amx_matmul import is_wanted
from gptrs_backend_numba.lowering.matmul import packed_view
from gptrs_backend_numba.lowering.product_calls import (
    PARALLEL_FROM,
    Epilogue,
    call_fields,
    column_blocks,
    division,
)
from gptrs_backend_numba.lowering.table import custom_call
from gptrs_backend_numba.packing import CodePanels, Packing, Panels, ValuePanels
from gptrs_backend_numba.passes.elementwise_groups import Unit
from gptrs_backend_numba.schedule import ScheduleBuilder
from gptrs_backend_numba.views import Matrix, MemorySpace, Product, View

# Which products with quantized weights are computed on AMX.


_LEAST_ROWS = 32
"""Below these the vector registers are as fast: codes of a panel are made bytes for too few."""


def suits(product: Product) -> bool:
    """Return whether AMX is there, not switched off, and quicker; results are the same bits."""
    # Sizes are asked last: each question about a symbolic one makes a class of its own.
    return "amx-int8" in FEATURES and is_wanted() and product.lhs.rows >= _LEAST_ROWS


TARGET = "gptrs.numba.quantized_linear.v1"
_ATTRIBUTES = {
    "bits", "zero", "table", "group_size", "super_group", "super_scale", "offset", "super_offset",
    "activation", "bias", "residual",
}  # fmt: skip
_LEFT_BYTES = 7 << 17
"""Most bytes of the left side in a task: they stay in the L2 cache."""
_SCALES = (dtypes.f32, dtypes.f16, dtypes.bf16)
_SMALL = (dtypes.si8, dtypes.ui8)
_LARGEST_ZERO = 1 << 15
_HALF_BYTE = 4

T = TypeVar("T")


def block_of(group_size: int, k: int) -> int | None:
    """Return the values of k in a block; None of groups that kernels do not take."""
    block = next((size for size in (32, 16) if group_size % size == 0), None)
    if block is None or k % group_size or k % block:
        return None
    return block if group_size == k or _is_power(group_size // block) else None


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


class Operands(Struct, frozen=True):
    """The operands of a call by what they are: values, types or views."""

    found: dict[str, int]

    @classmethod
    def of(cls, op: CustomCall) -> Operands:
        """Return where the operands of a call of this target are."""
        attrs = op.attrs
        present = {
            "x": True,
            "codes": True,
            "scale": True,
            "super_scale": attrs["super_scale"],
            "offset": attrs["offset"] != "",
            "super_offset": attrs["super_offset"],
            "bias": attrs["bias"],
            "residual": attrs["residual"],
        }
        names = [name for name, is_there in present.items() if is_there]
        return cls({name: index for index, name in enumerate(names)})

    def get(self, name: str, operands: Sequence[T]) -> T | None:
        """Return an operand; None if it is absent."""
        index = self.found.get(name)
        return None if index is None else operands[index]


def fits(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    """Return whether there is a kernel for a call with operands of these types."""
    return _has_attributes(op) and _has_types(op, operands) and _has_parameters(op, operands)


def _has_attributes(op: CustomCall) -> bool:
    attrs = op.attrs
    flags = ("super_scale", "super_offset", "bias", "residual")
    sizes = ("bits", "zero", "group_size", "super_group")
    return (
        set(attrs) == _ATTRIBUTES
        and all(isinstance(attrs[name], bool) for name in flags)
        and all(type(attrs[name]) is int for name in sizes)
        and isinstance(attrs["table"], tuple)
        and attrs["offset"] in ("", "bias", "zero_point")
        and attrs["activation"] in ACTIVATIONS
        and (attrs["offset"] != "" or attrs["super_offset"] is False)
    )


def number(op: CustomCall, name: str) -> int:
    """Return an attribute that is an integer."""
    value = op.attrs[name]
    assert type(value) is int, "checked before"
    return value


def _has_types(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    """Return whether x, codes, bias, residual and result fit together."""
    of = Operands.of(op)
    if len(operands) != len(of.found):
        return False
    x, codes = operands[:2]
    bits = number(op, "bits")
    signed = codes.dtype is dtypes.si8 and bits == 8
    if x.rank < 1 or x.dtype is not dtypes.f32 or codes.rank != 2 or not codes.is_static:
        return False
    n, k = codes.shape[0], x.shape[-1]
    result = TensorType(dtypes.f32, (*x.shape[:-1], n))
    return (
        (signed or codes.dtype is dtypes.ui8)
        and 1 <= bits <= 8
        and codes.shape[1] * 8 == k * bits
        and abs(number(op, "zero")) <= _LARGEST_ZERO
        and of.get("bias", operands) in (None, TensorType(dtypes.f32, (n,)))
        and of.get("residual", operands) in (None, result)
        and op.results == (result,)
    )


def _has_parameters(op: CustomCall, operands: Sequence[TensorType]) -> bool:
    """Return whether scales and offsets are of types and shapes that kernels take."""
    of = Operands.of(op)
    n, k = operands[1].shape[0], operands[0].shape[-1]
    size, above = number(op, "group_size"), number(op, "super_group")
    block = block_of(size, k) if size > 0 else None
    table = op.attrs["table"]
    assert isinstance(table, tuple), "checked before"
    if block is None or (table and len(table) != 1 << number(op, "bits")):
        return False
    if not all(-128 <= each < 128 for each in table):
        return False
    shape, higher = (n, k // size), (n, k // size // above if above > 0 else 0)
    if op.attrs["super_scale"] and not (_is_power(above) and k // size % above == 0):
        return False
    kinds = {"scale": "super_scale", "offset": "super_offset"}
    for name, upper in kinds.items():
        of_groups, of_super = of.get(name, operands), of.get(upper, operands)
        zeros = name == "offset" and op.attrs["offset"] == "zero_point"
        wanted = _SCALES if of_super is None else _SMALL
        if of_groups is not None and (
            of_groups.shape != shape or of_groups.dtype not in ((dtypes.si32,) if zeros else wanted)
        ):
            return False
        if of_super is not None and (of_super.shape != higher or of_super.dtype not in _SCALES):
            return False
    return True


@custom_call(TARGET, when=fits)
def quantized_linear(builder: ScheduleBuilder, unit: Unit) -> None:
    """Add the rounding of x and the product."""
    op = unit.last.op
    assert isinstance(op, CustomCall)
    views = [builder.contiguous(builder.view(value)) for value in unit.last.operands]
    out = builder.define(unit.last.result)
    of = Operands.of(op)
    x, codes = views[:2]
    k, n = x.shape[-1], codes.shape[0]
    rows = math.prod(x.shape[:-1])
    if out.size == 0:
        return
    is_one(rows)
    flat = x.reshaped((rows, k))
    assert flat is not None, "a contiguous tensor takes any shape"
    lhs = Matrix(flat, rows, k, 1, ())
    product = Product(lhs, Matrix(codes, n, k, 1, ()), k, ())
    epilogue = Epilogue(
        of.get("bias", views), str(op.attrs["activation"]), of.get("residual", views)
    )
    _multiply(builder, unit, product, views, out, epilogue)


def _multiply(
    builder: ScheduleBuilder,
    unit: Unit,
    product: Product,
    views: Sequence[View],
    out: View,
    epilogue: Epilogue,
) -> None:
    op = unit.last.op
    assert isinstance(op, CustomCall)
    weight = PanelWeight.of(op, views, product.k)
    form, rows = weight.form, product.lhs.rows
    on_amx = weight.fits_bytes and suits(product)
    tall = AMX_QUANTIZED_ROWS if on_amx else QUANTIZED_ROWS
    tiles = -(-rows // tall)
    row_bytes = product.k // form.block * form.record
    size = left_bytes(form, rows, product.k) if on_amx else rows * row_bytes
    most = max(1, _LEFT_BYTES // (tall * row_bytes))
    fields = call_fields(product, out, epilogue)
    fields |= division(product, tiles, most, builder.context.threads)
    codes, *values = [part and panels_of(builder, *part) for part in weight.parts]
    assert codes is not None, "there are always codes"
    panels = [codes, *(codes if view is None else view for view in values)]
    geometry = [*numbers(fields), *weight.numbers]

    def rounded() -> View:
        left = builder.fresh(dtypes.ui8, (size,))
        builder.call_tasks(
            compiled_task((amx_left_rounding if on_amx else kernels.left_rounding)(form)),
            fields[TILES],
            (product.lhs.view, product.lhs.view),
            left,
            geometry,
            builder.threads_from(PARALLEL_FROM, left.size),
        )
        return left

    # Queries, keys and values are products of one x, gates and what they weigh, too.
    key = TARGET, form.block, form.wide, weight.zero, on_amx
    left = builder.form_of(unit.last.operands[0], key, rounded)
    count = -(-tiles // fields[TILES_A_TASK]) * column_blocks(product.rhs.rows, fields)
    job = (
        compiled_task((amx_quantized_product if on_amx else kernels.quantized_product)(form)),
        count,
        builder.threads_from(PARALLEL_FROM, product.work),
    )
    extra = [left if view is None else view for view in (epilogue.bias, epilogue.residual)]
    reads = (left, *panels, *extra)
    builder.add_job(compiled(kernels.run_quantized), job, reads, out, geometry)


class PanelWeight(Struct, frozen=True):
    """How kernels read a weight: codes, scales, their scales, offsets, their scales."""

    form: Form
    parts: list[tuple[View, Panels] | None]
    numbers: list[int]
    fits_bytes: bool
    """True if codes minus their zero are signed bytes."""

    @property
    def zero(self) -> int:
        """Return the code of 0."""
        return self.numbers[-1]

    @classmethod
    def of(cls, op: CustomCall, views: Sequence[View], k: int) -> PanelWeight:
        """Return the weight of a call with these operands, whose rows have `k` elements."""
        operands = Operands.of(op)
        codes = views[1]
        n, size = codes.shape[0], number(op, "group_size")
        block = block_of(size, k)
        assert block is not None, "checked before"
        panels, zero, table = _codes(op, codes, k)
        codes_of = table or panels.table
        # Pairs of products are added in 16 bits there: codes from 0 on leave most room.
        base = min(codes_of) if USES_PAIRS else MOVED if max(codes_of) >= MOVED else 0
        most = max(codes_of) - base if USES_PAIRS else ANY_BYTE
        wide = USES_PAIRS and chunks_together(most) == 0
        given = {
            name: operands.get(name, views)
            for name in ("scale", "super_scale", "offset", "super_offset")
        }
        types = {name: None if view is None else _name(view.dtype) for name, view in given.items()}
        assert types["scale"] is not None, "there is always a scale"
        has_zeros = op.attrs["offset"] == "zero_point"
        middle = 1 << (panels.packed_bits - 1) if has_zeros else 0
        form = Form(
            panels.packed_bits, block, types["scale"], types["super_scale"], types["offset"],
            types["super_offset"], has_zeros, middle - zero,
            tuple((value - base) % 256 for value in table), most, wide,
        )  # fmt: skip
        if not table and base:
            panels = replace(panels, table=tuple((code - base) % 256 for code in panels.table))
        parts: list[tuple[View, Panels] | None] = [(codes, panels)]
        steps: list[int] = []
        for view in given.values():
            if view is None:
                parts.append(None)
                steps.append(0)
                continue
            values = ValuePanels(n, view.shape[1], view.dtype.itemsize)
            parts.append((view, values))
            steps.append(values.nbytes // -(-n // PANEL))
        shift = _shift(size, k, block)
        above = number(op, "super_group") * size if op.attrs["super_scale"] else k
        shifts = [shift, _shift(above, k, block)]
        start = middle if has_zeros else zero
        fits_bytes = max(codes_of) - 127 <= start <= min(codes_of) + 128
        return cls(form, parts, [0] * 4 + steps + shifts + [start - base], fits_bytes)


def _codes(op: CustomCall, codes: View, k: int) -> tuple[CodePanels, int, tuple[int, ...]]:
    """Return the panels of codes, their zero, and a table that kernels look codes up in.

    Without zero points the second is the zero itself, with them what is added to each. Codes are
    indices into the table that kernels look up, if it is not empty.
    """
    bits, table = number(op, "bits"), op.attrs["table"]
    assert isinstance(table, tuple), "checked before"
    zero = number(op, "zero")
    if table:
        shifted = tuple(value + 128 for value in table)
        if bits == _HALF_BYTE and HAS_LOOKUP:
            same = tuple(range(1 << bits))
            return CodePanels(codes.shape[0], k, bits, bits, same), zero + 128, shifted
        return CodePanels(codes.shape[0], k, bits, 8, shifted), zero + 128, ()
    if codes.dtype is dtypes.si8:
        signs = tuple(at ^ 128 for at in range(256))
        return CodePanels(codes.shape[0], k, 8, 8, signs), zero + 128, ()
    packed = bits if bits == _HALF_BYTE else 8
    return CodePanels(codes.shape[0], k, bits, packed, tuple(range(1 << bits))), zero, ()


def _shift(size: int, k: int, block: int) -> int:
    """Return log2 of the blocks of a group; 63, which shifts every block to 0, for all of k."""
    return 63 if size == k else (size // block).bit_length() - 1


def _name(dtype: DType) -> str:
    return str(dtype)


def panels_of(builder: ScheduleBuilder, view: View, layout: Panels) -> View:
    """Return the panels of a part: packed once, or in every run if it is streamed or no weight."""
    storage, context = view.storage, builder.context
    is_weight = storage.space is MemorySpace.INPUT and storage.index in context.parameters
    if is_weight and storage.index not in context.streamed and view.fills_storage:
        return packed_view(builder, view, Packing(storage.index, layout))
    target = builder.fresh(dtypes.ui8, (layout.nbytes,))
    table = builder.constant(layout.codes) if isinstance(layout, CodePanels) else view
    threads = builder.threads_from(PARALLEL_FROM, target.size)
    builder.call_tasks(layout.task, layout.tasks, (view, table), target, layout.geometry, threads)
    return target
