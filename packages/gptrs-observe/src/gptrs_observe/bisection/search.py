"""The search for the fewest instructions of a program on which two sides disagree.

Halves of the program run on the inputs that the trusted side computes for them, so errors do not
add up, and the earlier half comes first. Where only both halves together differ, as when a fusion
is to blame, the window shrinks from both ends. At last single instructions are taken out (Zeller
and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).

A backend that computes a composite by a kernel of its own may be wrong there although the results
of the program agree: a norm hides a wrong scale. So each composite is also run by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from msgspec import Struct

from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.custom_call import Composite, CustomCall
from gptrs.ir.printer import print_instruction
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.optimizer.pipeline import (
    CANONICALIZATION,
    FOLDINGS,
    SPECIALIZATION,
    SPECIALIZATIONS,
)
from gptrs.quoting import quoted
from gptrs_observe.bisection.sides import Here, Side, SideError
from gptrs_observe.bisection.values import (
    Difference,
    difference,
    value_names,
)
from gptrs_observe.bisection.windows import Window, opened

_NOISE: Final = 64.0
"""How often the effect of a rounding error in the inputs is allowed: a hundred roundings of a sum
or a product seldom add up to more."""
_UNIT: Final = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
_FEW: Final = 24
"""A window of at most so many instructions is reduced one by one."""

Progress = Callable[[str], None]


class Trusted(Protocol):
    """Where the values come from that are taken for right."""

    def values(self, program: Program, wanted: Sequence[Value]) -> list[np.ndarray]:
        """Return the arrays of values of `@main`."""
        ...

    def noise(self, window: Window, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return how far results of a window move with roundings of its inputs; None: unknown."""
        ...


class TrustedSide:
    """Values that a side computes, for one set of inputs."""

    def __init__(self, side: Side, inputs: Mapping[str, np.ndarray]) -> None:
        self.side = side
        self._inputs = inputs

    def values(self, program: Program, wanted: Sequence[Value]) -> list[np.ndarray]:
        """Return the arrays of values of `@main`; SideError if the side cannot run it."""
        named = {value: name for name, value in program.inputs.items()}
        computed = [value for value in wanted if value not in named]
        try:
            made = self.side.run(_with_results(program, computed), self._inputs) if computed else []
        except SideError as error:
            problem = f"{quoted(self.side.name)} is trusted, but cannot run the program: {error}"
            raise SideError(problem, hint=_own_calls(program)) from error
        found = dict(zip(computed, made, strict=True))
        return [
            np.asarray(self._inputs[named[value]]) if value in named else found[value]
            for value in wanted
        ]

    def noise(self, window: Window, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return `_NOISE` times the change of each result when all floats are rounded once more."""
        # A fixed seed: the same search must lead to the same fault again.
        rng = np.random.default_rng(0)
        moved = [
            _moved(array, value, rng) for array, value in zip(arrays, window.reads, strict=True)
        ]
        try:
            # Computed again, not taken from the whole program: there, another fusion may round
            # otherwise.
            exact = self.side.run(window.program, _named(arrays))
            changed = self.side.run(window.program, _named(moved))
        except SideError:
            return None
        return [
            _NOISE * np.abs(a.astype(np.complex128) - b.astype(np.complex128))
            for a, b in zip(changed, exact, strict=True)
        ]


class TrustedFile:
    """Values that were recorded elsewhere, by their names in the text of the program."""

    def __init__(self, arrays: Mapping[Value, np.ndarray]) -> None:
        self._arrays = arrays

    def values(self, program: Program, wanted: Sequence[Value]) -> list[np.ndarray]:
        """Return the arrays of values of `@main`."""
        return [self._arrays[value] for value in wanted]

    def noise(self, window: Window, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return None: nothing can be computed."""
        return None


class Fault(Struct, frozen=True, kw_only=True):
    """The result of a search: a small program on which the suspect is wrong.

    `program` takes `inputs` in order and should give `expected`; `result` is the number of the one
    that is worst. `instructions` are those of the whole program, as its text has them, and `number`
    is the number of the first of them in `@main`, from 0; `inside` are those of `program`, if it is
    a part of what these call. `problem` is what the suspect said when
    it could not run the program. `passes` are those to blame, and `claims` the kinds of composites
    that the suspect computes by kernels of its own: without one of them it is right.
    """

    program: Program
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    instructions: list[str]
    number: int
    inside: list[str] = []
    result: int = 0
    difference: Difference | None = None
    problem: str | None = None
    passes: list[str] = []
    claims: list[str] = []
    tried: int = 0


class _Outcome(Struct, frozen=True):
    window: Window
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    result: int
    difference: Difference | None
    problem: str | None


class Search:
    """A search in a program whose sizes are all known.

    `tolerance` is as in `difference`; `progress` is told what is tried.
    """

    def __init__(
        self,
        program: Program,
        suspect: Side,
        trusted: Trusted,
        tolerance: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._program = program
        self._suspect = suspect
        self._trusted = trusted
        self._tolerance = tolerance
        self._progress: Progress = progress or _unheard
        self._known: dict[Value, np.ndarray] = {}
        self._tried = 0

    def find(self) -> Fault | None:
        """Return the smallest fault that the search leads to; None if the sides agree.

        SideError if the trusted side cannot run the program.
        """
        count = len(self._program.main.body.instructions)
        whole = self._try(range(count))
        if whole is None:
            return self._hidden()
        chosen, outcome = self._halved(list(range(count)), whole)
        chosen, outcome = self._reduced(chosen, outcome)
        return self._fault(chosen, self._within(outcome.window.program, outcome.inputs) or outcome)

    def _fault(self, chosen: Sequence[int], found: Fault | _Outcome) -> Fault:
        """Return the fault in instructions of `@main`; `found` may be one inside of them."""
        names = value_names(self._program)
        made = self._program.main.body.instructions
        fault = (
            found
            if isinstance(found, Fault)
            else Fault(
                program=found.window.program,
                inputs=found.inputs,
                expected=found.expected,
                instructions=[],
                number=0,
                result=found.result,
                difference=found.difference,
                problem=found.problem,
            )
        )
        claims = fault.claims or self._claims(fault)
        return Fault(
            program=fault.program,
            inputs=fault.inputs,
            expected=fault.expected,
            instructions=[print_instruction(made[each], names) for each in chosen],
            number=chosen[0],
            inside=_texts(fault.program) if isinstance(found, Fault) else [],
            result=fault.result,
            difference=fault.difference,
            problem=fault.problem,
            passes=fault.passes or ([] if claims else self._passes(fault)),
            claims=claims,
            tried=self._tried,
        )

    def _hidden(self) -> Fault | None:
        """Return the first composite that is wrong, though the program has the right results.

        All of them run in one program, each on the values of the trusted side.
        """
        instructions = self._program.main.body.instructions
        numbers = [
            n for n, made in enumerate(instructions) if isinstance(made.op, Call | Composite)
        ]
        wrong = self._try(numbers, apart=True) if numbers else None
        for number in numbers:
            if _holds_composites(self._program, instructions[number]):
                window = Window(self._program, [number])
                found = self._within(window.program, self._values(window.reads))
                if found is not None:
                    return self._fault([number], found)
            outcome = None if wrong is None else self._try([number])
            if outcome is not None:
                return self._fault([number], outcome)
        return None

    def _try(self, chosen: Collection[int], *, apart: bool = False) -> _Outcome | None:
        """Run a window on the suspect; None if it gives what the trusted side does."""
        window = Window(self._program, chosen, apart=apart)
        # Nothing outside reads what it computes, so that there is nothing to compare.
        if not window.gives:
            return None
        self._tried += 1
        self._progress(f"trying {window.count} instructions, {self._tried} tried")
        values = self._values([*window.reads, *window.gives])
        inputs, expected = values[: len(window.reads)], values[len(window.reads) :]
        try:
            found = self._suspect.run(window.program, _named(inputs))
        except SideError as error:
            return _Outcome(window, inputs, expected, 0, None, str(error))
        # The noise costs two more runs, so it is asked for only after a difference.
        if not any(self._differences(window, found, expected, None)):
            return None
        noise = self._trusted.noise(window, inputs)
        differences = self._differences(window, found, expected, noise)
        for number, each in enumerate(differences):
            if each is not None:
                return _Outcome(window, inputs, expected, number, each, None)
        return None

    def _differences(
        self,
        window: Window,
        found: Sequence[np.ndarray],
        expected: Sequence[np.ndarray],
        noise: Sequence[np.ndarray] | None,
    ) -> list[Difference | None]:
        return [
            difference(
                found[number],
                expected[number],
                value.type.dtype.name,
                self._tolerance,
                None if noise is None else noise[number],
            )
            for number, value in enumerate(window.gives)
        ]

    def _values(self, wanted: Sequence[Value]) -> list[np.ndarray]:
        missing = [value for value in dict.fromkeys(wanted) if value not in self._known]
        if missing:
            made = self._trusted.values(self._program, missing)
            self._known.update(zip(missing, made, strict=True))
        return [self._known[value] for value in wanted]

    def _halved(self, chosen: list[int], outcome: _Outcome) -> tuple[list[int], _Outcome]:
        while len(chosen) > 1:
            middle = len(chosen) // 2
            # The earlier half first: a later difference may only follow from an earlier one.
            for half in (chosen[:middle], chosen[middle:]):
                found = self._try(half)
                if found is not None:
                    chosen, outcome = half, found
                    break
            else:
                return self._trimmed(chosen, outcome)
        return chosen, outcome

    def _trimmed(self, chosen: list[int], outcome: _Outcome) -> tuple[list[int], _Outcome]:
        """Shorten a window that is wrong only as a whole, from its end and from its start."""
        for at_end in (True, False):
            step = len(chosen) // 2
            while step:
                shorter = chosen[:-step] if at_end else chosen[step:]
                found = self._try(shorter) if shorter else None
                if found is None:
                    step //= 2
                else:
                    chosen, outcome = shorter, found
                    step = min(step, len(chosen) // 2)
        return chosen, outcome

    def _reduced(self, chosen: list[int], outcome: _Outcome) -> tuple[list[int], _Outcome]:
        """Take out instructions, in ever smaller groups, as long as the rest is wrong."""
        size = max(len(chosen) // 4, 1) if len(chosen) > _FEW else 1
        while True:
            start, before = 0, len(chosen)
            while start < len(chosen) and len(chosen) > 1:
                rest = chosen[:start] + chosen[start + size :]
                found = self._try(rest) if rest else None
                if found is None:
                    start += size
                else:
                    chosen, outcome = rest, found
            # At single instructions, once a whole pass takes out none: the order of removals
            # matters, and an earlier one may have become superfluous.
            if size == 1 and len(chosen) in (before, 1):
                return chosen, outcome
            size = max(size // 2, 1)

    def _within(self, program: Program, inputs: Sequence[np.ndarray]) -> Fault | None:
        """Search inside the calls and composites of a window; None if that leads to nothing."""
        inner = opened(program)
        # A file has no values of what happens inside a call.
        if inner is None or not isinstance(self._trusted, TrustedSide):
            return None
        trusted = TrustedSide(self._trusted.side, _named(inputs))
        search = Search(inner, self._suspect, trusted, self._tolerance, self._progress)
        fault = search.find()
        self._tried += search._tried
        return fault

    def _claims(self, fault: Fault) -> list[str]:
        """Return the claims to blame: if one of them is not made, the suspect is right."""
        suspect = self._suspect
        if not isinstance(suspect, Here) or not suspect.optimizer:
            return []
        walked = (made.op for each in fault.program.functions for made in each.body.walk())
        kinds = dict.fromkeys(op.kind for op in walked if isinstance(op, Composite))
        return [kind for kind in kinds if self._right(suspect.leaving_out(kind), fault)]

    def _passes(self, fault: Fault) -> list[str]:
        """Return the passes to blame: without one of them the suspect is right."""
        suspect = self._suspect
        # Passes can be left out in this process only.
        if not isinstance(suspect, Here) or not suspect.optimizer:
            return []
        if not self._right(suspect.leaving_out(None), fault):
            return []  # the backend itself is wrong, whatever the optimizer does
        applied = suspect.passes_applied(fault.program)
        blamed = [name for name in applied if self._right(suspect.leaving_out(name), fault)]
        if {CANONICALIZATION.name, SPECIALIZATION.name} & set(applied):
            # These passes are made of many rewritings, which can be left out one by one.
            parts = [each.name for each in (*FOLDINGS, *SPECIALIZATIONS)]
            blamed += [name for name in parts if self._right(suspect.leaving_out(name), fault)]
        return blamed

    def _right(self, side: Side, fault: Fault) -> bool:
        self._progress(f"trying {side.name}")
        try:
            found = side.run(fault.program, _named(fault.inputs))
        # No estimate of the noise is no reason to stop: the tolerance by type then decides alone.
        except SideError:
            return False
        return not any(
            difference(array, wanted, value.type.dtype.name, self._tolerance)
            for array, wanted, value in zip(
                found, fault.expected, fault.program.main.body.results, strict=True
            )
        )


def _own_calls(program: Program) -> str | None:
    """Return what to do about a program that only the backend runs which optimized it."""
    if not any(isinstance(made.op, CustomCall) for made in program.main.body.walk()):
        return None
    return "it has calls of one backend; in a dump, `program.ptir` beside it has none"


def _texts(program: Program) -> list[str]:
    names = value_names(program)
    return [print_instruction(made, names) for made in program.main.body.instructions]


def _holds_composites(program: Program, made: Instruction) -> bool:
    """Return whether a call or composite has composites inside, which a backend may claim."""
    bodies = (program.function(name).body for name in made.op.callees())
    inner = [each for body in bodies for each in body.walk()]
    return any(isinstance(each.op, Composite) or _holds_composites(program, each) for each in inner)


def _unheard(_: str) -> None:
    pass


def _named(arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs of the program of a window by the names of its parameters."""
    return {f"v{number}": array for number, array in enumerate(arrays)}


def _with_results(program: Program, results: Sequence[Value]) -> Program:
    body = program.main.body
    main = Function("main", Region(body.params, body.instructions, tuple(results)))
    return Program((*(each for each in program.functions if each.name != "main"), main))


def _moved(array: np.ndarray, value: Value, rng: np.random.Generator) -> np.ndarray:
    """Return an array with each float one unit in the last place larger or smaller."""
    unit = _UNIT.get(value.type.dtype.name)
    if unit is None:
        return array
    # Random signs, since errors of one sign would all add up.
    signs = rng.integers(0, 2, array.shape) * 2 - 1
    # In f64: `1 + unit` is 1 in the narrow types themselves.
    wide = array.astype(np.float64)
    return (wide * (1 + unit * signs)).astype(array.dtype)
