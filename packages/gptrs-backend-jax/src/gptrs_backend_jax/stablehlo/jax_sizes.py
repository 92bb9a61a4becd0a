"""A program with sizes of JAX in place of its symbols, for recording alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gptrs.api.programs import (
    Function,
    Instruction,
    Op,
    Program,
    Region,
    SymbolicDim,
    TensorType,
    Value,
)


def sized(program: Program, sizes: Mapping[int, Any]) -> Program:
    """Return `program` with `sizes[n]`, symbolic sizes of JAX, for each `?n` in types and ops.

    Nothing checks the types again: what JAX records checks the shapes.
    """
    if not sizes:
        return program
    functions = tuple(Function(f.name, _region(f.body, sizes)) for f in program.functions)
    return Program(functions)


def _region(region: Region, sizes: Mapping[int, Any]) -> Region:
    values: dict[Value, Value] = {}

    def define(old: Sequence[Value]) -> tuple[Value, ...]:
        new = tuple(Value(_type(value.type, sizes), value.name) for value in old)
        values.update(zip(old, new, strict=True))
        return new

    params = define(region.params)
    steps: list[Instruction] = []
    for step in region.instructions:
        operands = tuple(values[operand] for operand in step.operands)
        regions = tuple(_region(each, sizes) for each in step.regions)
        steps.append(Instruction(_op(step.op, sizes), operands, define(step.results), regions))
    return Region(params, tuple(steps), tuple(values[value] for value in region.results))


def _type(type_: TensorType, sizes: Mapping[int, Any]) -> TensorType:
    if type_.is_static:
        return type_
    # The constructor asks whether the tensor is too large, which sizes of JAX do not answer.
    made = object.__new__(TensorType)
    object.__setattr__(made, "dtype", type_.dtype)
    object.__setattr__(made, "shape", tuple(_size(dim, sizes) for dim in type_.shape))
    return made


def _op(op: Op, sizes: Mapping[int, Any]) -> Op:
    changed: dict[str, Any] = {}
    for name in op.attribute_types:
        held: object = getattr(op, name)
        made = _attribute(held, sizes)
        if made is not held:
            changed[name] = made
    return dataclasses.replace(cast("Any", op), **changed) if changed else op


def _attribute(held: object, sizes: Mapping[int, Any]) -> object:
    if isinstance(held, SymbolicDim):
        return _size(cast("int", held), sizes)
    if isinstance(held, TensorType):
        return _type(held, sizes)
    if isinstance(held, tuple):
        parts = cast("tuple[object, ...]", held)
        made = tuple(_attribute(part, sizes) for part in parts)
        return made if any(a is not b for a, b in zip(made, parts, strict=True)) else parts
    return held


def _size(dim: int, sizes: Mapping[int, Any]) -> Any:
    return dim.substitute(sizes) if isinstance(dim, SymbolicDim) else dim
