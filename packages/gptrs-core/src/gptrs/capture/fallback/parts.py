"""The compiled parts of a program, run on a backend and its fallback, and loops around parts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend, BoundInputs, Buffer, Executable, InputRole
from gptrs.backend.specialized_programs import SpecializedPrograms
from gptrs.capture import ports
from gptrs.capture.backend_calls import compiled, compiled_symbolic
from gptrs.capture.events import ProgramPart
from gptrs.capture.fallback.copies import Sides, TwoSided, dropped
from gptrs.capture.fallback.host_loops import HostLoop
from gptrs.capture.fallback.partition import Partition, loop_of, partition, whole
from gptrs.capture.streaming.segments import Segment
from gptrs.ir.ops.control_flow import Cond, Scan
from gptrs.ir.program import Program, Value
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.specialize import symbol_sources, symbols
from gptrs.ir.symbolic_dim import evaluated
from gptrs.ir.tensor_type import TensorType


def compiled_whole(
    backend: Backend, program: Program, roles: Sequence[InputRole], guards: SizeGuards | None
) -> Executable:
    """Compile with one backend; it must have symbols if the program has."""
    if guards is None or not symbols(program):
        return compiled(backend, program, roles)
    return compiled_symbolic(backend, program, roles, guards)


class Compiler(Struct, frozen=True):
    """Compiles parts for a backend and its fallback; `guards` are those of symbolic dims.

    `elsewhere` compiles a program for a fallback, which may have a fallback of its own.
    """

    home: Backend
    other: Backend
    guards: SizeGuards | None
    elsewhere: Callable[[Backend, Program, Sequence[InputRole], SizeGuards | None], Executable]

    def partition(self, program: Program, roles: Sequence[InputRole]) -> Partition:
        """Return how a region of a loop is cut; it may be one part."""
        with nullcontext() if self.guards is None else deciding(self.guards):
            sizes = {} if self.guards is None else self.guards.example
            found = partition(program, roles, self.home, self.other, sizes)
        return found or whole(program, roles)

    def loop(self, segment: Segment) -> HostLoop:
        """Return the loop or branch that is a part."""
        with nullcontext() if self.guards is None else deciding(self.guards):
            return loop_of(segment)

    def at_home(self, program: Program, roles: Sequence[InputRole]) -> Executable:
        """Compile a part that the backend runs."""
        return compiled_whole(self.home, program, roles, self.guards)

    def on_fallback(
        self, program: Program, roles: Sequence[InputRole]
    ) -> tuple[Program, Executable]:
        """Compile a part with the fallback, after its own passes; it may lack symbols."""
        open_dims = self.guards is not None and bool(symbols(program))
        with deciding(self.guards) if self.guards is not None and open_dims else nullcontext():
            optimized = ports.optimize(program, self.other, None, False, None).program
        if not open_dims:
            return optimized, self.elsewhere(self.other, optimized, roles, None)
        if self.other.symbolic:
            return optimized, self.elsewhere(self.other, optimized, roles, self.guards)
        return optimized, SpecializedPrograms(optimized, partial(self._specialized, roles))

    def _specialized(self, roles: Sequence[InputRole], program: Program) -> tuple[int, Executable]:
        return 0, self.elsewhere(self.other, program, roles, None)


class Step(Struct, frozen=True):
    """A compiled part."""

    executable: Executable
    segment: Segment
    program: Program
    """As its backend got it."""
    backend: Backend
    home: bool
    """Whether it runs on the backend that refused a part of the program."""


class LoopStep(Struct, frozen=True):
    """A loop or branch that the host runs: the parts of each region."""

    segment: Segment
    loop: HostLoop
    parts: tuple[Parts, ...]


Call: TypeAlias = Callable[
    [Step, Sequence[Buffer], "BoundInputs | None", "Sequence[int | None]"], "list[Buffer]"
]
"""Runs a part on its inputs and the bound ones; for each of both, the number of that input of the
whole program, if it is one."""


class Way(Struct, frozen=True):
    """How parts run: on which backends, by which call, with which bound weights."""

    sides: Sides
    call: Call
    bound: BoundInputs | None = None


class Parts:
    """A program whose parts run on two backends in turn, or on one.

    A value is copied to the other side when a part there first reads it. It keeps nothing between
    runs but the copies of bound weights.
    """

    def __init__(self, found: Partition, compiler: Compiler) -> None:
        self._pieces = found.pieces
        self.steps = [
            _compiled(segment, home, compiler)
            for segment, home in zip(found.pieces.parts, found.home, strict=True)
        ]
        self._bound: weakref.WeakKeyDictionary[BoundInputs, list[BoundInputs | None]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def nbytes(self) -> int:
        """The bytes that the parts own."""
        return sum(
            step.executable.nbytes
            if isinstance(step, Step)
            else sum(each.nbytes for each in step.parts)
            for step in self.steps
        )

    def run(self, inputs: list[TwoSided], way: Way, held: Collection[int] = ()) -> list[TwoSided]:
        """Run the parts; results on the side that made them.

        `held` are the inputs that belong to the bound ones. Values that are donated are not kept by
        the list `inputs`, which is emptied.
        """
        values: list[TwoSided | None] = [*inputs, *[None] * (self._pieces.count - len(inputs))]
        inputs.clear()
        bound = self._bound_parts(values, way, held)
        for step, weights in zip(self.steps, bound, strict=True):
            segment = step.segment
            if isinstance(step, LoopStep):
                results = _run_loop(step, values, way, held)
            else:
                results = _run_step(step, values, way, weights)
                dropped(values, segment.dying)
            for number, value in zip(segment.outputs, results, strict=True):
                values[number] = value
            del results  # what has died is freed before the next part runs
        return [_there(values[number]) for number in self._pieces.results]

    def told(
        self,
        sides: Sequence[frozenset[bool]],
        lasting: Collection[int] = (),
        inside: tuple[str, ...] = (),
    ) -> list[ProgramPart]:
        """Return the parts in the order in which they run, those inside a loop each once.

        `sides` tells on which of the two each input is; `lasting` are those that no step of the
        loop changes.
        """
        there = [*map(set, sides), *(set[bool]() for _ in range(self._pieces.count - len(sides)))]
        found: list[ProgramPart] = []
        for step in self.steps:
            segment = step.segment
            if isinstance(step, LoopStep):
                found += _told_loop(step, there, inside)
                made = _sides_of_results(step)
            else:
                made = [{step.home}] * len(segment.outputs)
                params = segment.program.main.body.params
                types: dict[bool, list[TensorType]] = {True: [], False: []}
                for param, number in zip(params, segment.inputs, strict=True):
                    if step.home not in there[number]:
                        types[number in lasting].append(param.type)
                        there[number].add(step.home)
                copied, once = tuple(types[False]), tuple(types[True])
                told = ProgramPart(step.backend.name, step.program, copied, inside, once)
                found.append(told)
            for number, side in zip(segment.outputs, made, strict=True):
                there[number] = set(side)
        return found

    def sides_of_results(self) -> list[set[bool]]:
        """Return on which sides each result is made; on both for an input or result of a loop."""
        makers = {
            number: {step.home} if isinstance(step, Step) else {True, False}
            for step in self.steps
            for number in step.segment.outputs
        }
        return [makers.get(number, {True, False}) for number in self._pieces.results]

    def _bound_parts(
        self, values: Sequence[TwoSided | None], way: Way, held: Collection[int]
    ) -> list[BoundInputs | None]:
        """Return the weights of each part, copied to its backend, once for each `BoundInputs`."""
        if way.bound is None or not held:
            return [None] * len(self.steps)
        found = self._bound.get(way.bound)
        if found is None:
            found = [
                _bound_part(step, values, way, held) if isinstance(step, Step) else None
                for step in self.steps
            ]
            self._bound[way.bound] = found
        return found


def _compiled(segment: Segment, home: bool | None, compiler: Compiler) -> Step | LoopStep:
    program, roles = segment.program, segment.roles
    if home is None:
        loop = compiler.loop(segment)
        parts = [
            Parts(compiler.partition(each.program, each.roles), compiler) for each in loop.inner
        ]
        return LoopStep(segment, loop, tuple(parts))
    if home:
        made = compiler.at_home(program, roles)
        return Step(made, segment, program, compiler.home, True)
    optimized, made = compiler.on_fallback(program, roles)
    return Step(made, segment, optimized, compiler.other, False)


def _bound_part(
    step: Step, values: Sequence[TwoSided | None], way: Way, held: Collection[int]
) -> BoundInputs | None:
    numbers: list[int] = []
    for number in reversed(step.segment.inputs):
        if number not in held or not _there(values[number]).weight:
            break
        numbers.insert(0, number)
    if not numbers:
        return None
    return BoundInputs(way.sides.at(_there(values[each]), step.home, False) for each in numbers)


def _run_step(
    step: Step, values: Sequence[TwoSided | None], way: Way, weights: BoundInputs | None
) -> list[TwoSided]:
    segment = step.segment
    count = len(segment.inputs) - (0 if weights is None else len(weights.buffers))
    given = [
        way.sides.at(_there(values[number]), step.home, role is InputRole.DONATED)
        for number, role in zip(segment.inputs[:count], segment.roles, strict=False)
    ]
    sources = [_there(values[number]).source for number in segment.inputs]
    results = way.call(step, given, weights, sources)
    return [TwoSided(home=each) if step.home else TwoSided(other=each) for each in results]


def _changed(loop: HostLoop) -> set[int]:
    return {slot for each in loop.inner for slot in each.outputs}


def _told_loop(
    step: LoopStep, there: Sequence[set[bool]], inside: tuple[str, ...]
) -> list[ProgramPart]:
    both = frozenset({True, False})
    made = _sides_of_slots(step)
    order = _order(step)
    found: list[ProgramPart] = []
    for inner, parts in zip(step.loop.inner, step.parts, strict=True):
        # In the first step what a loop changes may be elsewhere; all others find it where the
        # step before has made it. What the host makes is a few bytes.
        sides = [
            frozenset(made[slot])
            if slot in made and not isinstance(step.loop.op, Cond)
            else frozenset(there[order[slot]])
            if slot < len(order)
            else both
            for slot in inner.inputs
        ]
        lasting = {
            at
            for at, slot in enumerate(inner.inputs)
            if slot not in made and not isinstance(step.loop.op, Cond)
        }
        found += parts.told(sides, lasting, (*inside, inner.name))
    return found


def _sides_of_slots(step: LoopStep) -> dict[int, set[bool]]:
    """Return on which sides what a loop changes is after a step."""
    found: dict[int, set[bool]] = {}
    for inner, parts in zip(step.loop.inner, step.parts, strict=True):
        for slot, sides in zip(inner.outputs, parts.sides_of_results(), strict=False):
            found[slot] = sides & found.get(slot, sides)
    return found


def _sides_of_results(step: LoopStep) -> list[set[bool]]:
    made = _sides_of_slots(step)
    (loop,) = step.segment.program.main.body.instructions
    wanted = set(step.segment.program.main.body.results)
    return [
        made.get(slot, {True, False})
        for slot, result in zip(step.loop.results, loop.results, strict=True)
        if result in wanted
    ]


def _order(step: LoopStep) -> list[int]:
    """Return the numbers of the values in the first slots: operands, then those that tell sizes."""
    segment = step.segment
    (made,) = segment.program.main.body.instructions
    params = segment.program.main.body.params
    numbers = dict(zip(params, segment.inputs, strict=True))
    tellers = [param for param in params if param not in made.operands]
    return [numbers[value] for value in (*made.operands, *tellers)]


def _there(value: TwoSided | None) -> TwoSided:
    assert value is not None, "a value is not dropped before its last use"
    return value


class _Slots:
    """The values of a loop, and how its regions run on them."""

    def __init__(self, step: LoopStep, values: list[TwoSided], way: Way, held: Collection[int]):
        self.step, self.way = step, way
        self.values = values
        self._held = [
            {at for at, slot in enumerate(each.inputs) if slot in held} for each in step.loop.inner
        ]

    def run(self, region: int) -> list[TwoSided]:
        """Run a region, whose results replace values; return those of a condition."""
        inner = self.step.loop.inner[region]
        given = [self.values[slot] for slot in inner.inputs]
        # Nothing else may keep what is overwritten, so that its memory is freed in time.
        for slot in inner.outputs:
            self.values[slot] = TwoSided()
        found = self.step.parts[region].run(given, self.way, self._held[region])
        for slot, value in zip(inner.outputs, found, strict=False):
            self.values[slot] = value
        return found

    def holds(self, value: TwoSided) -> bool:
        """Return whether a predicate is true."""
        return bool(self.way.sides.read(value))


def _run_loop(
    step: LoopStep, values: list[TwoSided | None], way: Way, held: Collection[int]
) -> list[TwoSided]:
    """Run a loop or branch; return the results that its segment has."""
    segment, loop, sides = step.segment, step.loop, way.sides
    order = _order(step)
    given = [_there(values[number]) for number in order]
    given += [TwoSided() for _ in range(len(loop.types) - len(given))]
    dropped(values, segment.dying)
    for slot in loop.owned:
        given[slot] = sides.fresh(given[slot])
    slots = _Slots(step, given, way, {at for at, number in enumerate(order) if number in held})
    del given
    match loop.op:
        case Cond():
            slots.run(0 if slots.holds(slots.values[0]) else 1)
        case Scan() as op:
            _run_scan(loop, slots, backwards=op.reverse)
        case _:
            while slots.holds(slots.run(0)[0]):
                slots.run(1)
    changed = _changed(loop)
    (made,) = segment.program.main.body.instructions
    wanted = set(segment.program.main.body.results)
    return [
        # What no step changes is still the value of somebody else.
        slots.values[slot] if slot in changed else sides.fresh(slots.values[slot])
        for slot, result in zip(loop.results, made.results, strict=True)
        if result in wanted
    ]


def _run_scan(loop: HostLoop, slots: _Slots, *, backwards: bool) -> None:
    given = [Value(type_) for type_ in loop.types[: loop.number]]
    sizes = {
        symbol: slots.values[at].shape[axis] for symbol, (at, axis) in symbol_sources(given).items()
    }
    count = evaluated(loop.steps, sizes)
    for slot in loop.stacks:
        shape = [evaluated(dim, sizes) for dim in loop.types[slot].shape]
        slots.values[slot] = TwoSided(array=np.zeros(shape, loop.types[slot].dtype.numpy))
    for number in range(count):
        at = count - 1 - number if backwards else number
        slots.values[loop.number] = TwoSided(array=np.array(at))
        for rank, slot in loop.starts.items():
            slots.values[slot] = TwoSided(array=np.array([at, *[0] * (rank - 1)]))
        slots.run(0)
