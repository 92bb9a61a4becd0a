"""Turns a program with symbolic dims into one for known sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import cast

from msgspec.structs import replace

from gptrs.errors import ProgramError, UsageError
from gptrs.ir.attributes import Dictionary, DictionaryValue
from gptrs.ir.op import Op
from gptrs.ir.program import Function, Instruction, Program, Region, Value, verify
from gptrs.ir.symbolic_dim import SymbolicDim, evaluated, substituted, symbols_of
from gptrs.ir.tensor_type import TensorType


def symbols(program: Program) -> list[int]:
    """Return the numbers of the symbols in the types and attributes of `program`, ascending."""
    found: set[int] = set()
    for function in program.functions:
        for region in _regions(function.body):
            values = [*region.params, *(v for step in region.instructions for v in step.results)]
            for type_ in {value.type for value in values}:
                found.update(type_.symbols)
            for step in region.instructions:
                found.update(op_symbols(step.op))
    return sorted(found)


def bind(program: Program, types: Mapping[str, TensorType]) -> dict[int, int]:
    """Return the sizes of the symbols for inputs of these types, by the names of the parameters.

    The names are those of `program.inputs`; some may be missing, others are ignored. A parameter of
    `@main` with a plain symbol as a dim, `f32[?0]`, binds it; all other dims whose symbols are
    bound are checked. UsageError names the parameter, the axis, and the expected and actual sizes.
    """
    found: dict[int, tuple[int, str]] = {}
    given = {name: param.type for name, param in program.inputs.items() if name in types}
    for name, wanted in given.items():
        for axis, (dim, size) in enumerate(_dims(name, wanted, types[name])):
            number = lone_symbol(dim)
            if number is None:
                continue
            source = f"axis {axis} of `{name}`"
            known, where = found.setdefault(number, (size, source))
            if known != size:
                raise UsageError(
                    f"`?{number}` is {known} by {where} and {size} by {source}",
                    hint="dims with one symbol must be of one size",
                )
    values = {number: size for number, (size, _) in found.items()}
    for name, wanted in given.items():
        _require_fits(name, wanted, types[name], values)
    return values


def symbol_sources(params: Sequence[Value]) -> dict[int, tuple[int, int]]:
    """Map each symbol to the first of `params` that has it as a plain dim, and to that axis."""
    sources: dict[int, tuple[int, int]] = {}
    for position, param in enumerate(params):
        for axis, dim in enumerate(param.type.shape):
            number = lone_symbol(dim)
            if number is not None:
                sources.setdefault(number, (position, axis))
    return sources


def specialize(program: Program, sizes: Mapping[int, int], *, check: bool = True) -> Program:
    """Return `program` with each `?n` replaced by `sizes[n]`, verified.

    Returns the same program if it has no symbols. Without `check`, the caller vouches that it is
    valid for these sizes.

    ProgramError for a symbol without a size, a negative size, or a program that these sizes make
    malformed.
    """
    wanted = symbols(program)
    if not wanted:
        return program
    missing = [f"?{number}" for number in wanted if number not in sizes]
    if missing:
        raise ProgramError(
            f"no size is given for {', '.join(missing)}",
            hint="give one, or an input that has the symbol as a plain dim",
        )
    for number in wanted:
        if sizes[number] < 0:
            raise ProgramError(f"`?{number}` is a size, which cannot be {sizes[number]}")
    special = Specializer(program).at(sizes)
    if not check:
        return special
    try:
        verify(special)
    except ProgramError as error:
        given = ", ".join(f"?{number} = {sizes[number]}" for number in wanted)
        raise ProgramError(f"with {given}: {error}") from error
    return special


class Specializer:
    """Specializes one program repeatedly; its symbolic parts are found once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        regions = [each for one in program.functions for each in _regions(one.body)]
        steps = [step for region in regions for step in region.instructions]
        # By identity: hashes of hundreds of ops and types were a fifth of the time of `at`.
        self._open = {id(step.op): _open_values(step.op) for step in steps if op_symbols(step.op)}
        """For the ops with symbols, the attributes that have some."""
        distinct: dict[TensorType, TensorType] = {}
        self._types: dict[int, TensorType] = {}
        """The open types of values and in attributes, by identity; equal ones are one object."""
        params = (region.params for region in regions)
        types = [value.type for value in chain(*params, *(step.results for step in steps))]
        for open_values in self._open.values():
            types += _types_in(tuple(open_values.values()))
        for type_ in types:
            if not type_.is_static:
                self._types[id(type_)] = distinct.setdefault(type_, type_)
        self._distinct = tuple(distinct)

    def at(self, sizes: Mapping[int, int]) -> Program:
        """Return the program with each `?n` replaced by `sizes[n]`, unverified.

        `sizes` must cover all symbols. Its values may be symbolic dims.
        """
        sized = {id(each): _sized(each, sizes) for each in self._distinct}
        made = {key: sized[id(each)] for key, each in self._types.items()}
        return Program(
            tuple(
                Function(function.name, self._specialized(function.body, sizes, made))
                for function in self._program.functions
            )
        )

    def _specialized(
        self, region: Region, sizes: Mapping[int, int], types: Mapping[int, TensorType]
    ) -> Region:
        """Return a region for `sizes`; `types` has the open types for them, by identity."""
        values: dict[Value, Value] = {}

        # Undefined values are kept, so that the verifier reports them.
        def define(old: Sequence[Value]) -> tuple[Value, ...]:
            for value in old:
                if id(value.type) in types:
                    values[value] = Value(types[id(value.type)], value.name)
            return tuple([values.get(value, value) for value in old])

        params = define(region.params)
        instructions: list[Instruction] = []
        for step in region.instructions:
            operands = tuple([values.get(operand, operand) for operand in step.operands])
            regions = tuple([self._specialized(inner, sizes, types) for inner in step.regions])
            op = step.op
            if id(op) in self._open:
                op = replace(op, **_sized_entries(self._open[id(op)], sizes, types))
            instructions.append(Instruction(op, operands, define(step.results), regions))
        results = tuple([values.get(value, value) for value in region.results])
        return Region(params, tuple(instructions), results)


def lone_symbol(dim: int) -> int | None:
    """Return the number of the symbol if `dim` is a plain symbol, else None."""
    if isinstance(dim, SymbolicDim) and len(dim.terms) == 1:
        ((monomial, factor),) = dim.terms
        if factor == len(monomial) == 1 and isinstance(monomial[0], int):
            return monomial[0]
    return None


def op_symbols(op: Op) -> frozenset[int]:
    """Return the numbers of the symbols in the attributes of `op`."""
    numbers: set[int] = set()
    for name in op.attribute_types:
        numbers |= _symbols_of(getattr(op, name))
    return frozenset(numbers)


def _regions(region: Region) -> list[Region]:
    return [region, *(inner for step in region.walk() for inner in step.regions)]


def _symbols_of(value: object) -> frozenset[int]:
    if isinstance(value, TensorType):
        return value.symbols
    if isinstance(value, Dictionary):
        value = tuple(entry for _, entry in value.items)
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
        return frozenset(number for part in parts for number in _symbols_of(part))
    return symbols_of([value])


def _dims(name: str, wanted: TensorType, found: TensorType) -> list[tuple[int, int]]:
    if wanted.dtype is not found.dtype or wanted.rank != found.rank:
        raise UsageError(f"input `{name}` must be `{wanted}`, got `{found}`")
    return list(zip(wanted.shape, found.shape, strict=True))


def _require_fits(
    name: str, type_: TensorType, found: TensorType, values: Mapping[int, int]
) -> None:
    for axis, (dim, size) in enumerate(_dims(name, type_, found)):
        wanted = substituted(dim, values)
        if not isinstance(wanted, SymbolicDim) and wanted != size:
            reason = f" (`{dim}`)" if isinstance(dim, SymbolicDim) else ""
            raise UsageError(
                f"input `{name}` must be `{type_}`, got `{found}`: "
                f"axis {axis} must be {wanted}{reason}"
            )


def _sized(type_: TensorType, sizes: Mapping[int, int]) -> TensorType:
    if type_.is_static:
        return type_
    return type_.with_shape(tuple([evaluated(dim, sizes) for dim in type_.shape]))


def _open_values(op: Op) -> dict[str, object]:
    values = {name: cast("object", getattr(op, name)) for name in op.attribute_types}
    return {name: value for name, value in values.items() if _symbols_of(value)}


def _types_in(value: object) -> list[TensorType]:
    if isinstance(value, TensorType):
        return [value]
    parts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else ()
    return [type_ for part in parts for type_ in _types_in(part)]


def _sized_entries(
    entries: Mapping[str, object], sizes: Mapping[int, int], types: Mapping[int, TensorType]
) -> dict[str, object]:
    return {name: _sized_value(entry, sizes, types) for name, entry in entries.items()}


def _sized_value(
    value: object, sizes: Mapping[int, int], types: Mapping[int, TensorType]
) -> object:
    if isinstance(value, TensorType):
        return types.get(id(value), value)
    if isinstance(value, SymbolicDim):
        return evaluated(cast("int", value), sizes)
    if isinstance(value, Dictionary):
        entries = _sized_entries(dict(value.items), sizes, types)
        return Dictionary.of(cast("dict[str, DictionaryValue]", entries))
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
        return tuple([_sized_value(part, sizes, types) for part in parts])
    return value
