"""The walk over a program that calls the lowering of each instruction, while JAX records them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.api.programs import Instruction, Op, Program, Region, TensorType, Value, ops
from gptrs_backend_jax import lowering
from gptrs_backend_jax.element_types import held
from gptrs_backend_jax.lowering import Arrays, LoweringContext
from gptrs_backend_jax.lowerings import TABLE

# Instructions without axes of size 1: on CPUs XLA writes in place only where shapes are equal.
#
# A product of XLA has only its own axes; the shapes of PTIR also have the heads of a group, often
# 1. So a bitcast was between the two, and the softmax of a prompt of GPT-2 124M took a third
# longer.


BroadcastTo = ops.layout.BroadcastTo
Reduce = ops.reduction.Reduce
_ELEMENTWISE = tuple(
    each
    for each in vars(ops.elementwise).values()
    if isinstance(each, type) and issubclass(each, Op) and each is not Op
)


class Squeezed(Struct, frozen=True):
    """An instruction on arrays without axes of size 1; `restored` adds those of results again."""

    op: Op
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    given: Arrays


def squeezed(instruction: Instruction, given: Arrays) -> Squeezed | None:
    """Return an instruction without axes of size 1, None if it has no such axes or needs them."""
    op = instruction.op
    operands = tuple(value.type for value in instruction.operands)
    results = tuple(value.type for value in instruction.results)
    if isinstance(op, _ELEMENTWISE):
        shape = results[0].shape
        if 1 not in shape or any(each.shape != shape for each in (*operands, *results)):
            return None
        shapes = [_kept(shape)] * len(operands)
        return _made(op, operands, shapes, [_typed(each, shapes[0]) for each in results], given)
    if isinstance(op, BroadcastTo) and 1 in op.shape:
        source = (1,) * (len(op.shape) - operands[0].rank) + tuple(operands[0].shape)
        shape = tuple(dim for dim, of in zip(source, op.shape, strict=True) if of != 1)
        target = _kept(op.shape)
        changed = replace(op, shape=target)
        return _made(changed, operands, [shape], [_typed(results[0], target)], given)
    if isinstance(op, Reduce) and 1 in operands[0].shape:
        return _reduced(op, operands, results[0], given)
    return None


def restored(instruction: Instruction, arrays: Arrays) -> Arrays:
    """Return the results of a squeezed instruction in the shapes of the whole one."""
    return tuple(
        lax.reshape(x, value.type.shape)
        for x, value in zip(arrays, instruction.results, strict=True)
    )


def _reduced(
    op: Reduce, operands: tuple[TensorType, ...], result: TensorType, given: Arrays
) -> Squeezed:
    shape = operands[0].shape
    kept = [axis for axis, dim in enumerate(shape) if dim != 1]
    axes = tuple(kept.index(axis) for axis in op.axes if shape[axis] != 1)
    left = tuple(shape[axis] for axis in kept if axis not in op.axes)
    changed = replace(op, axes=axes, keepdims=False)
    return _made(changed, operands, [_kept(shape)], [_typed(result, left)], given)


def _made(
    op: Op,
    operands: Sequence[TensorType],
    shapes: Sequence[tuple[int, ...]],
    results: Sequence[TensorType],
    given: Sequence[Array],
) -> Squeezed:
    types = tuple(_typed(each, shape) for each, shape in zip(operands, shapes, strict=True))
    arrays = [lax.reshape(x, shape) for x, shape in zip(given, shapes, strict=True)]
    return Squeezed(op, types, tuple(results), arrays)


def _kept(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(dim for dim in shape if dim != 1)


def _typed(like: TensorType, shape: tuple[int, ...]) -> TensorType:
    return TensorType(like.dtype, shape)


Failure = Array
"""The first error so far, si64 [2]: its number from 1 on, 0 for no error, and the value it names.
"""
Carried = tuple[Failure, tuple[Array, ...]]
_LAYOUT = (ops.layout.Reshape, ops.layout.BroadcastTo)
_MAKERS = (
    *(*_LAYOUT, ops.layout.Transpose, ops.creation.Constant),
    *(ops.indexing.Take, ops.elementwise.Select),
)


class Message(Struct, frozen=True):
    """The text of an error, with `{}` for the value that it names."""

    text: str
    is_unsigned: bool

    def about(self, value: int) -> str:
        """Return the text for a value that came as si64."""
        return self.text.format(value % 2**64 if self.is_unsigned else value)


class ProgramWalk(Struct):
    """One recording of a program. `messages` has the texts of its errors, by number from 1 on."""

    program: Program
    for_one_cpu: bool = False
    """See `Walk`."""
    messages: list[Message] = field(default_factory=list[Message])
    failure: Failure = field(default_factory=lambda: no_failure())
    _makers: dict[Value, tuple[Instruction, Arrays]] = field(
        default_factory=dict[Value, tuple[Instruction, Arrays]]
    )
    """The instruction and the operands of each value that one of `_MAKERS` made."""
    _recorded: dict[Hashable, tuple[Arrays, Arrays]] = field(
        default_factory=dict[Hashable, tuple[Arrays, Arrays]]
    )
    """Operands and results of each instruction, by its op and the identities of its operands."""

    def region(self, region: Region, inputs: Arrays) -> tuple[Array, ...]:
        """Record the instructions of a region on held arrays; return its held results."""
        values = dict(zip(region.params, inputs, strict=True))
        for instruction in region.instructions:
            given = [values[x] for x in instruction.operands]
            if isinstance(instruction.op, _MAKERS):
                self._makers[instruction.result] = instruction, given
            call = partial(self._lowered, instruction)
            # The results of a region depend on more than the operands.
            arrays = (
                call(*given) if instruction.regions else self._once(instruction.op, call, given)
            )
            values.update(zip(instruction.results, arrays, strict=True))
        return tuple(values[value] for value in region.results)

    def _lowered(self, instruction: Instruction, *given: Array) -> Arrays:
        operands = tuple(value.type for value in instruction.operands)
        results = tuple(value.type for value in instruction.results)
        lowering = TABLE.find(instruction.op, operands, results)
        assert lowering is not None, "`require_supported` has found one"
        flat = squeezed(instruction, given) if self.for_one_cpu else None
        if flat is None:
            ctx = LoweringContext(instruction, operands, results, self)
            return _all(lowering(instruction.op, ctx, *given))
        ctx = LoweringContext(instruction, flat.operands, flat.results, self)
        return restored(instruction, _all(lowering(flat.op, ctx, *flat.given)))

    def _once(self, what: Hashable, call: Callable[..., Arrays], given: Arrays) -> Arrays:
        """Return the result of `call`, traced once for the same arrays, as are its checks.

        The layers of a model look up the same rows of the same table, and XLA would repeat the
        check, since each check has its own error.
        """
        key = (what, *map(id, given))
        found = self._recorded.get(key)
        if found is None:
            # The operands are kept, so that no other array gets their identity.
            found = self._recorded[key] = (given, call(*given))
        return found[1]

    def maker(self, value: Value) -> tuple[Instruction, Arrays] | None:
        """Return the instruction that made `value` and its operands, if it is one of `_MAKERS`."""
        return self._makers.get(value)

    def repeats_rows(self, indices: Value) -> bool:
        """Whether `indices` is known to have one number in each row: a vector that was repeated."""
        shape = indices.type.shape
        source: Value | None = indices
        while source is not None:
            if source.type.size == shape[0]:
                return len(shape) > 1 and self._keeps_rows(indices, source)
            source = self._laid_out(source)
        return False

    def _laid_out(self, value: Value) -> Value | None:
        """Return the operand of the reshape or broadcast behind `value`, None for others."""
        made = self._makers.get(value)
        return made[0].operands[0] if made and isinstance(made[0].op, _LAYOUT) else None

    def _keeps_rows(self, indices: Value, source: Value) -> bool:
        """Return whether each step from `source` to `indices` repeats along trailing axes only."""
        value = indices
        while value is not source:
            before = self._makers[value][0].operands[0]
            old, new = before.type.shape, value.type.shape
            if old != new and before.type.size != value.type.size:
                leading = len(new) - 1
                if len(old) != len(new) or old[:leading] != new[:leading]:
                    return False
            value = before
        return True

    def check(self, is_bad: Array, values: Array, message: str) -> None:
        """Make the run fail where any of `is_bad` holds; `{}` in `message` is the value there.

        What is bad follows from the message and the values: the same ones are checked once.
        """
        key = (message, id(values))
        if not is_bad.size or key in self._recorded:
            return
        self._recorded[key] = ((values,), ())
        is_unsigned = np.issubdtype(values.dtype, np.unsignedinteger)
        self.messages.append(Message(message, is_unsigned))
        flat = lax.reshape(is_bad, (is_bad.size,))
        first = lax.reshape(values, (values.size,))[jnp.argmax(flat)]
        found = jnp.stack(
            [
                lowering.array(len(self.messages), np.int64),
                lax.convert_element_type(first, np.int64),
            ]
        )
        is_first = jnp.any(flat) & (self.failure[0] == 0)
        self.failure = jnp.where(is_first, found, self.failure)

    def cond(self, predicate: Array, branches: Sequence[Region], operands: Arrays) -> Arrays:
        """Run the first of two regions if the predicate is true, else the second."""
        then, otherwise = (self._isolated(region) for region in branches)
        return self._reopened(
            lowering.cond(predicate, then, otherwise, (self.failure, tuple(operands)))
        )

    def loop(self, condition: Region, body: Region, state: Arrays) -> Arrays:
        """Run `body` while `condition` holds and nothing has failed.

        The condition of the next round is computed at the end of each, so that its errors count.
        """
        holds, advance = self._isolated(condition), self._isolated(body)

        def more(carried: tuple[Array, Carried]) -> Array:
            go_on, (failure, _) = carried
            return go_on & (failure[0] == 0)

        def judged(carried: Carried) -> tuple[Array, Carried]:
            failure, (go_on,) = holds(carried)
            return go_on, (failure, carried[1])

        def advanced(carried: tuple[Array, Carried]) -> tuple[Array, Carried]:
            return judged(advance(carried[1]))

        first = judged((self.failure, tuple(state)))
        _, last = lowering.while_loop(more, advanced, first)
        return self._reopened(last)

    def scan(
        self, body: Region, carried: Arrays, scanned: Arrays, length: int, reverse: bool
    ) -> Arrays:
        """Run `body` for each step; return the last carried values, then the stacked results."""
        count = len(carried)
        if length == 1:
            rows = [self._once("row", _row, [x])[0] for x in scanned]
            results = self.region(body, (*carried, *rows))
            return (*results[:count], *(x[None] for x in results[count:]))
        advance = self._isolated(body)

        def step(state: Carried, scanned: tuple[Array, ...]) -> tuple[Carried, tuple[Array, ...]]:
            failure, results = advance((state[0], (*state[1], *scanned)))
            return (failure, results[:count]), results[count:]

        first: Carried = (self.failure, tuple(carried))
        last, stacked = lowering.scan(step, first, tuple(scanned), length=length, reverse=reverse)
        return (*self._reopened(last), *stacked)

    def call(self, function: str, operands: Arrays) -> Arrays:
        """Run a function of the program."""
        return self.region(self.program.function(function).body, operands)

    def _isolated(self, region: Region) -> Callable[[Carried], Carried]:
        """Return `region` as a function of the failure so far and its inputs, for lax."""

        def run(carried: Carried) -> Carried:
            outer, self.failure = self.failure, carried[0]
            # Values traced inside are not valid outside.
            recorded, self._recorded = self._recorded, {}
            results = self.region(region, carried[1])
            inner, self.failure = self.failure, outer
            self._recorded = recorded
            return inner, results

        return run

    def _reopened(self, carried: Carried) -> tuple[Array, ...]:
        self.failure, results = carried
        return results


def _all(made: Array | Arrays) -> Arrays:
    return made if isinstance(made, Sequence) else (made,)


def _row(x: Array) -> Arrays:
    return (lax.reshape(x, x.shape[1:]),)


def no_failure() -> Failure:
    """Return the failure of a run without an error."""
    return lowering.zeros((2,), np.int64)


def entered(value: Value, x: Array) -> Array:
    """Return an input in its storage type."""
    return lax.convert_element_type(x, held(value.type.dtype))


def left(value: Value, x: Array) -> Array:
    """Return a result in the type of PTIR."""
    return lax.convert_element_type(x, value.type.dtype.numpy)
