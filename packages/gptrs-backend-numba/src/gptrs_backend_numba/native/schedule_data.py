"""A schedule as data that does not depend on addresses of this process.

The words are those that a run interprets. What a run fills in is listed beside them: the words that
hold addresses of tensors, of kernels and of the shared state of threads, and those whose numbers
follow from the sizes of a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gptrs.ir.program import Value
from gptrs.ir.size_guards import SizeGuards
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen.compiled import WantedKernel, kernels_by_address
from gptrs_backend_numba.memory import POOL
from gptrs_backend_numba.run.assembly import Key, SizeCode, assemble, sources_of
from gptrs_backend_numba.schedule import Schedule

_ADDRESSES = range(1 << 32, 1 << 47)
"""Code and memory of a process. Sizes are smaller, and the bits of numbers of f64 larger."""


class Use(Struct, frozen=True):
    """A word that holds an address in a storage, moved by bytes: a number or a slot of a size."""

    word: int
    offset: int
    slot: int | None


class ScheduleData(Struct, frozen=True):
    """All that a run needs except the tensors."""

    words: tuple[int, ...]
    begin: int
    geometries: tuple[tuple[int, int], ...]
    """Words that hold the address of another word."""
    kernels: tuple[tuple[int, WantedKernel], ...]
    """Words that hold the address of a kernel."""
    states: tuple[int, ...]
    """Words that hold the address of the shared state of threads."""
    uses: Mapping[Key, tuple[Use, ...]]
    sized: tuple[tuple[int, int], ...]
    """Words that hold a size, with its slot."""
    slot_kernels: tuple[tuple[int, WantedKernel], ...]
    """Slots that hold the address of a kernel: which one is called may depend on sizes."""
    slots: tuple[int, ...]
    """The first contents of the slots of sizes; those of the symbols come first."""
    size_code: tuple[int, ...]
    sources: tuple[tuple[int, int], ...]
    """The input and the axis that each symbol is read from."""
    inputs: tuple[tuple[int, ...], ...]
    """For each input before the weights, the slots of its dims."""
    results: tuple[tuple[int, ...], ...]
    """For each result, the slots of its dims."""
    guards: tuple[int, ...]
    """Slots that must not be negative."""
    scratch: int
    """The slot of the bytes of scratch memory."""
    calls: Mapping[int, tuple[str, bool]]
    """For each call its ops, and whether it fails for certain values."""


def schedule_data(
    schedule: Schedule,
    params: Sequence[Value],
    given: int,
    guards: SizeGuards | None = None,
) -> ScheduleData:
    """Return the data of a schedule whose first `given` parameters are passed by callers."""
    code = assemble(schedule.steps)
    assert not code.takeovers, "a library has whole kernels"
    types = [param.type for param in params]
    sources = sources_of(types)
    sizes = SizeCode(sources, {size.number: size for size in schedule.sizes})
    uses = {
        key: tuple(_use(sizes, word, offset) for word, offset in found)
        for key, found in code.slots.items()
    }
    sized = tuple(
        (at, sizes.slot(word))
        for at, word in enumerate(code.words)
        if isinstance(word, SymbolicDim)
    )
    inputs = tuple(_slots(sizes, type_) for type_ in types[:given])
    results = tuple(
        _slots(sizes, TensorType(result.view.dtype, result.view.shape))
        for result in schedule.results
    )
    required = tuple(sizes.slot(guard) for guard in (guards.guards if guards else ()))
    scratch = sizes.slot(schedule.scratch)
    kernels, states = _addresses(code.words)
    slot_kernels, others = _addresses(sizes.slots)
    assert not others, "a size is the address of the shared state"
    assert _addresses(sizes.words) == ((), ()), "sizes are computed from addresses"
    return ScheduleData(
        words=tuple(0 if isinstance(word, SymbolicDim) else int(word) for word in code.words),
        begin=code.begin,
        geometries=tuple(code.geometries),
        kernels=kernels,
        states=states,
        uses=uses,
        sized=sized,
        slot_kernels=slot_kernels,
        slots=tuple(0 if size in _ADDRESSES else size for size in sizes.slots),
        size_code=tuple(sizes.words),
        sources=tuple(sources.values()),
        inputs=inputs,
        results=results,
        guards=required,
        scratch=scratch,
        calls={
            at: (call.origin or "a copy", call.explain is not None)
            for at, call in code.calls.items()
        },
    )


def _use(sizes: SizeCode, word: int, offset: int) -> Use:
    if isinstance(offset, SymbolicDim):
        return Use(word, 0, sizes.slot(offset))
    return Use(word, offset, None)


def _slots(sizes: SizeCode, type_: TensorType) -> tuple[int, ...]:
    return tuple(map(sizes.slot, type_.shape))


def _addresses(
    words: Sequence[int],
) -> tuple[tuple[tuple[int, WantedKernel], ...], tuple[int, ...]]:
    """Return the words that hold addresses of kernels, and those with that of the shared state.

    AssertionError for any other number that could be an address: it would be of this process alone.
    """
    known = kernels_by_address()
    kernels: list[tuple[int, WantedKernel]] = []
    states: list[int] = []
    for at, word in enumerate(words):
        if isinstance(word, SymbolicDim) or word not in _ADDRESSES:
            continue
        if word == POOL.address:
            states.append(at)
        else:
            assert word in known, f"word {at} of a schedule, {word:#x}, is an unknown address"
            kernels.append((at, known[word]))
    return tuple(kernels), tuple(states)
