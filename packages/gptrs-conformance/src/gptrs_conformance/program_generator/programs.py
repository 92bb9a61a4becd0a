"""Random programs by seed, and sets of them that leave no op and no dtype out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from gptrs.ir import dtypes as all_dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.program import Function, Program, Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.numerics import Tolerance, decode
from gptrs_conformance.program_generator.dice import Dice
from gptrs_conformance.program_generator.draft import (
    Accepts,
    Draft,
    ExtraStep,
    Library,
    OpEmitter,
    Rules,
)
from gptrs_conformance.program_generator.elements import Style, error_limit, random_literal
from gptrs_conformance.program_generator.steps import random_palette, take_steps, usable_emitters

_PAIRS_A_PROGRAM = 12
_ATTEMPTS = 50


def random_program(
    seed: int,
    *,
    size: int = 30,
    ops: Collection[str] | None = None,
    dtypes: Collection[DType] | None = None,
    control_flow: bool = True,
    accepts: Accepts | None = None,
    extra_steps: Sequence[ExtraStep] = (),
    extra_weight: int = 0,
) -> Program:
    """Return a well-typed program of about `size` instructions in `@main`.

    The same one for the same seed.

    It runs without an error on any inputs of the types of its parameters: indices are in range,
    integer divisors not 0, loops end. Its results are those of any backend that follows PTIR, to
    the bit for integers and `i1`, else within `error_limit`. What may be in it: ops called `ops`,
    values of `dtypes`, regions and calls only with `control_flow`, and only instructions that
    `accepts` returns True for; by default everything. `extra_steps` are mixed in, with
    `extra_weight` where all other steps together have the weight 19.
    """
    chosen = all_dtypes.ALL if dtypes is None else [d for d in all_dtypes.ALL if d in dtypes]
    rules = Rules(ops, chosen, accepts, control_flow, extra_steps, extra_weight)
    draft = _empty(Dice(seed), rules)
    for _ in range(draft.dice.between(1, 3)):
        draft.param(TensorType(draft.dice.pick(draft.palette), draft.shape()))
    take_steps(draft, size)
    return _finished(draft, _results(draft))


def programs_covering(seed: int, *, accepts: Accepts | None = None) -> list[Program]:
    """Programs that together have every op on every element type that a kernel is found by.

    Pairs of op and type that `accepts` leaves no way to are left out.
    """
    dice = Dice(seed)
    rules = Rules(accepts=accepts)
    pairs = [
        (op, emitter, dtype) for op, emitter in usable_emitters(rules) for dtype in emitter.dtypes
    ]
    # Shuffled, so that ops of different families meet in one program.
    pairs = dice.shuffled(pairs)
    chunks = range(0, len(pairs), _PAIRS_A_PROGRAM)
    return [_covering(dice, rules, pairs[at : at + _PAIRS_A_PROGRAM]) for at in chunks]


def _covering(
    dice: Dice, rules: Rules, pairs: Sequence[tuple[type[Op], OpEmitter, DType]]
) -> Program:
    draft = _empty(dice, rules)
    results: list[Value] = []
    for op, emitter, dtype in pairs:
        if any(_emitted(draft, op, emitter, dtype) for _ in range(_ATTEMPTS)):
            results.extend(draft.instructions[-1].results)
    return _finished(draft, results)


def _emitted(draft: Draft, op: type[Op], emitter: OpEmitter, dtype: DType) -> bool:
    def step() -> bool:
        emitter.emit(draft, op, dtype)
        return True

    return draft.attempt(step) is not None


def _empty(dice: Dice, rules: Rules) -> Draft:
    return Draft(dice, rules, Library(), random_palette(dice, rules))


def _results(draft: Draft) -> list[Value]:
    """Return any values: parameters, some in the middle, one more than once.

    Half of them unread so far.

    What they leave out is dead. With extra steps, all that is unread is a result.
    """
    read = {operand for step in draft.instructions for operand in step.operands}
    unread = [value for value in draft.values if value not in read]
    picked = [
        draft.dice.pick(unread if unread and draft.dice.chance(0.5) else draft.values)
        for _ in range(draft.dice.between(1, 12))
    ]
    return [*unread, *picked] if draft.rules.extra_weight else picked


def _finished(draft: Draft, results: Sequence[Value]) -> Program:
    functions = (*draft.library.decompositions.values(), *draft.library.functions)
    return Program((*functions, Function("main", draft.region(results))))


# Random inputs for a program, special values among them.


STYLES: tuple[Style, ...] = ("ordinary", "special", "special", "mild")


def random_inputs(program: Program, seed: int) -> dict[str, np.ndarray]:
    """Return an array for each parameter of `@main` by the names of `program.inputs`.

    Floats include NaN, infinities, -0.0 and the largest and smallest numbers, integers their
    extremes. The same for the same seed on every platform.
    """
    dice = Dice(seed)
    return {
        name: random_literal(dice, param.type, dice.pick(STYLES)).array.copy()
        for name, param in program.inputs.items()
    }


# Whether two results of a generated program are what right backends may both give.


def disagreement(found: np.ndarray, expected: np.ndarray, type_: TensorType) -> str | None:
    """Say how `found`, declared as `type_`, differs from `expected`; None if it may be so.

    Integers and `i1` must be equal, floats close within `error_limit`, and any NaN is any other.
    """
    if TensorType.of(found) != type_:
        return f"is `{TensorType.of(found)}`, expected `{type_}`"
    limit = error_limit(type_.dtype)
    if type_.dtype.is_complex:
        wide = expected.astype(np.complex128)
    else:
        wide = decode(expected) if type_.dtype.is_float else expected
    return Tolerance.close(limit, limit).mismatch(found, wide, type_.dtype)
