"""Turns a schedule into words: instructions for the interpreter kernel, and geometries of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.errors import ProgramError, UsageError
from gptrs.ir.size_guards import DerivedSize, Shape
from gptrs.ir.symbolic_dim import Monomial, Quotient, SymbolicDim, evaluated, symbol, symbols_of
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen import interpreter
from gptrs_backend_numba.codegen.compiled import WantedKernel, address_of_kernel, compiled
from gptrs_backend_numba.codegen.tasks import (
    FLOORDIV,
    GREATEST,
    LEAST,
    PRODUCT,
    SELECT,
    SUM,
    compute_sizes,
    place_sizes,
)
from gptrs_backend_numba.cost_model import Begin, Jump, Label, Next
from gptrs_backend_numba.kernels.elementwise_tasks import MOST_INPUTS
from gptrs_backend_numba.memory import POOL, address_of
from gptrs_backend_numba.schedule import KernelCall, ScheduleStep
from gptrs_backend_numba.views import Counter, MemorySpace, Storage, View

_FUNCTION_OF_JOB = 3 + 1
"""Where the address of its task is in the call of a job: the second of its arguments."""
Key = tuple[MemorySpace, int]
"""A storage by space and index; the scratch memory is one storage."""


class ViewStart(Struct, frozen=True):
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


class Code(Struct):
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
    takeovers: list[Takeover] = field(default_factory=list["Takeover"])
    """The calls whose kernels are still compiled."""


class Takeover(Struct, frozen=True):
    """How a call goes over to its kernel: its address is written to a word, then a jump turned."""

    wanted: WantedKernel
    address: int
    """The position of the word for the address."""
    jump: int
    """The position of the word with the target of the jump before both calls."""
    target: int
    """The position of the call of the kernel."""


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
    if call.stand_in is None:
        _add_one_call(code, call)
        return
    # jump to A; A: parts; jump to C; B: the kernel; C. The first jump will lead to B.
    fused = replace(call, stand_in=None)
    first = len(code.words) + 1
    code.words += [interpreter.JUMP, first + 1]
    _add_one_call(code, in_parts(call))
    code.words += [interpreter.JUMP, 0]
    past, target = len(code.words) - 1, len(code.words)
    position = _add_one_call(code, fused)
    code.words[past] = len(code.words)
    is_task = len(call.leading) > 1
    address = position + (_FUNCTION_OF_JOB if is_task else 1)
    code.takeovers.append(Takeover(call.stand_in.wanted, address, first, target))


def in_parts(call: KernelCall) -> KernelCall:
    """Return the call that stands in for one whose kernel is not compiled yet."""
    instead = call.stand_in
    assert instead is not None
    spare = MOST_INPUTS - len(call.reads)
    return replace(
        call,
        kernel=instead.kernel,
        reads=(*call.reads, *[call.views[0]] * spare),
        geometry=instead.geometry,
        leading=(POOL.address, *instead.leading),
        origin=f"{call.origin} (parts)",
        stand_in=None,
    )


def _add_one_call(code: Code, call: KernelCall) -> int:
    arguments = [*call.leading, *[0] * len(call.views), 0]  # the last one is the geometry
    assert len(arguments) <= interpreter.MOST_ARGUMENTS, "no kernel takes so many tensors"
    words = [interpreter.CALL, address_of_kernel(call.kernel), len(arguments), *arguments]
    position = _add_with_addresses(code, words, 3 + len(call.leading), call.views)
    code.calls[position] = call
    return position


def _add_with_addresses(code: Code, words: list[int], first: int, views: Sequence[View]) -> int:
    """Add an instruction whose words from `first` on are addresses of views; return its position.

    Instructions before it compute the addresses of views that move with loops.
    """
    starts = [locate(view) for view in views]
    position = len(code.words)
    for start in starts:
        if start.moves:
            position += 4 + 2 * len(start.moves)
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


# Symbolic sizes as code for `compute_sizes`: each size has a slot, equal sizes the same one.


_FORMULAS = {"floordiv": FLOORDIV, "least": LEAST, "greatest": GREATEST, "select": SELECT}


class SizeCode:
    """Slots and the words that fill them; those of `symbols` come first, in their order."""

    def __init__(self, symbols: Iterable[int], derived: Mapping[int, DerivedSize]) -> None:
        self.words: list[int] = []
        self.slots: list[int] = []
        """The first contents of the slots."""
        self._derived = derived
        self._numbers: dict[int, int] = {}
        self._monomials: dict[Monomial, int] = {(number,): self.new() for number in symbols}
        self._sums: dict[int, int] = {}

    def new(self, content: int = 0) -> int:
        """Return a slot of its own."""
        self.slots.append(content)
        return len(self.slots) - 1

    def slot(self, size: int) -> int:
        """Return the slot of a size, a number or symbolic."""
        if not isinstance(size, SymbolicDim):
            if size not in self._numbers:
                self._numbers[size] = self.new(size)
            return self._numbers[size]
        if len(size.terms) == 1 and size.terms[0][1] == 1:
            return self._monomial(size.terms[0][0])
        if size not in self._sums:
            constant = sum(factor for monomial, factor in size.terms if not monomial)
            terms = [(factor, self._monomial(each)) for each, factor in size.terms if each]
            words = (constant, len(terms), *(word for term in terms for word in term))
            self._sums[size] = self._add(SUM, *words)
        return self._sums[size]

    def _monomial(self, atoms: Monomial) -> int:
        found = self._monomials.get(atoms)
        if found is not None:
            return found
        *others, last = atoms
        if others:
            slot = self._add(PRODUCT, self._monomial(tuple(others)), self._monomial((last,)))
        elif isinstance(last, Quotient):
            operands = cast("int", last.dividend), last.divisor
            slot = self._add(FLOORDIV, *map(self.slot, operands))
        else:
            size = self._derived[last]
            slot = self._add(_FORMULAS[size.formula], *map(self.slot, size.operands))
        self._monomials[atoms] = slot
        return slot

    def _add(self, what: int, *words: int) -> int:
        slot = self.new()
        self.words += [what, slot, *words]
        return slot


# The symbolic sizes of an executable: read off the inputs of a run, written to its words.


class Sizes:
    """The sizes of the last run. Code is added first; `finish` ends that.

    ProgramError for a symbol that is alone a dim of no input.
    """

    def __init__(self, types: Sequence[TensorType], derived: Iterable[DerivedSize]) -> None:
        self._types = types
        self._derived = tuple(derived)
        self._sources = sources_of(types)
        self._code = SizeCode(self._sources, {size.number: size for size in self._derived})
        self._zero = self._code.slot(0)
        self._uses: list[int] = []
        self._known: tuple[int, ...] = ()
        """Sizes of the symbols in the order of `_sources`; () before the first run."""
        self._shapes: dict[Shape, Shape] = {}
        """Shapes of the last run, as far as they were asked for."""
        self.changes = 0
        """How often the sizes have changed."""
        self.slots = memoryview(b"")
        """The slots of all sizes, as int64."""

    def slot(self, size: int) -> int:
        """Return the slot that holds `size`."""
        return self._code.slot(size)

    def new(self) -> int:
        """Return a slot for the caller, 0 at first."""
        return self._code.new()

    def place(self, word: int, size: int, base: int | None = None) -> int:
        """Have `size` plus what is in slot `base` written to a word; return the slot of `size`."""
        slot = self._code.slot(size)
        self._uses += [word, slot, self._zero if base is None else base]
        return slot

    def finish(self, words: int) -> None:
        """Take the address of the words; no size can be added after this."""
        slots = np.array(self._code.slots, np.int64)
        code, uses = np.array(self._code.words, np.int64), np.array(self._uses, np.int64)
        self._kept = slots, code, uses
        self.slots = memoryview(cast("bytearray", slots))
        self._computing = (address_of(code), len(code), address_of(slots))
        self._placing = (address_of(uses), len(uses) // 3, address_of(slots), words)
        self._compute, self._place = compiled(compute_sizes), compiled(place_sizes)

    def fit(self, arrays: Sequence[object]) -> bool:
        """Take the sizes of the first inputs; False if they are those of the last run.

        UsageError for an input that has not the rank of its type, and for a size of 0.
        """
        known: list[int] = []
        for at, (number, (index, axis)) in enumerate(self._sources.items()):
            if index >= len(arrays):
                known.append(self._known[at])
                continue
            shape, wanted = np.shape(cast("np.ndarray", arrays[index])), self._types[index]
            if len(shape) != wanted.rank or shape[axis] < 1:
                found = TensorType.of(np.asarray(arrays[index]))
                raise UsageError(
                    f"input {index} must be `{wanted}` with ?{number} >= 1, got `{found}`"
                )
            known.append(shape[axis])
        if tuple(known) == self._known:
            return False
        self._known = tuple(known)
        self._shapes.clear()
        self.changes += 1
        for slot, size in enumerate(known):
            self.slots[slot] = size
        self._compute(*self._computing)
        self._place(*self._placing)
        return True

    def shape(self, shape: Shape) -> Shape:
        """Return what `shape` is in this run."""
        found = self._shapes.get(shape)
        if found is None:  # the pools of all layers have one
            found = self._shapes[shape] = self._evaluated(shape)
        return found

    def _evaluated(self, shape: Shape) -> Shape:
        sizes = dict(zip(self._sources, self._known, strict=True))
        if symbols_of(shape) - sizes.keys():
            for size in self._derived:
                sizes[size.number] = size.value(sizes)
        return tuple(evaluated(size, sizes) for size in shape)

    def __str__(self) -> str:
        pairs = zip(self._sources, self._known, strict=True)
        return ", ".join(f"?{number} = {size}" for number, size in pairs)


def sources_of(types: Sequence[TensorType]) -> dict[int, tuple[int, int]]:
    """Return the input and the axis that each symbol is read from."""
    sources: dict[int, tuple[int, int]] = {}
    symbolic = [(index, type_) for index, type_ in enumerate(types) if not type_.is_static]
    for index, type_ in symbolic:
        for axis, dim in enumerate(type_.shape):
            for number in type_.symbols:
                if dim == symbol(number):
                    sources.setdefault(number, (index, axis))
    open_ = {number for _, type_ in symbolic for number in type_.symbols} - sources.keys()
    if open_:
        listed = ", ".join(f"?{number}" for number in sorted(open_))
        raise ProgramError(f"sizes are read off the inputs, but none has {listed} alone as a dim")
    return sources
