"""Builds a region or program instruction by instruction, checking each as it is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from msgspec.structs import replace

from gptrs.errors import ProgramError
from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.op import OPS, Op, Signature
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.v04.upgrade import OpChange
from gptrs.quoting import did_you_mean, quoted


class Builder:
    """Collects parameters and instructions of a region, usually `@main`, then makes the program.

    Instructions may refer to `functions`, which precede the region in the program.

    >>> builder = Builder()
    >>> x = builder.param(TensorType(dtypes.f32, (2,)), "x")
    >>> program = builder.program(builder.emit(Tanh(), x))
    """

    def __init__(self, functions: Sequence[Function] = ()) -> None:
        self._functions = tuple(functions)
        self._params: list[Value] = []
        self._names: set[str] = set()
        self._instructions: list[Instruction] = []
        self._defined: set[Value] = set()

    def param(self, type_: TensorType, name: str | None = None) -> Value:
        """Add a parameter; ProgramError when its name is taken."""
        if name is not None:
            if name in self._names:
                raise ProgramError(f"parameter `%{name}` is defined twice")
            self._names.add(name)
        value = Value(type_, name)
        self._params.append(value)
        self._defined.add(value)
        return value

    def emit(self, op: Op, *operands: Value, regions: Sequence[Region] = ()) -> Value:
        """Add an instruction with one result and return that result."""
        return self.emit_many(op, operands, regions).result

    def emit_many(
        self, op: Op, operands: Sequence[Value], regions: Sequence[Region] = ()
    ) -> Instruction:
        """Add an instruction with any number of results; ProgramError if operands do not fit."""
        self._require_defined(operands)
        bodies = (*regions, *(self._function(name).body for name in op.callees()))
        signatures = [body.signature for body in bodies]
        types = op.result_types([operand.type for operand in operands], signatures)
        results = tuple(Value(type_) for type_ in types)
        instruction = Instruction(op, tuple(operands), results, tuple(regions))
        self._instructions.append(instruction)
        self._defined.update(instruction.results)
        return instruction

    def program(self, *results: Value) -> Program:
        """Return the program that returns `results`."""
        return Program((*self._functions, Function("main", self.region(*results))))

    def region(self, *results: Value) -> Region:
        """Return the built region, which returns `results`."""
        self._require_defined(results)
        return Region(tuple(self._params), tuple(self._instructions), results)

    def _function(self, name: str) -> Function:
        for function in self._functions:
            if function.name == name:
                return function
        raise ProgramError(f"no function given to the builder is called `@{name}`")

    def _require_defined(self, values: Sequence[Value]) -> None:
        for value in values:
            if value not in self._defined:
                raise ProgramError(f"value of type `{value.type}` does not belong to this program")


# Copies of regions and instructions with other values.


def with_operands(instruction: Instruction, known: Mapping[Value, Value]) -> Instruction:
    """Return `instruction` with each operand x replaced by `known[x]`.

    Returns the same object if no operand is in `known`.
    """
    operands = tuple(known.get(operand, operand) for operand in instruction.operands)
    return (
        instruction if operands == instruction.operands else replace(instruction, operands=operands)
    )


def splice(region: Region, arguments: Sequence[Value], into: list[Instruction]) -> list[Value]:
    """Append a copy of `region`, applied to `arguments`, to `into`; return its results."""
    copies = dict(zip(region.params, arguments, strict=True))
    for instruction in region.instructions:
        results = tuple(Value(value.type, value.name) for value in instruction.results)
        operands = tuple(copies[operand] for operand in instruction.operands)
        regions = tuple(copy_region(inner) for inner in instruction.regions)
        copies.update(zip(instruction.results, results, strict=True))
        into.append(Instruction(instruction.op, operands, results, regions))
    return [copies[value] for value in region.results]


def copy_region(region: Region) -> Region:
    """Return the same region with fresh values."""
    params = tuple(Value(param.type, param.name) for param in region.params)
    instructions: list[Instruction] = []
    results = splice(region, params, instructions)
    return Region(params, tuple(instructions), tuple(results))


# Resolves a written op, a name with attributes in any form, to a checked instance of its class.


_SHOWN = 43


class SourcePosition(Protocol):
    """A position in the written program that an error can point at."""

    def error(self, message: str) -> ProgramError:
        """Return an error with this message for this position."""
        ...


class WrittenValue(SourcePosition, Protocol):
    """A value written for an attribute, in the text or JSON form."""

    def read(self, kind: AttributeKind, result: TensorType) -> object:
        """Return the value for an op with this result; ProgramError if it is not of `kind`."""
        ...


class WrittenOp:
    """The name of an op, its position, and its attributes, each with the position of its name.

    `change` describes changes of the op since the program's version.
    """

    def __init__(self, name: str, position: SourcePosition, change: OpChange) -> None:
        self._change = change
        today = change.op or name
        if today not in OPS:
            raise position.error(f"unknown op {quoted(name, _SHOWN)}{_suggestion(name)}")
        self.position = position
        self.attributes: dict[str, tuple[SourcePosition, WrittenValue]] = {}
        self._name = quoted(name, _SHOWN)
        self._class = OPS[today]

    @property
    def region_names(self) -> tuple[str, ...]:
        """The regions that the op carries."""
        return self._class.region_names

    def upgraded(self, regions: tuple[Region, ...]) -> tuple[Region, ...]:
        """Return the regions in the current version."""
        try:
            return self._change.upgrade_regions(regions)
        except ProgramError as error:
            raise self.position.error(str(error)) from None

    def resolve(
        self,
        annotated: Sequence[tuple[SourcePosition, TensorType]],
        operands: Sequence[TensorType],
        regions: Sequence[Signature],
        functions: Mapping[str, Signature],
    ) -> Op:
        """Return the op with these attributes.

        Raise ProgramError if it does not infer the annotated types.
        """
        if not annotated:
            raise self.position.error(f"{self._name} has at least one result, `()` is none")
        op = self._make(operands, [type_ for _, type_ in annotated])
        for name in op.callees():
            if name not in functions:
                what = f"{self._name} needs `@{name}`, no function above has the name"
                raise self.position.error(what)
        try:
            inferred = op.result_types(
                operands, (*regions, *(functions[name] for name in op.callees()))
            )
        except ProgramError as error:
            raise self.position.error(str(error)) from None
        if len(inferred) != len(annotated):
            what = f"{self._name} has {len(inferred)} results"
            raise annotated[0][0].error(f"{what}, got types for {len(annotated)}")
        for (position, written), type_ in zip(annotated, inferred, strict=True):
            if written != type_:
                raise position.error(f"{self._name} gives `{type_}` here, not `{written}`")
        return op

    def _make(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        values = self._values(results[0])
        try:
            self._change.upgrade(values, operands, results)
        except ProgramError as error:
            raise self.position.error(f"{self._name} {error}") from None
        for name, kind in self._class.attribute_kinds.items():
            if name not in values and name not in self._class.attribute_defaults:
                raise self.position.error(f"{self._name} needs attribute `{name}`, {kind.written}")
        return cast("Callable[..., Op]", self._class)(**values)

    def _values(self, result: TensorType) -> dict[str, object]:
        """Return the attributes by their current names; removed attributes keep their old ones."""
        kinds = {**self._class.attribute_kinds, **self._change.kinds}
        values: dict[str, object] = {}
        for written, (position, value) in self.attributes.items():
            name = self._change.renamed.get(written, written)
            if name not in kinds:
                has = f"it has {', '.join(kinds)}" if kinds else "it has none"
                raise position.error(
                    f"{self._name} has no attribute {quoted(written, _SHOWN)}; {has}"
                )
            if name in values:
                raise position.error(f"`{name}` is given twice, once as {quoted(written, _SHOWN)}")
            values[name] = value.read(kinds[name], result)
        return values


def _suggestion(name: str) -> str:
    guess = did_you_mean(name, OPS, 3)
    return f"; {guess.rstrip()}" if guess else ""
