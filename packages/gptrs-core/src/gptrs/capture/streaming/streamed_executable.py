"""A program that runs in parts, each with only its own weights in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import cast

from typing_extensions import override

from gptrs.backend.contract import Buffer, Executable, InputRole, KernelRun
from gptrs.capture.parameter import Parameter, Streaming, WeightRows, WeightStreamer
from gptrs.capture.streaming.segments import Segment, Segments, borders, cut
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Program
from gptrs.ir.specialize import symbol_places
from gptrs.ir.symbolic_dim import evaluated
from gptrs.quick_dataclass import dataclass

Compile = Callable[[Program, Sequence[InputRole]], Executable]
"""How a part is compiled: for its sizes, or for all that some guards accept."""

_Run = Callable[[Executable, Sequence[Buffer]], list[Buffer]]
_Value = Buffer | Parameter | None
"""Memory; a weight that is acquired for each part that reads it; None after its last use."""
_Streamed = Mapping[WeightStreamer, WeightRows]


@dataclass(frozen=True, slots=True)
class _Part:
    executable: Executable
    segment: Segment
    rows: Mapping[int, int]
    """Most rows that it reads of each table, by the number of its value; symbolic as the sizes."""

    def streamed(self, values: Sequence[_Value], sizes: Mapping[int, int]) -> _Streamed:
        """Return the weights that it reads with these sizes of its symbols, by their streamer."""
        found: dict[WeightStreamer, dict[Parameter, int | None]] = {}
        for number in self.segment.inputs:
            weight = values[number]
            if isinstance(weight, Parameter) and weight.streamer is not None:
                rows = self.rows.get(number) if weight.zero_copy else None
                rows = None if rows is None else evaluated(rows, sizes)
                own = found.setdefault(weight.streamer, {})
                before = own.get(weight, 0)
                own[weight] = None if rows is None or before is None else before + rows
        return found


def streamed_executable(
    program: Program, roles: Sequence[InputRole], compile_: Compile, streaming: Streaming
) -> StreamedExecutable:
    """Compile a program in parts; each reads no more weights than there is room for."""
    region = program.main.body
    streamed = [
        param
        for param, role in zip(region.params, roles, strict=True)
        if role is InputRole.PARAMETER and param.type.nbytes >= streaming.pin_below
    ]
    starts = borders(region, streamed, streaming.share)
    pieces = cut(program, roles, streamed, starts)
    return StreamedExecutable(pieces, compile_, streaming.prefetch, symbol_places(region.params))


class StreamedExecutable(Executable):
    """An executable whose inputs may be streamed `Parameter`s instead of their buffers.

    It has no state but that of its parts, and does not keep weights alive.
    """

    def __init__(
        self,
        pieces: Segments,
        compile_: Compile,
        prefetch: int,
        places: Mapping[int, tuple[int, int]],
    ) -> None:
        """Compile each part; while one runs, prefetch the weights of the one `prefetch` later.

        `places` has the input and the axis that each symbol is read from, none without symbols.
        """
        self._places = places
        self._parts = [
            _Part(compile_(part.program, part.roles), part, _rows(part)) for part in pieces.parts
        ]
        self._results = pieces.results
        self._count = pieces.count
        self._prefetch = prefetch

    @property
    @override
    def nbytes(self) -> int:
        """The bytes that the parts hold of their own."""
        return sum(part.executable.nbytes for part in self._parts)

    @override
    def run(self, inputs: Sequence[Buffer | Parameter]) -> list[Buffer]:
        """Run all parts and return the results; ModelError if a budget is too small."""
        return self._run(inputs, lambda executable, buffers: executable.run(buffers))

    @override
    def run_profiled(
        self, inputs: Sequence[Buffer | Parameter], tell: Callable[[KernelRun], None]
    ) -> list[Buffer]:
        """Run all parts, and `tell` about the kernels of those that can be profiled."""

        def run(executable: Executable, buffers: Sequence[Buffer]) -> list[Buffer]:
            # Its inputs are not those of the program.
            return executable.run_profiled(buffers, lambda run: tell(replace(run, inputs=())))

        return self._run(inputs, run)

    def _run(self, inputs: Sequence[Buffer | Parameter], run: _Run) -> list[Buffer]:
        values: list[_Value] = [*inputs, *[None] * (self._count - len(inputs))]
        sizes = {
            number: cast("Buffer", inputs[position]).shape[axis]
            for number, (position, axis) in self._places.items()
        }
        streamed = [part.streamed(values, sizes) for part in self._parts]
        _require_room(streamed)
        for position, part in enumerate(self._parts):
            ahead = (position + self._prefetch) % len(streamed)
            if ahead != position:
                for streamer, weights in streamed[ahead].items():
                    streamer.prefetch(weights)
            results = _run_part(part, streamed[position], values, run)
            for number in part.segment.dying:
                values[number] = None
            for number, result in zip(part.segment.outputs, results, strict=True):
                values[number] = result
        return [_memory(values[number]) for number in self._results]


def _run_part(
    part: _Part, streamed: _Streamed, values: Sequence[_Value], run: _Run
) -> list[Buffer]:
    with ExitStack() as stack:
        acquired: dict[Parameter, Buffer] = {}
        # Locks are taken in one order everywhere: two threads would block each other otherwise.
        for streamer in sorted(streamed, key=id):
            acquired.update(stack.enter_context(streamer.acquire(streamed[streamer])))
        inputs = [values[number] for number in part.segment.inputs]
        return run(
            part.executable,
            [acquired[x] if isinstance(x, Parameter) else _memory(x) for x in inputs],
        )


def _require_room(parts: Sequence[_Streamed]) -> None:
    for streamer in {streamer for part in parts for streamer in part}:
        streamer.require_room([part[streamer] for part in parts if streamer in part])


def _rows(segment: Segment) -> dict[int, int]:
    """Return the most rows that a segment reads of each of its streamed tables."""
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
    assert not isinstance(value, Parameter), "results are never parameters themselves"
    return value
