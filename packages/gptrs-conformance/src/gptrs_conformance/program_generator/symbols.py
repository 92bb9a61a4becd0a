"""Makes programs with symbolic dims from static ones by replacing sizes with symbols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
from msgspec import Struct, field

from gptrs.errors import GptrsError
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.layout import BroadcastTo, Slice
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.ir.size_guards import Shape, SizeGuards, active_guards, deciding
from gptrs.ir.symbolic_dim import evaluated, symbol
from gptrs.ir.tensor_type import TensorType

_SIZES = ("shape", "sizes", "starts", "num_segments", "low", "high", "repeats", "k", "length")
"""The attributes that are computed from sizes; others number axes, or count something else."""


def common_sizes(program: Program, count: int = 2) -> tuple[int, ...]:
    """Return the sizes of 2 or more that most dims of the parameters of `@main` have."""
    dims = Counter(
        dim for param in program.main.body.params for dim in param.type.shape if dim >= 2
    )
    return tuple(sorted(dim for dim, _ in dims.most_common(count)))


def with_symbols(program: Program, sizes: Sequence[int]) -> tuple[Program, SizeGuards]:
    """Return `program` with the symbol `?n` for each dim of `sizes[n]`, and what that demands.

    An instruction that cannot be written so becomes a parameter; a constant that has such a dim is
    broadcast, or cut out of a larger one.
    """
    guards = SizeGuards(dict(enumerate(sizes)))
    with deciding(guards):
        main = _Symbolic({size: symbol(number) for number, size in enumerate(sizes)})
        body = main.written(program.main.body)
    functions = (function for function in program.functions if function.name != "main")
    return Program((*functions, Function("main", body))), guards


class _NotSymbolicError(Exception):
    """An instruction of a region cannot be written with symbols."""


class _Symbolic(Struct):
    symbols: Mapping[int, int]
    """The symbol for each size."""
    inner: bool = False
    """Whether it is a region, which gets no more parameters."""
    params: list[Value] = field(default_factory=list[Value])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    values: dict[Value, Value] = field(default_factory=dict[Value, Value])

    def written(self, region: Region) -> Region:
        """Return the region with symbols."""
        for param in region.params:
            self.values[param] = self._param(param)
        for made in region.instructions:
            self._add(made)
        results = tuple(self.values[value] for value in region.results)
        return Region(tuple(self.params), tuple(self.instructions), results)

    def _param(self, old: Value) -> Value:
        value = Value(self._type(old.type), old.name)
        self.params.append(value)
        return value

    def _type(self, type_: TensorType) -> TensorType:
        return type_.with_shape(tuple(self.symbols.get(dim, dim) for dim in type_.shape))

    def _add(self, made: Instruction) -> None:
        try:
            results = self._results(made)
        except (_NotSymbolicError, GptrsError):
            if self.inner:
                raise _NotSymbolicError from None
            names = len(self.params)
            results = [
                self._param(Value(value.type, f"s{names}_{number}"))
                for number, value in enumerate(made.results)
            ]
        self.values.update(zip(made.results, results, strict=True))

    def _results(self, made: Instruction) -> Sequence[Value]:
        if isinstance(made.op, Constant) and self._type(made.results[0].type).symbols:
            return [self._constant(made.op.value)]
        operands = [self.values[operand] for operand in made.operands]
        regions = tuple(_Symbolic(self.symbols, True).written(inner) for inner in made.regions)
        wanted = [value.type for value in made.results]
        for op in self._candidates(made.op, [operand.type for operand in operands]):
            signatures = [region.signature for region in regions]
            try:
                types = op.result_types([operand.type for operand in operands], signatures)
            except GptrsError:
                continue
            # A candidate may be well typed and mean another size that is equal by chance only at
            # the example.
            if [_at_example(type_) for type_ in types] == wanted:
                return self._emit(op, operands, types, regions)
        raise _NotSymbolicError

    def _emit(
        self,
        op: Op,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        regions: Sequence[Region] = (),
    ) -> tuple[Value, ...]:
        results = tuple(Value(type_) for type_ in types)
        self.instructions.append(Instruction(op, tuple(operands), results, tuple(regions)))
        return results

    def _constant(self, literal: Literal) -> Value:
        """Return a constant of symbolic type: one element repeated, or a part of a larger one."""
        type_ = self._type(literal.type)
        if literal.splat is not None:
            scalar = literal.type.with_shape(())
            (one,) = self._emit(Constant(Literal(scalar, literal.splat)), (), [scalar])
            return self._emit(BroadcastTo(type_.shape), [one], [type_])[0]
        repeats = [
            1 if dim == old else 2 for dim, old in zip(type_.shape, literal.type.shape, strict=True)
        ]
        large = Literal.of(np.tile(literal.array, repeats))
        (whole,) = self._emit(Constant(large), (), [large.type])
        part = Slice((0,) * type_.rank, type_.shape, None)
        return self._emit(part, [whole], part.result_types([large.type]))[0]

    def _candidates(self, op: Op, operands: Sequence[TensorType]) -> Iterator[Op]:
        """Yield `op` with symbols for all, some or none of the sizes in its attributes.

        Sizes are those of the symbols, one less, and the products of neighbouring dims of operands.
        """
        known = {size - 1: dim - 1 for size, dim in self.symbols.items()}
        for type_ in operands:
            for first in range(type_.rank):
                product = 1
                for dim in type_.shape[first:]:
                    product = product * dim
                    known.setdefault(evaluated(product, active_guards().example), product)
        known |= self.symbols
        for sizes in (known, self.symbols):
            changed = {
                name: new
                for name in _SIZES
                if name in op.attribute_types and (new := _replaced(op, name, sizes)) is not None
            }
            if changed:
                yield _with(op, changed)
                for name, value in changed.items():
                    yield _with(op, {name: value})
        yield op


def _with(op: Op, changed: Mapping[str, object]) -> Op:
    attributes = {name: getattr(op, name) for name in op.attribute_types}
    return cast("Callable[..., Op]", type(op))(**{**attributes, **changed})


def _replaced(op: Op, name: str, sizes: Mapping[int, int]) -> object:
    """Return the attribute with symbols; None if there are none or it cannot have any."""
    value: object = getattr(op, name)
    if type(value) is int:
        new: object = sizes.get(value, value)
    elif type(value) is tuple and all(type(part) is int for part in cast("Shape", value)):
        new = tuple(sizes.get(part, part) for part in cast("Shape", value))
    else:
        return None
    return new if new != value and op.attribute_kinds[name].accepts(new) else None


def _at_example(type_: TensorType) -> TensorType:
    example = active_guards().example
    return type_.with_shape(tuple(evaluated(dim, example) for dim in type_.shape))
