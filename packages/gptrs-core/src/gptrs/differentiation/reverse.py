"""Reverse mode: run a region, then its rules from the last instruction to the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gptrs.capture.tensor import Tensor
from gptrs.differentiation.rules import (
    RULES,
    Cotangents,
    Functions,
    Rule,
    Step,
    added,
    emit,
    varies_with,
)
from gptrs.errors import UsageError
from gptrs.ir.ops.control_flow import While
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.program import Instruction, Region, Value


class _Taken(NamedTuple):
    """A step that depends on the differentiated inputs."""

    instruction: Instruction
    step: Step[Any]
    rule: Rule | None


class Linearized:
    """A region captured on tensors that can pull cotangents of results back to some of its
    inputs."""

    def __init__(
        self, region: Region, functions: Functions, inputs: Sequence[Tensor], wanted: Sequence[bool]
    ) -> None:
        """Capture the region on `inputs`, to be differentiated with respect to the `wanted`
        ones."""
        self._region = region
        self._taken: list[_Taken] = []
        asked = zip(region.params, wanted, strict=True)
        self._varying = {param for param, varies in asked if varies}
        self._known = dict(zip(region.params, inputs, strict=True))
        for instruction in region.instructions:
            self._run(instruction, functions)
        self.results = tuple([self._known[value] for value in region.results])

    def pull(self, cotangents: Cotangents) -> list[Tensor | None]:
        """Return the cotangents of the inputs for the cotangents of the results; None means zero.

        UsageError if an op has no derivative.
        """
        found: dict[Value, Tensor] = {}
        self._add(found, self._region.results, cotangents)
        for instruction, step, rule in reversed(self._taken):
            # Popped: after its instruction no cotangent is read again, and large ones need not live
            # on.
            given = [found.pop(value, None) for value in instruction.results]
            # None instead of zeros: for most values nothing flows back, and zeros would be computed
            # with.
            if all(each is None for each in given):
                continue
            if rule is None:
                raise no_derivative(instruction)
            self._add(found, instruction.operands, rule.backward(step, given))
        return [found.get(param) for param in self._region.params]

    def _run(self, instruction: Instruction, functions: Functions) -> None:
        operands = tuple([self._known[value] for value in instruction.operands])
        if not varies_with(instruction, self._varying):
            results = emit(instruction, operands, functions)
            self._known.update(zip(instruction.results, results, strict=True))
            return
        wanted = tuple([value in self._varying for value in instruction.operands])
        regions = instruction.regions
        step = Step[Any](instruction.op, operands, (), wanted, regions, functions)
        step, rule = taken(instruction, step)
        self._known.update(zip(instruction.results, step.results, strict=True))
        # Integers carry no derivative, even if they are computed from floats (argmax, casts).
        floats = [value for value in instruction.results if value.type.dtype.is_float]
        self._varying.update(floats)
        if floats:
            self._taken.append(_Taken(instruction, step, rule))

    def _add(
        self, found: dict[Value, Tensor], values: Sequence[Value], cotangents: Cotangents
    ) -> None:
        """Add cotangents to those already found for their values; drop cotangents that are not
        needed."""
        for value, cotangent in zip(values, cotangents, strict=True):
            if cotangent is None or value not in self._varying:
                continue
            assert cotangent.type == value.type, f"{cotangent.type} for {value.type}"
            earlier = found.get(value)
            found[value] = cotangent if earlier is None else added(earlier, cotangent)


def taken(instruction: Instruction, step: Step[Any]) -> tuple[Step[Any], Rule | None]:
    """Run the forward part of a step; return the step with its results, and its rule if there is
    one."""
    rule = RULES.get(type(instruction.op))
    if rule is None or rule.forward is None:
        return step._replace(results=emit(instruction, step.operands, step.functions)), rule
    results, kept = rule.forward(step)
    return step._replace(results=tuple(results), kept=kept), rule


def no_derivative(instruction: Instruction) -> UsageError:
    """Return the error for an instruction without a rule, with a hint at what to use instead."""
    op = instruction.op
    if isinstance(op, While):
        return UsageError(
            "`while` has no reverse derivative: how many values it would keep is not known",
            hint="loop with `scan`, whose number of steps is known, or use `gptrs.jvp`",
        )
    if isinstance(op, CustomCall):
        return UsageError(
            f"the kernel `{op.target}` has no derivative",
            hint="give one with `gptrs.custom_vjp`, or use a composite, which has that of its body",
        )
    types = ", ".join(str(value.type) for value in instruction.operands)
    return UsageError(
        f"`{op.name}` of {types} has no derivative",
        hint="pass its operand through `F.stop_gradient`, or give it one with `gptrs.custom_vjp`",
    )
