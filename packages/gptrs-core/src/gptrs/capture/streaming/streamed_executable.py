"""A program that runs in parts, each with its own weights in memory and not those of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from gptrs.backend.profiled import KernelRun, ProfiledExecutable
from gptrs.backend.protocol import Backend, Buffer, Executable, InputRole
from gptrs.capture.parameter import Lender, Loan, Parameter, Streaming
from gptrs.capture.streaming.segments import Segment, Segments, borders, cut
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Program

_Run = Callable[[Executable, Sequence[Buffer]], list[Buffer]]
_Value = Buffer | Parameter | None
"""Memory; a weight that is lent when it is needed; nothing any more."""


@dataclass(frozen=True, slots=True)
class _Part:
    executable: Executable
    segment: Segment
    rows: Mapping[int, int]
    """How many rows it reads at the most of each table, by the number of its value."""

    def loans(self, values: Sequence[_Value]) -> dict[Lender, Loan]:
        """The weights that it reads, by who lends them."""
        found: dict[Lender, Loan] = {}
        for number in self.segment.inputs:
            weight = values[number]
            if isinstance(weight, Parameter) and weight.lender is not None:
                loan = found.setdefault(weight.lender, Loan([], []))
                loan.weights.append(weight)
                loan.rows.append(self.rows.get(number) if weight.zero_copy else None)
        return found


def streamed_executable(
    program: Program, roles: Sequence[InputRole], backend: Backend, streaming: Streaming
) -> StreamedExecutable:
    """Compile a program in parts, none of which reads more weights than there is room for."""
    region = program.main.body
    streamed = [
        param
        for param, role in zip(region.params, roles, strict=True)
        if role is InputRole.PARAMETER and param.type.nbytes >= streaming.pin_below
    ]
    starts = borders(region, streamed, streaming.share)
    return StreamedExecutable(cut(program, roles, streamed, starts), backend, streaming.prefetch)


class StreamedExecutable:
    """See `gptrs.backend.protocol.Executable`; it takes weights that have a lender as they are.

    It has no state but for what its parts remember, and does not keep weights alive.
    """

    def __init__(self, pieces: Segments, backend: Backend, prefetch: int) -> None:
        """Compile each part; while it runs, ask for the weights of the one `prefetch` later."""
        self._parts = [
            _Part(backend.compile(part.program, part.roles), part, _rows(part))
            for part in pieces.parts
        ]
        self._results = pieces.results
        self._count = pieces.count
        self._prefetch = prefetch

    @property
    def nbytes(self) -> int:
        """See `gptrs.backend.protocol.Executable`."""
        return sum(getattr(part.executable, "nbytes", 0) for part in self._parts)

    def run(self, inputs: Sequence[Buffer | Parameter]) -> list[Buffer]:
        """See `gptrs.backend.protocol.Executable`; ModelError if a budget is too small."""
        return self._run(inputs, lambda executable, buffers: executable.run(buffers))

    def run_profiled(
        self, inputs: Sequence[Buffer | Parameter], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """See `gptrs.backend.profiled.ProfiledExecutable`; as `run` where that is not offered."""

        def run(executable: Executable, buffers: Sequence[Buffer]) -> list[Buffer]:
            if isinstance(executable, ProfiledExecutable):
                return executable.run_profiled(buffers, tell)
            return executable.run(buffers)

        return self._run(inputs, run)

    def _run(self, inputs: Sequence[Buffer | Parameter], run: _Run) -> list[Buffer]:
        values: list[_Value] = [*inputs, *[None] * (self._count - len(inputs))]
        loans = [part.loans(values) for part in self._parts]
        _require_room(loans)
        for position, part in enumerate(self._parts):
            ahead = (position + self._prefetch) % len(loans)
            if ahead != position:
                for lender, loan in loans[ahead].items():
                    lender.ask_for(loan)
            results = _run_part(part, loans[position], values, run)
            for number in part.segment.dying:
                values[number] = None
            for number, result in zip(part.segment.outputs, results, strict=True):
                values[number] = result
        return [_memory(values[number]) for number in self._results]


def _run_part(
    part: _Part, loans: Mapping[Lender, Loan], values: Sequence[_Value], run: _Run
) -> list[Buffer]:
    with ExitStack() as stack:
        lent: dict[Parameter, Buffer] = {}
        # In one order everywhere, so that two threads never wait for each other.
        for lender in sorted(loans, key=id):
            buffers = stack.enter_context(lender.lent(loans[lender]))
            lent.update(zip(loans[lender].weights, buffers, strict=True))
        given = [values[number] for number in part.segment.inputs]
        return run(
            part.executable,
            [lent[x] if isinstance(x, Parameter) and x in lent else _memory(x) for x in given],
        )


def _require_room(loans: Sequence[Mapping[Lender, Loan]]) -> None:
    for lender in {lender for part in loans for lender in part}:
        lender.require_room([part[lender] for part in loans if lender in part])


def _rows(segment: Segment) -> dict[int, int]:
    """How many rows a segment reads at the most of each of its streamed tables."""
    body = segment.program.main.body
    given = zip(body.params, segment.inputs, segment.roles, strict=True)
    numbers = {
        param: number
        for param, number, role in given
        if number in segment.tables and role is InputRole.STREAMED
    }
    rows = dict.fromkeys(numbers.values(), 0)
    for made in body.instructions:
        if isinstance(made.op, Take) and made.operands[0] in numbers:
            rows[numbers[made.operands[0]]] += made.operands[1].type.size
    return rows


def _memory(value: _Value) -> Buffer:
    assert value is not None, "a value is not dropped before its last use"
    return value.buffer() if isinstance(value, Parameter) else value
