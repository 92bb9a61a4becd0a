"""Turns a schedule into words: instructions for the interpreter kernel, and geometries of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.codegen import interpreter
from gptrs_backend_numba.codegen.compiled import address_of_kernel
from gptrs_backend_numba.jumps import Begin, Jump, Label, Next
from gptrs_backend_numba.schedule import KernelCall, ScheduleStep
from gptrs_backend_numba.views import Counter, MemorySpace, Storage, View

Key = tuple[MemorySpace, int]
"""A storage by space and index; the scratch memory is one storage."""


@dataclass(frozen=True, slots=True)
class ViewStart:
    """The start of a view: a storage, an offset and the strides of loop counters, in bytes."""

    key: Key
    offset: int
    moves: tuple[tuple[Counter, int], ...]


def locate(view: View) -> ViewStart:
    """Return the start of a view whose storage is final."""
    storage: Storage = view.storage
    offset = view.offset * view.dtype.itemsize
    moves: list[tuple[Counter, int]] = []
    while storage.part is not None:
        offset += storage.part.offset
        if storage.part.counter is not None:
            moves.append((storage.part.counter, storage.part.stride))
        storage = storage.part.whole
    if storage.space is MemorySpace.SCRATCH:
        return ViewStart((MemorySpace.SCRATCH, 0), offset + storage.index, tuple(moves))
    return ViewStart((storage.space, storage.index), offset, tuple(moves))


@dataclass(slots=True)
class Code:
    """Words of a schedule; runs fill in those that hold addresses, and those that are symbolic."""

    words: list[int] = field(default_factory=list[int])
    begin: int = 0
    """The position of the first instruction, after the counters."""
    slots: dict[Key, list[tuple[int, int]]] = field(
        default_factory=dict[Key, list[tuple[int, int]]]
    )
    """For each storage the positions of words that hold an address in it, with its offset."""
    calls: dict[int, KernelCall] = field(default_factory=dict[int, KernelCall])
    """The kernel calls by position."""
    counters: dict[Counter, int] = field(default_factory=dict[Counter, int])
    """The positions of the counters."""
    geometries: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Positions of words that hold the address of a geometry, with the position of that."""


def assemble(steps: Sequence[ScheduleStep]) -> Code:
    """Return the words of steps whose storages are final."""
    code = Code()
    for step in steps:
        if isinstance(step, Begin):
            code.counters[step.counter] = len(code.counters)
    code.begin = len(code.counters)
    code.words += [0] * code.begin
    labels: dict[Label, int] = {}
    jumps: list[tuple[int, Label]] = []
    for step in steps:
        if isinstance(step, Label):
            labels[step] = len(code.words)
            continue
        _add(code, step)
        if isinstance(step, (Jump, Next)):  # the target is the last word of a jump
            jumps.append((len(code.words) - 1, step.target))
    code.words.append(interpreter.END)
    for position, label in jumps:
        code.words[position] = labels[label]
    for position, call in code.calls.items():
        code.geometries.append((position + 2 + code.words[position + 2], len(code.words)))
        code.words += call.geometry
    return code


def _add(code: Code, step: KernelCall | Jump | Begin | Next) -> None:
    match step:
        case KernelCall():
            _add_call(code, step)
        case Jump(unless=None):
            code.words += [interpreter.JUMP, 0]
        case Jump():
            _add_with_addresses(code, [interpreter.UNLESS, 0, 0], 1, step.views)
        case Begin(counter=counter):
            code.words += [interpreter.BEGIN, code.counters[counter], counter.first]
        case Next(counter=counter):
            position = code.counters[counter]
            code.words += [interpreter.NEXT, position, counter.last, counter.by, 0]


def _add_call(code: Code, call: KernelCall) -> None:
    arguments = [*call.leading, *[0] * len(call.views), 0]  # the last one is the geometry
    assert len(arguments) <= interpreter.MOST_ARGUMENTS, "no kernel takes so many tensors"
    words = [interpreter.CALL, address_of_kernel(call.kernel), len(arguments), *arguments]
    position = _add_with_addresses(code, words, 3 + len(call.leading), call.views)
    code.calls[position] = call


def _add_with_addresses(code: Code, words: list[int], first: int, views: Sequence[View]) -> int:
    """Add an instruction whose words from `first` on are addresses of views; return its position.

    Instructions before it compute the addresses of views that move with loops.
    """
    starts = [locate(view) for view in views]
    position = len(code.words) + sum(4 + 2 * len(start.moves) for start in starts if start.moves)
    for word, start in enumerate(starts, position + first):
        at = word
        if start.moves:
            at = len(code.words) + 2
            code.words += [interpreter.PLACE, word, 0, len(start.moves)]
            for counter, stride in start.moves:
                code.words += [code.counters[counter], stride]
        code.slots.setdefault(start.key, []).append((at, start.offset))
    code.words += words
    return position
