"""Parts of a program as programs of their own: some instructions of `@main`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gptrs.ir.builder import splice, with_operands
from gptrs.ir.ops.control_flow import Call
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.program import Function, Instruction, Program, Region, Value


class Window:
    """Some instructions of `@main` as a program.

    `program` has a parameter for each of the values in `reads`, which the instructions read and
    others define, and a result for each in `gives`, which they define and others, or the results of
    the whole program, read, and for those in `giving`, or with `everything` for each value that
    they define. `apart` is a window in which no instruction reads what another one in it defines:
    that is a parameter, too. A window that gives nothing has no effect.
    """

    def __init__(
        self,
        whole: Program,
        chosen: Collection[int],
        *,
        everything: bool = False,
        apart: bool = False,
        giving: Collection[Value] = (),
    ) -> None:
        body = whole.main.body
        inside = [body.instructions[index] for index in sorted(chosen)]
        results = dict.fromkeys(value for made in inside for value in made.results)
        defined = set[Value]() if apart else set(results)
        operands = dict.fromkeys(value for made in inside for value in made.operands)
        self.reads: list[Value] = [value for value in operands if value not in defined]
        within = set(map(id, inside))
        outside = {
            value for made in body.instructions if id(made) not in within for value in made.operands
        }
        outside.update(body.results, giving)
        everything = everything or apart
        self.gives: list[Value] = [value for value in results if everything or value in outside]
        self.count = len(inside)
        params = [Value(value.type, f"v{number}") for number, value in enumerate(self.reads)]
        read = dict(zip(self.reads, params, strict=True))
        self.program = _program(whole, params, inside, read, self.gives)


def _program(
    whole: Program,
    params: Sequence[Value],
    instructions: Sequence[Instruction],
    read: dict[Value, Value],
    results: Sequence[Value],
) -> Program:
    kept: list[Instruction] = []
    given: dict[Value, Value] = {}
    for made in instructions:
        fresh = tuple(Value(value.type) for value in made.results)
        # What is a parameter is read as such, even if it is defined here.
        plain = with_operands(made, {**given, **read})
        kept.append(Instruction(plain.op, plain.operands, fresh, plain.regions))
        given.update(zip(made.results, fresh, strict=True))
    main = Region(tuple(params), tuple(kept), tuple(given[value] for value in results))
    others = tuple(each for each in whole.functions if each.name != "main")
    program = Program((*others, Function("main", main)))
    return Program(program.reachable())


def opened(whole: Program) -> Program | None:
    """Return the program with the calls and composites of `@main` replaced by their bodies.

    One level of them, so that a composite which a backend computes by a kernel of its own is left
    whole until it is found to be wrong. None if there are none.
    """
    body = whole.main.body
    if not any(isinstance(made.op, Call | Composite) for made in body.instructions):
        return None
    known: dict[Value, Value] = {}
    kept: list[Instruction] = []
    for made in body.instructions:
        plain = with_operands(made, known)
        if isinstance(plain.op, Call | Composite):
            (name,) = plain.op.callees()
            results = splice(whole.function(name).body, plain.operands, kept)
            known.update(zip(made.results, results, strict=True))
        else:
            kept.append(plain)
    main = Region(body.params, tuple(kept), tuple(known.get(each, each) for each in body.results))
    others = tuple(each for each in whole.functions if each.name != "main")
    program = Program((*others, Function("main", main)))
    return Program(program.reachable())
