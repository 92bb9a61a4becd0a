"""The steps of a draft: an instruction, a chain, a repetition, or an extra step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.builder import copy_region
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.program import Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance import cases as cases  # registers the rows
from gptrs_conformance.op_case import ROWS, OpCase
from gptrs_conformance.op_case import cases as cases_of
from gptrs_conformance.program_generator import layout
from gptrs_conformance.program_generator.dice import Dice
from gptrs_conformance.program_generator.draft import (
    EMITTERS,
    Draft,
    OpEmitter,
    Rules,
    StepDeclined,
)
from gptrs_conformance.program_generator.elements import NOTHING_KNOWN, Facts, error_limit

_ATTEMPTS = 8


def take_steps(draft: Draft, size: int) -> None:
    """Add steps until there are about `size` instructions, or no more of them are possible."""
    table = usable_emitters(draft.rules)
    if not table:
        return
    for _ in range(_ATTEMPTS * size):
        if len(draft.instructions) >= size:
            return
        draft.attempt(lambda: _step(draft, table))


def usable_emitters(rules: Rules) -> list[tuple[type[Op], OpEmitter]]:
    """Return the emitters that the rules leave, in an order that does not depend on imports."""
    plain = [op for op in ROWS if op not in EMITTERS]
    every = EMITTERS | {op: case_emitter(op) for op in plain if _has_no_bodies(op)}
    return [
        (op, emitter)
        for op, emitter in sorted(every.items(), key=lambda entry: entry[0].name)
        if (rules.ops is None or op.name in rules.ops)
        and (rules.control_flow or _has_no_bodies(op))
        and any(dtype in rules.dtypes for dtype in emitter.dtypes)
    ]


def _has_no_bodies(op: type[Op]) -> bool:
    return not (op.region_names or op.function_attributes)


def random_palette(dice: Dice, rules: Rules) -> list[DType]:
    """Return a float type, an integer type and one or two others, as far as the rules have them."""
    allowed = list(rules.dtypes)
    floats = [dtype for dtype in allowed if dtype.is_float]
    integers = [dtype for dtype in allowed if dtype.is_integer]
    usual = [dtype for dtype in (dtypes.f32, dtypes.si32) if dtype in allowed]
    palette = usual if dice.chance(0.4) else []
    for group in (floats, integers, allowed, allowed):
        if group and dice.chance(0.8):
            palette.append(dice.pick(group))
    return palette or [dice.pick(allowed)]


def _step(draft: Draft, table: Sequence[tuple[type[Op], OpEmitter]]) -> None:
    weights = (12, 5, 2, draft.rules.extra_weight)
    kind = draft.dice.weighted(("op", "chain", "repeat", "extra"), weights)
    if kind == "chain":
        value = draft.operand(draft.dice.pick(draft.palette))
        layout.chain(draft, value)
    elif kind == "repeat":
        _repeat(draft)
    elif kind == "extra":
        draft.dice.pick(draft.rules.extra_steps)(draft)
    else:
        op, emitter = draft.dice.weighted(table, [emitter.weight for _, emitter in table])
        allowed = [dtype for dtype in emitter.dtypes if dtype in draft.rules.dtypes]
        used = [dtype for dtype in draft.palette if dtype in allowed]
        dtype = draft.dice.pick(used if used and draft.dice.chance(0.9) else allowed)
        emitter.emit(draft, op, dtype)


def _repeat(draft: Draft) -> None:
    """An instruction over again: a common subexpression."""
    if not draft.instructions:
        raise StepDeclined
    again = draft.dice.pick(draft.instructions)
    facts = [draft.facts[result] for result in again.results]
    regions = [copy_region(region) for region in again.regions]
    draft.emit_many(again.op, again.operands, facts, regions)


def inner_draft(
    draft: Draft, params: Sequence[TensorType], facts: Sequence[Facts], size: int
) -> Draft:
    """Return a region with these parameters and about `size` instructions, one level further in."""
    inner = Draft(
        draft.dice, draft.rules, draft.library, draft.palette, draft.nesting + 1, open=False
    )
    for index, (type_, known) in enumerate(zip(params, facts, strict=True)):
        value = Value(type_, f"a{index}" if draft.dice.chance(0.8) else None)
        inner.params.append(value)
        inner.values.append(value)
        inner.facts[value] = known
    take_steps(inner, size)
    return inner


# The emitter of ops that have none of their own: a case of the kit with constants as operands. So a
# new op is in the random programs as soon as it has cases; an emitter in the module of its family
# makes it meet other instructions too.


def case_emitter(op: type[Op]) -> OpEmitter:
    """Return the emitter of an op without regions and callees, on every type that has cases."""
    return OpEmitter(_emit, tuple(ROWS[op]), weight=1)


def _emit(draft: Draft, op: type[Op], dtype: DType) -> None:
    fitting = [case for case in cases_of(op, dtype) if case.error is None]
    if not fitting:
        raise StepDeclined
    case = draft.dice.pick(fitting)
    operands = [draft.literal(Literal.of(array)) for array in case.inputs]
    types = case.op.result_types([TensorType.of(array) for array in case.inputs])
    facts = [_facts(case, array, type_) for array, type_ in zip(case.expected, types, strict=True)]
    draft.emit_many(case.op, operands, facts)


def _facts(case: OpCase, expected: np.ndarray, type_: TensorType) -> Facts:
    """Return how large the expected value is, and how far backends may differ."""
    limit = error_limit(type_.dtype)
    if not limit or case.tolerance.exact:
        return NOTHING_KNOWN
    sizes = np.abs(np.asarray(expected, np.complex128)).ravel()
    return Facts(float(np.max(sizes, initial=0.0, where=~np.isnan(sizes))), limit / 2)
