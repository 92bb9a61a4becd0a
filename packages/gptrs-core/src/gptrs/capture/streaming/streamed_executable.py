"""Runs a program in parts, each with only its own weights in memory."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import cast

from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs.backend.contract import Buffer, Executable, InputRole, KernelRun
from gptrs.capture.parameter import Parameter, Streaming, WeightRows, WeightStreamer
from gptrs.capture.streaming.segments import Segment, Segments, borders, cut
from gptrs.errors import GptrsError, ModelError
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Program
from gptrs.ir.specialize import symbol_sources
from gptrs.ir.symbolic_dim import evaluated

Compile = Callable[[Program, Sequence[InputRole]], Executable]
"""Compiles a part: for its sizes, or for all sizes that guards accept."""

_Run = Callable[[Executable, Sequence[Buffer]], list[Buffer]]
_Value = Buffer | Parameter | None
"""A buffer; a weight, acquired for each part that reads it; or None after its last use."""
_Streamed = Mapping[WeightStreamer, WeightRows]


class _Part(Struct, frozen=True):
    executable: Executable
    segment: Segment
    rows: Mapping[int, int]
    """Upper bound of the rows it reads of each table, by value number; may be symbolic."""

    def streamed(self, values: Sequence[_Value], sizes: Mapping[int, int]) -> _Streamed:
        """Return the weights that it reads for these sizes of its symbols, by streamer."""
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
    """Compile a program in parts that each read no more weights than fit."""
    region = program.main.body
    streamed = [
        param
        for param, role in zip(region.params, roles, strict=True)
        if role is InputRole.PARAMETER and param.type.nbytes >= streaming.pin_below
    ]
    starts = borders(region, streamed, streaming.share)
    pieces = cut(program, roles, streamed, starts)
    return StreamedExecutable(pieces, compile_, streaming.prefetch, symbol_sources(region.params))


class StreamedExecutable(Executable):
    """An executable whose inputs may be streamed `Parameter`s instead of their buffers.

    It has no state of its own, and does not keep weights alive.
    """

    def __init__(
        self,
        pieces: Segments,
        compile_: Compile,
        prefetch: int,
        symbol_inputs: Mapping[int, tuple[int, int]],
    ) -> None:
        """Compile each part; while one runs, prefetch the weights of the part `prefetch` later.

        `symbol_inputs` maps each symbol to its input and axis, empty without symbols.
        """
        self._symbol_inputs = symbol_inputs
        self._parts = [
            _Part(compile_(part.program, part.roles), part, _rows(part)) for part in pieces.parts
        ]
        self._results = pieces.results
        self._count = pieces.count
        self._prefetch = prefetch

    @property
    @override
    def nbytes(self) -> int:
        """The bytes that the parts own."""
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
            # Input indices of a part would be mistaken for those of the program.
            return executable.run_profiled(buffers, lambda run: tell(replace(run, inputs=())))

        return self._run(inputs, run)

    def _run(self, inputs: Sequence[Buffer | Parameter], run: _Run) -> list[Buffer]:
        values: list[_Value] = [*inputs, *[None] * (self._count - len(inputs))]
        sizes = {
            number: cast("Buffer", inputs[position]).shape[axis]
            for number, (position, axis) in self._symbol_inputs.items()
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
        # Locks are always taken in one order: otherwise two threads could deadlock.
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
    """Return an upper bound of the rows that a segment reads of each of its streamed tables."""
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


# A thread that has the system read weights from their file during computation.


try:
    import resource
except ImportError:  # systems without this call
    resource = None

_Queue = queue.Queue[Sequence[weakref.ref[Parameter]] | None]
_MOST_WAITING = 8
"""Most queued groups of weights: a thread further behind only gets in the way."""


class Prefetcher:
    """Its thread starts with the first `prefetch` in each process, and ends with this object.

    It works only while this process causes disk reads: advice on pages in the system's cache takes
    time from the computation and gains nothing.
    """

    def __init__(self) -> None:
        self._reads: int | None = None
        self._waiting: _Queue = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None

    def prefetch(self, weights: Sequence[Parameter]) -> None:
        """Ask for these weights to be read, unless the thread is already behind."""
        before, self._reads = self._reads, _disk_reads()
        if before is not None and before == self._reads:
            return
        if self._thread is None or not self._thread.is_alive():  # for example after a fork
            self._start()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait([weakref.ref(weight) for weight in weights])

    def _start(self) -> None:
        self._waiting = queue.Queue(_MOST_WAITING)
        arguments = (self._waiting,)
        self._thread = threading.Thread(
            target=_serve, args=arguments, name="gptrs-prefetch", daemon=True
        )
        self._thread.start()
        # A daemon, since nobody waits for it at exit; in a forked child the queue may stay locked
        # forever.
        weakref.finalize(self, _stop, self._waiting).atexit = False


def _disk_reads() -> int | None:
    """Return a counter of the disk reads of this process, None if unknown."""
    if resource is None:
        return None
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_inblock + usage.ru_majflt


def _serve(waiting: _Queue) -> None:
    while (weights := waiting.get()) is not None:
        for reference in weights:
            _prefetch(reference())


def _prefetch(weight: Parameter | None) -> None:
    if weight is not None and not weight.loaded:
        # Errors of the file are reported when the weight is loaded.
        with contextlib.suppress(GptrsError, OSError, ValueError):
            weight.prefetch()


def _stop(waiting: _Queue) -> None:
    """End the thread, and drop the weights still queued."""
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.get_nowait()
    waiting.put(None)


# Keeps the weights of a model in memory up to its budget.


_ROW = 1 << 16
"""Bytes that reading one row of a mapped table may bring into memory: the system maps the pages
around it."""


class MruStreamer(WeightStreamer):
    """Holds at most `streaming.budget` bytes of weights.

    Evicts the most recently used weight (MRU): access is cyclic, so it is needed again last, and
    nearly everything that fits is still there in the next cycle. LRU would read every weight in
    every cycle. Threads wait for each other.
    """

    def __init__(self, streaming: Streaming) -> None:
        self._streaming = streaming
        self.most_held = 0
        """The peak of the bytes held."""
        self.bytes_read = 0
        """The total bytes of weights loaded so far."""
        self._lock = threading.Lock()
        # Least recently used first. Weights refer to their streamer, so its references are weak.
        self._held: dict[weakref.ref[Parameter], int] = {}
        self._prefetcher = Prefetcher()

    @property
    @override
    def streaming(self) -> Streaming:
        return self._streaming

    @property
    def bytes_held(self) -> int:
        """The bytes of weights that are in memory now."""
        return sum(nbytes for weight, nbytes in list(self._held.items()) if weight() is not None)

    @override
    def require_room(self, parts: Sequence[WeightRows]) -> None:
        every = {weight for part in parts for weight in part}
        pinned = sum(weight.type.nbytes for weight in every if self._pinned(weight))
        worst = max(parts, key=self._need)
        budget, least = self.streaming.budget, pinned + self._need(worst)
        if least > budget:
            largest = max(worst, key=lambda weight: weight.loading_nbytes)
            raise ModelError(
                f"a weight budget of {budget} bytes is too small: `{largest.name}`, a"
                f" `{largest.type}`, and what is needed beside it, take {least} bytes",
                hint=f"set a budget of at least {least} bytes",
            )

    @override
    @contextmanager
    def acquire(self, weights: WeightRows) -> Generator[Mapping[Parameter, Buffer]]:
        with self._lock:
            self._make_room(self._need(weights, missing=True), keep=weights)
            buffers = {weight: self._buffer(weight, rows) for weight, rows in weights.items()}
            self.most_held = max(self.most_held, self.bytes_held)
            yield buffers
            for weight, rows in weights.items():
                if rows is not None and not weight.loaded:
                    weight.release_pages(buffers[weight])

    @override
    def prefetch(self, weights: WeightRows) -> None:
        missing = [w for w, rows in weights.items() if rows is None and not w.loaded]
        if missing:
            self._prefetcher.prefetch(missing)

    def _need(self, weights: WeightRows, missing: bool = False) -> int:
        """Return the bytes of weights except pinned ones, or with `missing` of those not yet
        held."""
        need = 0
        for weight, rows in weights.items():
            if missing and weight.loaded:
                continue
            if rows is not None:
                need += min(rows * _ROW, weight.type.nbytes)
            elif missing or not self._pinned(weight):
                need += weight.loading_nbytes
        return need

    def _pinned(self, weight: Parameter) -> bool:
        return weight.type.nbytes < self.streaming.pin_below

    def _buffer(self, weight: Parameter, rows: int | None) -> Buffer:
        if rows is not None and not weight.loaded:
            return weight.buffer(keep=False)
        key = weakref.ref(weight)
        if not weight.loaded:
            self.bytes_read += weight.loading_nbytes
        buffer = weight.acquire()
        self._held.pop(key, None)
        self._held[key] = weight.type.nbytes
        return buffer

    def _make_room(self, need: int, keep: Collection[Parameter]) -> None:
        """Release weights, the most recently used first, but none in `keep`.

        A share stays free for temporary copies of weights in kernels; pinned weights are evicted
        only if the budget would be exceeded otherwise.
        """
        budget = self.streaming.budget
        taken = self.bytes_held + need
        for limit, spares_pinned in ((budget - self.streaming.share, True), (budget, False)):
            for key in reversed(self._held.copy()):
                if taken <= limit:
                    break
                weight = key()
                if weight is None:
                    del self._held[key]
                elif weight not in keep and not (spares_pinned and self._pinned(weight)):
                    taken -= self._held.pop(key)
                    weight.release()
