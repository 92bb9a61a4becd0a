"""Fusions of quantized weights: linear layers that read their codes, rows of tables.

They look for what `gptrs.checkpoint.quantized_tensor.dequantized` writes: `dequantize` or
`dequantize_affine` of codes along the last axis.
"""

from __future__ import annotations

from dataclasses import replace

from gptrs.ir import dtypes
from gptrs.ir.dictionary import Dictionary, DictionaryValue
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.indexing import Take
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.ops.quantization import Dequantize, DequantizeAffine, UnpackBits
from gptrs.ir.program import Region, Value
from gptrs.optimizer.pass_base import Pass, RegionPass
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.fusion.quantized_arguments import PASS_PARTS
from gptrs_backend_numba.lowering.linear import linear_target
from gptrs_backend_numba.lowering.quantized_linear import TARGET, block_of

_SMALLEST = 1024
"""Elements of a weight below which it is computed as floats."""
_MATRIX = 2


@dataclass(frozen=True)
class Parameter:
    """A scale or offset of each group; `above` is the scale of several of them."""

    value: Value
    above: Value | None = None
    super_group: int = 0


@dataclass(frozen=True)
class QuantizedWeight:
    """The parts of a weight [O, I] in a program."""

    codes: Value
    bits: int
    table: tuple[int, ...]
    group_size: int
    scale: Parameter
    zero: int = 0
    offset: Parameter | None = None
    offset_kind: str = ""

    @property
    def values(self) -> list[Value]:
        """The parts in the order of operands."""
        found = [self.codes, self.scale.value, *_present(self.scale.above)]
        if self.offset is not None:
            found += [self.offset.value, *_present(self.offset.above)]
        return found


def find_weight(value: Value, rewriter: Rewriter) -> QuantizedWeight | None:
    """Return the quantized weight that `value` is computed of; None if it is none."""
    node = rewriter.definition(value)
    if node is None or not isinstance(node.op, Dequantize | DequantizeAffine):
        return None
    op, shape = node.op, value.type.shape
    if op.dtype is not dtypes.f32 or op.axis != 1 or len(shape) != _MATRIX:
        return None
    codes, scale, offset = node.operands
    size = shape[1] if op.group_size is None else op.group_size
    found = _parameter(scale, rewriter)
    packed, bits, table = _codes(codes, rewriter)
    if op.group_size is None or block_of(size, shape[1]) is None or scale.type.rank != _MATRIX:
        return None
    if isinstance(op, DequantizeAffine):
        bias = _parameter(offset, rewriter)
        if (
            offset.type.rank != _MATRIX
            or (found.above and bias.above and found.super_group != bias.super_group)
            or (bias.above is not None) != (found.above is not None)
        ):
            return None
        return QuantizedWeight(packed, bits, table, size, found, 0, bias, "bias")
    if offset.type.rank == _MATRIX:
        zeros = Parameter(offset)
        return QuantizedWeight(packed, bits, table, size, found, 0, zeros, "zero_point")
    zero = _integer(offset, rewriter)
    return None if zero is None else QuantizedWeight(packed, bits, table, size, found, zero)


def _codes(value: Value, rewriter: Rewriter) -> tuple[Value, int, tuple[int, ...]]:
    """Return packed codes, their bits and the table that they are places in."""
    table: tuple[int, ...] = ()
    node = rewriter.definition(value)
    if node is not None and isinstance(node.op, Take):
        found = rewriter.definition(node.operands[0])
        if found is not None and isinstance(found.op, Constant):
            literal = found.op.value.array
            if literal.ndim == 1 and literal.dtype.kind in "iu":
                table, value = tuple(map(int, literal)), node.operands[1]
                node = rewriter.definition(value)
    if node is not None and isinstance(node.op, UnpackBits) and node.op.axis == 1:
        return node.operands[0], node.op.bits, table
    return value, 8, table


def _parameter(value: Value, rewriter: Rewriter) -> Parameter:
    """Return a scale or bias, with that of several if it has two levels."""
    node = rewriter.definition(value)
    if node is None or not isinstance(node.op, Dequantize):
        return Parameter(value)
    op = node.op
    plain = op.dtype is dtypes.f32 and op.axis == 1 and op.group_size is not None
    inner, above, zero = node.operands
    if not plain or _integer(zero, rewriter) != 0 or above.type.rank != _MATRIX:
        return Parameter(value)
    assert op.group_size is not None, "just asked for"
    return Parameter(inner, above, op.group_size)


def _integer(value: Value, rewriter: Rewriter) -> int | None:
    """Return the number that a constant of rank 0 is."""
    node = rewriter.definition(value)
    if node is None or not isinstance(node.op, Constant) or value.type.rank != 0:
        return None
    return int(node.op.value.array.item())


def fuse_layers(region: Region) -> Region:
    """Return the region whose linear layers read the codes of quantized weights."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        if isinstance(node.op, CustomCall) and node.op.target == linear_target(dtypes.f32):
            _fuse_layer(node, node.op, rewriter)
    return rewriter.region()


def _fuse_layer(node: InstructionNode, layer: CustomCall, rewriter: Rewriter) -> None:
    x, value, *rest = node.operands
    layout = layer.attrs["layout"]
    turning = rewriter.definition(value)
    if layout == "in_out" and turning is not None and isinstance(turning.op, Transpose):
        (value,) = turning.operands
        layout = "out_in"
    weight = find_weight(value, rewriter)
    if weight is None or layout != "out_in" or value.type.size < _SMALLEST:
        return
    kept = {name: layer.attrs[name] for name in ("activation", "bias", "residual")}
    call = CustomCall(TARGET, layer.results, layer_attributes(weight, **kept))
    made = rewriter.insert(call, [x, *weight.values, *rest], node)
    rewriter.replace(node.results[0], made.results[0])
    rewriter.erase_dead(node)


def layer_attributes(weight: QuantizedWeight, **epilogue: DictionaryValue) -> Dictionary:
    """Return the attributes of a call that reads a weight, with those of its epilogue."""
    offset = weight.offset
    return Dictionary.of(
        epilogue,
        bits=weight.bits,
        zero=weight.zero,
        table=weight.table,
        group_size=weight.group_size,
        super_group=weight.scale.super_group,
        super_scale=weight.scale.above is not None,
        offset=weight.offset_kind,
        super_offset=offset is not None and offset.above is not None,
    )


def _present(value: Value | None) -> list[Value]:
    return [] if value is None else [value]


def take_rows(region: Region) -> Region:
    """Return the region that decodes only the rows that it takes of quantized tables."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        if isinstance(node.op, Take) and find_weight(node.operands[0], rewriter) is not None:
            table, rows = node.operands
            made = _rows(table, rows, rewriter, node)
            rewriter.replace(node.results[0], made)
            rewriter.erase_dead(node)
    return rewriter.region()


def _rows(value: Value, rows: Value, rewriter: Rewriter, before: InstructionNode) -> Value:
    """Return what `value` is computed of, for some rows of each operand."""
    node = rewriter.definition(value)
    if value.type.rank == 0 or (node is not None and isinstance(node.op, Constant)):
        return value
    if node is None or not isinstance(node.op, Dequantize | DequantizeAffine | UnpackBits | Take):
        return rewriter.insert(Take(), [value, rows], before).results[0]
    operands = [_rows(operand, rows, rewriter, before) for operand in node.operands]
    op = node.op if isinstance(node.op, Take) else replace(node.op, axis=rows.type.rank)
    return rewriter.insert(op, operands, before).results[0]


FUSE_QUANTIZED: tuple[Pass, ...] = (
    PASS_PARTS,
    RegionPass("numba-take-quantized-rows", take_rows),
    RegionPass("numba-fuse-quantized-linear", fuse_layers),
)
"""After linear layers are found."""
