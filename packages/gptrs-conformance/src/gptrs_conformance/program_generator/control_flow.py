"""Emitters of branches, loops that end, and calls."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary, DictionaryValue, FunctionName
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import control_flow as control_flow_ops
from gptrs.ir.ops import custom_call as custom_call_ops
from gptrs.ir.ops.elementwise import Add, And, Compare, Sub
from gptrs.ir.program import Function, Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.dice import Dice
from gptrs_conformance.program_generator.draft import Draft, StepDeclined, emits
from gptrs_conformance.program_generator.elements import NOTHING_KNOWN, Facts, joined
from gptrs_conformance.program_generator.functional_calls import FLOATS, functional_call
from gptrs_conformance.program_generator.steps import inner_draft

MAX_NESTING = 2
"""Deepest nesting of regions in regions: each level multiplies the instructions."""

PREDICATE = TensorType(dtypes.i1, ())


@emits(control_flow_ops.Cond, dtypes=[dtypes.i1], weight=3)
def conds(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Two regions that give the same types out of the same operands."""
    _require_room(draft)
    operands = _some_values(draft, draft.dice.below(4), exact=False)
    then = _inner(draft, operands)
    results = _picked(then, draft.dice.between(1, 3))
    otherwise = _inner(draft, operands)
    others = [otherwise.like(value.type) for value in results]
    facts = [
        joined(then.facts[a], otherwise.facts[b]) for a, b in zip(results, others, strict=True)
    ]
    regions = (then.region(results), otherwise.region(others))
    predicate = draft.like(PREDICATE)
    draft.emit_many(control_flow_ops.Cond(), (predicate, *operands), facts, regions)


@emits(control_flow_ops.While, dtypes=[dtypes.i1], weight=2)
def whiles(draft: Draft, op: type[Op], dtype: DType) -> None:
    """A loop that counts to at most 3, up or down, whatever else it does; its state is exact."""
    _require_room(draft)
    integers = [integer for integer in dtypes.INTEGERS if integer in draft.rules.dtypes]
    if not integers:
        raise StepDeclined
    counter = TensorType(draft.dice.pick(integers), ())
    trips, down = draft.dice.below(4), draft.dice.chance(0.3)
    state = _some_values(draft, draft.dice.below(3), exact=True)
    slot = draft.dice.between(0, len(state))
    state.insert(slot, draft.splat(trips if down else 0, counter))
    regions = (_condition(draft, state, slot, trips, down), _loop_body(draft, state, slot, down))
    draft.emit_many(control_flow_ops.While(), state, [NOTHING_KNOWN] * len(state), regions)


def _condition(draft: Draft, state: Sequence[Value], slot: int, trips: int, down: bool) -> Region:
    inner = _inner(draft, state, exact=True)
    counter = inner.params[slot]
    limit = inner.splat(0 if down else trips, counter.type)
    goes_on = inner.emit(Compare("gt" if down else "lt"), counter, limit)
    if draft.dice.chance(0.3):
        goes_on = inner.emit(And(), goes_on, inner.like(PREDICATE))
    return inner.region([goes_on])


def _loop_body(draft: Draft, state: Sequence[Value], slot: int, down: bool) -> Region:
    inner = _inner(draft, state, exact=True)
    counter = inner.params[slot]
    following = inner.emit(Sub() if down else Add(), counter, inner.splat(1, counter.type))
    results = [inner.like(value.type, exact=True) for value in state]
    results[slot] = following
    return inner.region(results)


@emits(control_flow_ops.Scan, dtypes=[dtypes.i1], weight=3)
def scans(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Over none to two tensors, with none to two exact values carried along."""
    _require_room(draft)
    carried = _some_values(draft, draft.dice.below(3), exact=True)
    scanned = _scanned(draft)
    steps = scanned[0].type.shape[0] if scanned else draft.dice.below(4)
    length = steps if not scanned or draft.dice.chance(0.2) else None
    slices = [value.type.with_shape(value.type.shape[1:]) for value in scanned]
    types = [*(value.type for value in carried), *slices]
    known = [*(NOTHING_KNOWN for _ in carried), *(draft.facts[value] for value in scanned)]
    inner = inner_draft(draft, types, known, draft.dice.between(1, 5))
    kept = [inner.like(value.type, exact=True) for value in carried]
    stacked = _picked(inner, draft.dice.between(0 if carried else 1, 2))
    facts = [*(NOTHING_KNOWN for _ in carried), *(inner.facts[value] for value in stacked)]
    scan = control_flow_ops.Scan(len(carried), length, draft.dice.chance(0.4))
    region = inner.region([*kept, *stacked])
    draft.emit_many(scan, (*carried, *scanned), facts, [region])


def _scanned(draft: Draft) -> list[Value]:
    if draft.dice.chance(0.25):
        return []
    first = draft.operand(_any_dtype(draft), least_rank=1)
    steps = first.type.shape[0]
    other = draft.search(lambda value: value.type.shape[:1] == (steps,))
    return [first, other] if other is not None and draft.dice.chance(0.4) else [first]


@emits(control_flow_ops.Call, dtypes=[dtypes.i1], weight=3)
def calls(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of a function written before, or for this call."""
    function = some_function(draft)
    draft.emit_many(
        control_flow_ops.Call(FunctionName(function.name)),
        arguments(draft, function),
        draft.library.facts[function.name],
    )


def some_function(draft: Draft) -> Function:
    """Return a function of the library, which may be a new one; it counts on exact arguments."""
    functions = draft.library.functions
    if functions and draft.dice.chance(0.6):
        return draft.dice.pick(functions)
    _require_room(draft)
    types = [TensorType(_any_dtype(draft), draft.shape()) for _ in range(draft.dice.below(4))]
    inner = inner_draft(draft, types, [NOTHING_KNOWN] * len(types), draft.dice.between(2, 6))
    results = _picked(inner, draft.dice.between(1, 3))
    function = Function(f"f{len(functions)}", inner.region(results))
    functions.append(function)
    draft.library.facts[function.name] = tuple(inner.facts[value] for value in results)
    return function


def arguments(draft: Draft, function: Function) -> list[Value]:
    """Return exact values of the types of the parameters."""
    return [draft.like(param.type, exact=True) for param in function.body.params]


def _require_room(draft: Draft) -> None:
    if draft.nesting >= MAX_NESTING:
        raise StepDeclined


def _any_dtype(draft: Draft) -> DType:
    return draft.dice.pick(draft.palette)


def _some_values(draft: Draft, count: int, *, exact: bool) -> list[Value]:
    return [draft.operand(_any_dtype(draft), exact=exact) for _ in range(count)]


def _inner(draft: Draft, operands: Sequence[Value], *, exact: bool = False) -> Draft:
    """Return the region of operands of these types; only `exact` ones may be counted on."""
    types = [value.type for value in operands]
    known: list[Facts] = [NOTHING_KNOWN if exact else draft.facts[value] for value in operands]
    return inner_draft(draft, types, known, draft.dice.between(0, 4))


def _picked(inner: Draft, count: int) -> list[Value]:
    """Results of a region: any of its values, new ones where there are none."""
    if count and not inner.values:
        inner.fresh(TensorType(_any_dtype(inner), inner.shape()))
    return [inner.dice.pick(inner.values) for _ in range(count)]


# Emitters of composites, which any backend can run.


KINDS = ("vendor.thing.v1", "a.b.v0", "vendor.fused_2.f32.x.v12/fast", "softmax.v1/other")
"""Kinds that nobody claims: a function that means anything must not say that it is softmax."""
VALUES: tuple[DictionaryValue, ...] = (
    True, 0, -(2**63), 1.5, -0.0, math.inf, math.nan, "", "a // (b) {é}", dtypes.bf16, (), (1, -2),
)  # fmt: skip


@emits(custom_call_ops.Composite, dtypes=[dtypes.i1], weight=5)
def composites(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Calls of functionals; and functions under a name, whose attributes mean nothing."""
    floats = [each for each in FLOATS if each in draft.rules.dtypes]
    if floats and draft.dice.chance(0.6):
        usual = [each for each in draft.palette if each in floats]
        functional_call(draft, draft.dice.pick(usual or floats))
        return
    function = some_function(draft)
    names = " ".join(f"x{number}" for number in range(len(function.body.params)))
    name = FunctionName(function.name)
    composite = custom_call_ops.Composite(
        draft.dice.pick(KINDS), name, names, _attributes(draft.dice)
    )
    facts = draft.library.facts[function.name]
    draft.emit_many(composite, arguments(draft, function), facts)


def _attributes(dice: Dice) -> Dictionary:
    names = dice.some(("k", "b.c", "_", "k2"))
    return Dictionary.of({name: dice.pick(VALUES) for name in names})
