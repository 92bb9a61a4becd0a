"""Emitters of composites, which any backend can run."""

from __future__ import annotations

import math

from gptrs.ir import dtypes
from gptrs.ir.attributes import FunctionName
from gptrs.ir.dictionary import Dictionary, DictionaryValue
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops import custom_call as ops
from gptrs_conformance.program_generator.control_flow import arguments, some_function
from gptrs_conformance.program_generator.dice import Dice
from gptrs_conformance.program_generator.draft import Draft
from gptrs_conformance.program_generator.emitters import emits

KINDS = ("vendor.thing.v1", "a.b.v0", "vendor.fused_2.f32.x.v12/fast", "softmax.v1/other")
"""Kinds that nobody claims: that of a functional promises its decomposition."""
VALUES: tuple[DictionaryValue, ...] = (
    True, 0, -(2**63), 1.5, -0.0, math.inf, math.nan, "", "a // (b) {é}", dtypes.bf16, (), (1, -2),
)  # fmt: skip


@emits(ops.Composite, dtypes=[dtypes.i1], weight=2)
def composites(draft: Draft, op: type[Op], dtype: DType) -> None:
    """With a function as decomposition; what the attributes say means nothing."""
    function = some_function(draft)
    names = " ".join(f"x{number}" for number in range(len(function.body.params)))
    name = FunctionName(function.name)
    composite = ops.Composite(draft.dice.pick(KINDS), name, names, _attributes(draft.dice))
    facts = draft.library.facts[function.name]
    draft.emit_many(composite, arguments(draft, function), facts)


def _attributes(dice: Dice) -> Dictionary:
    names = dice.some(("k", "b.c", "_", "k2"))
    return Dictionary.of({name: dice.pick(VALUES) for name in names})
