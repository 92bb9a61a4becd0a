"""Functions take the parts of quantized weights in the place of weights that calls decode."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.indexing import Take
from gptrs.ir.ops.layout import Transpose
from gptrs.ir.ops.quantization import Dequantize, DequantizeAffine, UnpackBits
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.quick_dataclass import dataclass

_DECODING = (Dequantize, DequantizeAffine, UnpackBits, Transpose, Take, Constant)
_Definitions = Mapping[Value, Instruction]


@dataclass(frozen=True)
class _Decoding:
    """How a value is decoded: instructions in order, of the parts."""

    steps: tuple[Instruction, ...]
    parts: tuple[Value, ...]
    form: Hashable
    """Equal for values that are decoded in the same way of parts of the same types."""


@dataclass(frozen=True)
class PassParts:
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
        places = {made: at for each in numbers.values() for at, made in enumerate(each)}
        instructions = [
            _passing_parts(made, moved[made.op.function], places[made])
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
    """Return the arguments that all calls decode in the same way, with that of each call."""
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
    """Return a function whose first instructions are those that its calls had in front."""
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
    call: Instruction, found: Mapping[int, list[_Decoding]], place: int
) -> Instruction:
    """Return a call that passes the parts; it is the `place`-th of its function."""
    operands: list[Value] = []
    for number, operand in enumerate(call.operands):
        operands += found[number][place].parts if number in found else [operand]
    return replace(call, operands=tuple(operands))


PASS_PARTS = PassParts()
