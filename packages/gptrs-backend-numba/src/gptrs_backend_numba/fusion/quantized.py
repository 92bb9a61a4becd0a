"""Fusions of quantized weights: linear layers that read their codes, rows of tables.

They look for what `gptrs.checkpoint.quantized_tensor.dequantized` writes: `dequantize` or
`dequantize_affine` of codes along the last axis.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary, DictionaryValue
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.control_flow import Call, Scan
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.indexing import Take
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.ops.quantization import Dequantize, DequantizeAffine, UnpackBits
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.optimizer.pass_base import Pass, RegionPass
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs_backend_numba.lowering import decoded_linear
from gptrs_backend_numba.lowering.linear import BF16_LINEAR, linear_target
from gptrs_backend_numba.lowering.quantization import QUANTIZED_GROUPED, fits
from gptrs_backend_numba.lowering.quantized_linear import TARGET, block_of

# Functions take the parts of quantized weights instead of weights that calls decode.


_DECODING = (Dequantize, DequantizeAffine, UnpackBits, Transpose, Take, Constant)
_Definitions = Mapping[Value, Instruction]


class _Decoding(Struct, frozen=True):
    """How a value is decoded: instructions in order, of the parts."""

    steps: tuple[Instruction, ...]
    parts: tuple[Value, ...]
    form: Hashable
    """Equal for values that are decoded in the same way of parts of the same types."""


class PassParts(Struct, frozen=True):
    """`f(dequantize(codes, ..))` of every call of f becomes `f(codes, ..)`, which decodes them.

    Otherwise a function could not be fused with what its weights are made of.
    """

    name: str = "numba-pass-quantized-parts"

    def apply(self, program: Program) -> Program:
        """Return the program with such functions; itself if there are none."""
        main = program.main.body
        definitions = {value: made for made in main.instructions for value in made.results}
        if not any(
            isinstance(made.op, Dequantize | DequantizeAffine) for made in main.instructions
        ):
            return program
        calls = _calls(program)
        changed: dict[str, Function] = {}
        moved: dict[str, dict[int, list[_Decoding]]] = {}
        for function in program.functions:
            if calls.get(function.name):
                found = _arguments(calls[function.name], definitions)
                if found:
                    changed[function.name] = _taking_parts(function, found)
                    moved[function.name] = found
        if not changed:
            return program
        numbers = {name: dict.fromkeys(calls[name]) for name in changed}
        indices = {made: at for each in numbers.values() for at, made in enumerate(each)}
        instructions = [
            _passing_parts(made, moved[made.op.function], indices[made])
            if isinstance(made.op, Call) and made.op.function in moved
            else made
            for made in main.instructions
        ]
        changed["main"] = Function("main", replace(main, instructions=tuple(instructions)))
        return Program(tuple(changed.get(each.name, each) for each in program.functions))


def _calls(program: Program) -> dict[str, list[Instruction]]:
    """Return the calls of functions that only instructions of main itself call."""
    main = program.main.body
    outer = [made for made in main.instructions if isinstance(made.op, Call)]
    own = set(map(id, outer))
    elsewhere = {
        name
        for function in program.functions
        for made in function.body.walk()
        if id(made) not in own
        for name in made.op.callees()
    }
    found: dict[str, list[Instruction]] = {}
    for made in outer:
        assert isinstance(made.op, Call)
        if made.op.function not in elsewhere:
            found.setdefault(made.op.function, []).append(made)
    return found


def _arguments(
    calls: Sequence[Instruction], definitions: _Definitions
) -> dict[int, list[_Decoding]]:
    """Return the arguments that all calls decode alike, with the decoding of each call."""
    found: dict[int, list[_Decoding]] = {}
    for number in range(len(calls[0].operands)):
        each = [_decoding(call.operands[number], definitions) for call in calls]
        decodings = [decoding for decoding in each if decoding is not None]
        if len(decodings) == len(each) and len({decoding.form for decoding in decodings}) == 1:
            found[number] = decodings
    return found


def _decoding(value: Value, definitions: _Definitions) -> _Decoding | None:
    """Return how a weight is decoded, None if it is not quantized."""
    steps: dict[Instruction, None] = {}
    parts: dict[Value, None] = {}
    form = _collect(value, definitions, steps, parts)
    if not any(isinstance(made.op, Dequantize | DequantizeAffine) for made in steps):
        return None
    return _Decoding(tuple(steps), tuple(parts), form)


def _collect(
    value: Value,
    definitions: _Definitions,
    steps: dict[Instruction, None],
    parts: dict[Value, None],
) -> Hashable:
    """Add the instructions that decode a value, operands first, and its parts; return its form."""
    made = definitions.get(value)
    if made is None or not isinstance(made.op, _DECODING) or not _decodes(made, definitions):
        parts.setdefault(value)
        return list(parts).index(value), value.type
    operands = tuple(_collect(each, definitions, steps, parts) for each in made.operands)
    steps.setdefault(made)
    return made.op, operands


def _decodes(made: Instruction, definitions: _Definitions) -> bool:
    """Return whether an instruction is a part of decoding: a `take` only of a constant table."""
    if not isinstance(made.op, Take):
        return True
    table = definitions.get(made.operands[0])
    return table is not None and isinstance(table.op, Constant)


def _taking_parts(function: Function, found: Mapping[int, list[_Decoding]]) -> Function:
    """Return a function that begins with the instructions that came before its calls."""
    body = function.body
    params: list[Value] = []
    steps: list[Instruction] = []
    for number, param in enumerate(body.params):
        if number not in found:
            params.append(param)
            continue
        decoding = found[number][0]
        values = {part: Value(part.type) for part in decoding.parts}
        params += values.values()
        for made in decoding.steps:
            last = made is decoding.steps[-1]
            results = (param,) if last else tuple(Value(each.type) for each in made.results)
            operands = tuple(values[operand] for operand in made.operands)
            steps.append(Instruction(made.op, operands, results, made.regions))
            values |= dict(zip(made.results, results, strict=True))
    instructions = (*steps, *body.instructions)
    return Function(function.name, Region(tuple(params), instructions, body.results))


def _passing_parts(
    call: Instruction, found: Mapping[int, list[_Decoding]], index: int
) -> Instruction:
    """Return a call that passes the parts; it is the `index`-th of its function."""
    operands: list[Value] = []
    for number, operand in enumerate(call.operands):
        operands += found[number][index].parts if number in found else [operand]
    return replace(call, operands=tuple(operands))


PASS_PARTS = PassParts()


_SMALLEST = 1024
"""Elements of a weight below which it is computed as floats."""
_MATRIX = 2


class Parameter(Struct, frozen=True):
    """A scale or offset of each group; `above` is the scale of several of them."""

    value: Value
    above: Value | None = None
    super_group: int = 0


class QuantizedWeight(Struct, frozen=True):
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
    """Return packed codes, their bits and the table that they index."""
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


def decode_in_products(region: Region) -> Region:
    """Return the region whose linear layers decode quantized weights block by block.

    Weights of constants are decoded once, before. This is for those of a program that decodes in
    each run, as training does: neither the weight nor a packed copy of it is written to memory.
    """
    rewriter = Rewriter(region)
    for node in list(rewriter):
        op = node.op
        if isinstance(op, CustomCall) and op.target in (linear_target(dtypes.f32), BF16_LINEAR):
            _decode_in_product(node, op, rewriter)
    return rewriter.region()


def _decode_in_product(node: InstructionNode, layer: CustomCall, rewriter: Rewriter) -> None:
    x, value, *rest = node.operands
    layout = str(layer.attrs["layout"])
    turning = rewriter.definition(value)
    if turning is not None and isinstance(turning.op, Transpose):
        (value,) = turning.operands
        layout = "in_out" if layout == "out_in" else "out_in"
    weight = find_weight(value, rewriter)
    if weight is None or value.type.size < _SMALLEST:
        return
    kept = {name: layer.attrs[name] for name in ("activation", "bias", "residual")}
    attrs = layer_attributes(weight, **kept, layout=layout, rounded=layer.target == BF16_LINEAR)
    call = CustomCall(decoded_linear.TARGET, layer.results, attrs)
    operands = [x, *weight.values, *rest]
    if not decoded_linear.fits(call, [each.type for each in operands]):
        return
    made = rewriter.insert(call, operands, node)
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


DECODE_IN_PRODUCTS = RegionPass("numba-decode-in-products", decode_in_products)
"""After layers are rounded to bf16, if they are."""


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


# Fusion of the products of rows with quantized matrices of their own choice.


_SCANNED = 2
"""Rows and their groups are scanned; parts of all matrices are carried."""


def fuse_grouped(region: Region) -> Region:
    """Return the region whose loops over rows, each with a matrix to decode, are one call."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        if isinstance(node.op, Scan) and len(node.operands) == node.op.carry_count + _SCANNED:
            _fuse(node, node.op, rewriter)
    return rewriter.region()


def _fuse(node: InstructionNode, scan: Scan, rewriter: Rewriter) -> None:
    count = scan.carry_count
    (body,) = node.regions
    if scan.reverse or any(map(rewriter.used, node.results[:count])):
        return
    weight = _decoded(body, count)
    if weight is None:
        return
    taken = [_taken(value, body, count) for value in weight.values]
    parts = [node.operands[index] for index in taken if index is not None]
    x, groups = node.operands[count:]
    (result,) = node.results[count:]
    attributes = layer_attributes(weight, activation="none", bias=False, residual=False)
    call = CustomCall(QUANTIZED_GROUPED, (result.type,), attributes)
    operands = [x, *parts, groups]
    if len(parts) < len(taken) or not fits(call, [operand.type for operand in operands]):
        return
    made = rewriter.insert(call, operands, node)
    rewriter.replace(result, made.results[0])
    rewriter.erase_dead(node)


def _decoded(body: Region, count: int) -> QuantizedWeight | None:
    """Return the weight that the body multiplies its row with; None if it does anything else."""
    inner = Rewriter(body)
    if len(body.results) != count + 1 or body.results[:count] != body.params[:count]:
        return None
    product = inner.definition(body.results[count])
    if product is None or not isinstance(product.op, DotGeneral):
        return None
    op, (matrix, row) = product.op, product.operands
    axes = (op.batch_lhs, op.batch_rhs, op.contract_lhs, op.contract_rhs)
    if axes != ((), (), (1,), (0,)) or row is not body.params[count]:
        return None
    return find_weight(matrix, inner)


def _taken(value: Value, body: Region, count: int) -> int | None:
    """Return the number of the carried tensor whose part of the row's group `value` is."""
    made = next((each for each in body.instructions if value in each.results), None)
    if made is None or not isinstance(made.op, Take):
        return None
    stack, group = made.operands
    carried = body.params[:count]
    if group is not body.params[count + 1] or stack not in carried:
        return None
    return carried.index(stack)


FUSE_QUANTIZED_GROUPED: tuple[Pass, ...] = (
    RegionPass("numba-fuse-quantized-grouped", fuse_grouped),
)
"""Before other passes look into loops."""
