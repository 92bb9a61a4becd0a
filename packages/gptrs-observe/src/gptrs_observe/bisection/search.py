"""The search for the fewest instructions of a program on which two sides disagree.

Halves of the program run on the inputs that the trusted side computes for them, so errors do not
add up, and the earlier half comes first. Where only both halves together differ, as when a fusion
is to blame, the window shrinks from both ends. At last single instructions are taken out (Zeller
and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).

The results of a program may agree although a part of it is wrong: a norm hides a wrong scale, a
sharp softmax all but the largest score. So each instruction is also run by itself, each composite
inside of a call, and each cast, whose wrong rounding the tolerance hides. At last values between
the instructions are compared, all of them, then those that end a chain of elementwise ops, which
one kernel may compute.

Of a loop or branch that is wrong, the regions are searched, on the values of the first step that
differs; then the loop itself, with parts of its body.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs.backend.contract import InputRole
from gptrs.ir.ops.control_flow import Scan
from gptrs.ir.ops.custom_call import Composite, CustomCall
from gptrs.ir.ops.elementwise import Cast, Row
from gptrs.ir.printer import print_instruction, print_program
from gptrs.ir.program import Function, Instruction, Program, Region, Value
from gptrs.optimizer.pipeline import (
    CANONICALIZATION,
    FOLDINGS,
    SPECIALIZATION,
    SPECIALIZATIONS,
)
from gptrs.quoting import quoted
from gptrs_observe.bisection.loops import ScanWindow, recorded_values, steps, the_loop
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
_STEPS, _PROCESS_STEPS = 2000, 8
"""So many steps of a loop are tried, and where each of them runs in a process of its own."""

Progress = Callable[[str], None]
AnyWindow = Window | ScanWindow
_NO_ROLES: Final[Mapping[str, InputRole]] = {}


class Trusted(Protocol):
    """Where the values come from that are taken for right."""

    def values(self, program: Program, wanted: Sequence[Value]) -> list[np.ndarray]:
        """Return the arrays of values of `@main`."""
        ...

    def noise(self, window: AnyWindow, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
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

    def noise(self, window: AnyWindow, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
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
        with np.errstate(invalid="ignore"):
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

    def noise(self, window: AnyWindow, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return None: nothing can be computed."""
        return None


class Fault(Struct, frozen=True, kw_only=True):
    """The result of a search: a small program on which the suspect is wrong.

    `program` takes `inputs` in order and should give `expected`; `result` is the number of the one
    that is worst. `instructions` are those of the whole program, as its text has them, and `number`
    is the number of the first of them in `@main`, from 0; `inside` are those of `program`, if it is
    a part of what these call. `problem` is what the suspect said when
    it could not run the program. `passes` are those to blame, and `claims` the kinds of composites
    that the suspect computes by kernels of its own: without one of them it is right. `roles` are
    those of the inputs; with `by_role`, the suspect is right if all of them are arguments. `call`
    is the number of the first call of the compiled program that is wrong.
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
    roles: list[InputRole] = []
    by_role: bool = False
    call: int = 1
    tried: int = 0


class _Outcome(Struct, frozen=True):
    window: AnyWindow
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    result: int
    difference: Difference | None
    problem: str | None


class Search:
    """A search in a program whose sizes are all known.

    `tolerance` is as in `difference`; `progress` is told what is tried. `roles` are those that the
    inputs have in runs of the suspect, by name: others are arguments.
    """

    def __init__(
        self,
        program: Program,
        suspect: Side,
        trusted: Trusted,
        tolerance: float | None = None,
        progress: Progress | None = None,
        roles: Mapping[str, InputRole] = _NO_ROLES,
    ) -> None:
        self._program = program
        self._suspect = suspect
        self._trusted = trusted
        self._tolerance = tolerance
        self._progress: Progress = progress or _unheard
        self._roles = {
            value: roles[name]
            for name, value in program.inputs.items()
            if roles.get(name, InputRole.ARGUMENT) is not InputRole.ARGUMENT
        }
        self._known: dict[Value, np.ndarray] = {}
        self._tried = 0

    def find(self) -> Fault | None:
        """Return the smallest fault that the search leads to; None if the sides agree.

        SideError if the trusted side cannot run the program.
        """
        found = self._whole() or self._hidden()
        if found is not None or not isinstance(self._suspect, Here):
            return found
        # What a program keeps of its first call may spoil the second.
        self._suspect = self._suspect.calling(2)
        return self._whole()

    def _whole(self, part: Sequence[int] | None = None) -> Fault | None:
        """Search in the whole program, or in a part of it; None if that is right as a whole."""
        smallest = self._smallest(part)
        if smallest is None:
            return None
        chosen, outcome = smallest
        within = self._within(outcome.window, outcome.inputs)
        return self._fault(chosen, within or outcome)

    def _smallest(self, part: Sequence[int] | None = None) -> tuple[list[int], _Outcome] | None:
        """Return the fewest instructions that are wrong together; None if all of them are right."""
        chosen = list(range(len(self._instructions)) if part is None else part)
        whole = self._try(chosen)
        return None if whole is None else self._reduced(*self._halved(chosen, whole))

    @property
    def _instructions(self) -> Sequence[Instruction]:
        return self._program.main.body.instructions

    def _window(
        self,
        chosen: Collection[int],
        *,
        apart: bool = False,
        giving: Collection[Value] = (),
    ) -> AnyWindow:
        return Window(self._program, chosen, apart=apart, giving=giving)

    def _fault(self, chosen: Sequence[int], found: Fault | _Outcome) -> Fault:
        """Return the fault in instructions of `@main`; `found` may be one inside of them."""
        if isinstance(found, _Outcome):
            fault = self._blamed(self._fault_of(found))
        else:
            fault = replace(found, inside=found.inside or _texts(found.program))
        names = value_names(self._program)
        shown = [print_instruction(self._instructions[each], names) for each in chosen]
        return replace(fault, instructions=shown, number=chosen[0], tried=self._tried)

    def _fault_of(self, found: _Outcome) -> Fault:
        return Fault(
            program=found.window.program,
            inputs=found.inputs,
            expected=found.expected,
            instructions=[],
            number=0,
            result=found.result,
            difference=found.difference,
            problem=found.problem,
            roles=[self._roles.get(value, InputRole.ARGUMENT) for value in found.window.reads],
            call=self._suspect.calls if isinstance(self._suspect, Here) else 1,
        )

    def _blamed(self, fault: Fault) -> Fault:
        """Return the fault with what is to blame for it."""
        by_role = False
        if isinstance(self._suspect, Here) and set(fault.roles) - {InputRole.ARGUMENT}:
            plain = [InputRole.ARGUMENT] * len(fault.roles)
            by_role = self._right(self._suspect, replace(fault, roles=plain))
        claims = self._claims(fault)
        passes = [] if claims else self._passes(fault)
        return replace(fault, claims=claims, passes=passes, by_role=by_role)

    def _hidden(self) -> Fault | None:
        """Return the first part that is wrong, though the program has the right results."""
        alone = self._alone()
        for number, each in enumerate(self._instructions):
            if _holds_composites(self._program, each):
                window = self._window([number])
                found = self._within(window, self._values(window.reads))
                if found is not None:
                    return self._fault([number], found)
            if alone is not None and number == alone[0]:
                found = self._within(alone[1].window, alone[1].inputs)
                return self._fault([number], found or alone[1])
        return self._hidden_cast() or self._between()

    def _alone(self) -> tuple[int, _Outcome] | None:
        """Return the first instruction that is wrong by itself.

        All of them run in one program, each on the values of the trusted side.
        """
        numbers = {v: n for n, made in enumerate(self._instructions) for v in made.results}
        left = list(range(len(self._instructions)))
        while left:
            outcome = self._try(left, apart=True)
            # A backend may lack one of the ops that its passes otherwise replace.
            if outcome is None or outcome.problem is not None:
                return None
            number = numbers[outcome.window.gives[outcome.result]]
            found = self._try([number])
            if found is not None:
                return number, found
            left = [each for each in left if each > number]
        return None

    def _between(self) -> Fault | None:
        """Return the first part that is wrong, as values show that no result depends on.

        Only floats: a comparison of nearly equal numbers may turn out either way.
        """
        made = self._instructions
        floats = {v for each in made for v in each.results if v.type.dtype.is_float}
        ends = {v for each in made if not isinstance(each.op, Row) for v in each.operands}
        for values in (floats, floats & ends):
            outcome = self._try(range(len(made)), giving=values)
            if outcome is None or outcome.problem is not None:
                continue
            found = self._whole(_sources(made, outcome.window.gives[outcome.result]))
            if found is not None:
                return found
        return None

    def _hidden_cast(self) -> Fault | None:
        """Return the first cast whose results are not exact, which those of casts have to be."""
        casts = {
            (made.operands[0].type, made.results[0].type): number
            for number, made in reversed(list(enumerate(self._instructions)))
            if isinstance(made.op, Cast)
        }
        numbers = sorted(casts.values())
        if not numbers or self._try(numbers, apart=True, exact=True) is None:
            return None
        tried = ((each, self._try([each], exact=True)) for each in numbers)
        return next((self._fault([each], found) for each, found in tried if found), None)

    def _try(
        self,
        chosen: Collection[int],
        *,
        apart: bool = False,
        giving: Collection[Value] = (),
        exact: bool = False,
    ) -> _Outcome | None:
        """Run a window on the suspect; None if it gives what the trusted side does."""
        window = self._window(chosen, apart=apart, giving=giving)
        # Nothing outside reads what it computes, so that there is nothing to compare.
        if not window.gives:
            return None
        self._tried += 1
        self._progress(f"trying {window.count} instructions, {self._tried} tried")
        values = self._values([*window.reads, *window.gives])
        inputs, expected = values[: len(window.reads)], values[len(window.reads) :]
        roles = [self._roles.get(value, InputRole.ARGUMENT) for value in window.reads]
        try:
            found = _run(self._suspect, window.program, inputs, roles)
        except SideError as error:
            return _Outcome(window, inputs, expected, 0, None, str(error))
        tolerance = 0.0 if exact else self._tolerance
        # The noise costs two more runs, so it is asked for only after a difference.
        if not any(_differences(window, found, expected, tolerance, None)):
            return None
        noise = None if exact else self._trusted.noise(window, inputs)
        differences = _differences(window, found, expected, tolerance, noise)
        for number, each in enumerate(differences):
            if each is not None:
                return _Outcome(window, inputs, expected, number, each, None)
        return None

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

    def _within(self, window: AnyWindow, inputs: Sequence[np.ndarray]) -> Fault | None:
        """Search inside the calls, composites, loops and branches of a window; None if that leads
        to nothing.
        """
        # A file has no values of what happens inside a call.
        if not isinstance(self._trusted, TrustedSide):
            return None
        inner = opened(window.program)
        if inner is None:
            return self._in_loop(window.program, inputs, self._trusted.side)
        roles = {f"v{n}": self._roles[v] for n, v in enumerate(window.reads) if v in self._roles}
        return self._inside(self._inner(inner, inputs, self._trusted.side, roles))

    def _inner(
        self,
        program: Program,
        inputs: Sequence[np.ndarray],
        side: Side,
        roles: Mapping[str, InputRole] = _NO_ROLES,
    ) -> Search:
        trusted = TrustedSide(side, _named(inputs))
        return Search(program, self._suspect, trusted, self._tolerance, self._progress, roles)

    def _inside(self, search: Search) -> Fault | None:
        # Second calls are tried for the whole program.
        fault = search._whole() or search._hidden()
        self._tried += search._tried
        return fault

    def _in_loop(self, program: Program, inputs: Sequence[np.ndarray], side: Side) -> Fault | None:
        """Search in the regions of a loop or branch, step by step, then in the loop itself."""
        loop = the_loop(program)
        if loop is None:
            return None
        here = isinstance(side, Here) and isinstance(self._suspect, Here)
        most = _STEPS if here else _PROCESS_STEPS
        seen = set[int]()
        for region, arrays in islice(steps(program, loop, inputs, side), most):
            search = self._inner(region, arrays, side)
            # What is hidden in a step is so in the first one, too.
            first, wrong = id(region) not in seen, search._try(range(len(search._instructions)))
            seen.add(id(region))
            fault = self._inside(search) if first or wrong else None
            if fault is not None:
                return fault
        if not isinstance(loop.op, Scan):
            return None
        known = recorded_values(program, loop, inputs, side)
        scan = _ScanSearch(program, loop, known, self._inner(program, inputs, side))
        smallest = scan._smallest()
        self._tried += scan._tried
        return None if smallest is None else scan._blamed(scan._fault_of(smallest[1]))

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
            found = _run(side, fault.program, fault.inputs, fault.roles)
        # No estimate of the noise is no reason to stop: the tolerance by type then decides alone.
        except SideError:
            return False
        return not any(
            difference(array, wanted, value.type.dtype.name, self._tolerance)
            for array, wanted, value in zip(
                found, fault.expected, fault.program.main.body.results, strict=True
            )
        )


class _ScanSearch(Search):
    """A search in the body of a scan, all of whose steps run in each try."""

    def __init__(
        self, program: Program, loop: Instruction, known: Mapping[Value, np.ndarray], like: Search
    ) -> None:
        super().__init__(program, like._suspect, like._trusted, like._tolerance, like._progress)
        self._loop = loop
        self._known.update(known)

    @property
    @override
    def _instructions(self) -> Sequence[Instruction]:
        return self._loop.regions[0].instructions

    @override
    def _window(
        self,
        chosen: Collection[int],
        *,
        apart: bool = False,
        giving: Collection[Value] = (),
    ) -> AnyWindow:
        return ScanWindow(self._program, self._loop, chosen)


def _run(
    side: Side, program: Program, inputs: Sequence[np.ndarray], roles: Sequence[InputRole]
) -> list[np.ndarray]:
    """Run a program of a window; only programs of this process have roles."""
    given = {f"v{n}": role for n, role in enumerate(roles) if role is not InputRole.ARGUMENT}
    if isinstance(side, Here) and given:
        return side.run(program, _named(inputs), given)
    return side.run(program, _named(inputs))


def _differences(
    window: AnyWindow,
    found: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    tolerance: float | None,
    noise: Sequence[np.ndarray] | None,
) -> list[Difference | None]:
    return [
        difference(
            found[number],
            expected[number],
            value.type.dtype.name,
            tolerance,
            None if noise is None else noise[number],
        )
        for number, value in enumerate(window.gives)
    ]


def _own_calls(program: Program) -> str | None:
    """Return what to do about a program that only the backend runs which optimized it."""
    if not any(isinstance(made.op, CustomCall) for made in program.main.body.walk()):
        return None
    return "it has calls of one backend; in a dump, `program.ptir` beside it has none"


def _texts(program: Program) -> list[str]:
    """Return the lines of `@main`, with those of regions, as the text of the program has them."""
    lines = print_program(program).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("func @main("))
    body = [line.removeprefix("  ") for line in lines[start + 1 :]]
    return [line for line in body if not line.startswith(("return ", "}"))]


def _holds_composites(program: Program, made: Instruction) -> bool:
    """Return whether a call, composite or loop has composites inside, which a backend may claim."""
    bodies = (*(program.function(name).body for name in made.op.callees()), *made.regions)
    inner = [each for body in bodies for each in body.walk()]
    return any(isinstance(each.op, Composite) or _holds_composites(program, each) for each in inner)


def _sources(instructions: Sequence[Instruction], value: Value) -> list[int]:
    """Return the numbers of the instructions that compute a value, in order."""
    needed, numbers = {value}, list[int]()
    for number, made in reversed(list(enumerate(instructions))):
        if needed.intersection(made.results):
            needed.update(made.operands)
            numbers.append(number)
    return numbers[::-1]


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
