"""Lowered programs as arrays of C, and the features of a processor that they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from gptrs.backend.contract import OutgoingLibrary, OutgoingProgram, TextCache
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.codegen import interpreter
from gptrs_backend_numba.codegen.compiled import WantedKernel
from gptrs_backend_numba.codegen.machine import usable_features
from gptrs_backend_numba.codegen.processor import ARM_BITS, AUXILIARY, this_machine
from gptrs_backend_numba.codegen.targets import chosen_target
from gptrs_backend_numba.codegen.tasks import STATE_WORDS, stop_kernel, worker_kernel
from gptrs_backend_numba.native.schedule_data import ScheduleData
from gptrs_backend_numba.schedule import Schedule
from gptrs_backend_numba.views import MemorySpace

Numbers = Callable[[WantedKernel], int]
"""Returns the number of a kernel in the library."""
RUNTIME: Final = tuple(
    WantedKernel(each.specialize())
    for each in (interpreter.run_schedule, worker_kernel, stop_kernel)
)
"""The kernels that the runtime itself calls."""
_SPACES: Final = {MemorySpace.INPUT: 0, MemorySpace.RESULT: 2, MemorySpace.SCRATCH: 3}
_WEIGHT: Final = 1
_MOST_TEXTS: Final = 1 << 16
_LARGEST_SIZE: Final = 1 << 40
"""Of an axis: products of sizes stay within int64."""
_AVX, _AVX512, _TILES = 0x6, 0xE6, 0x60000
CPUID: Final[Mapping[str, tuple[int, int, int, int, int]]] = MappingProxyType({
    "mmx": (1, 0, 3, 23, 0), "fxsr": (1, 0, 3, 24, 0), "sse2": (1, 0, 3, 26, 0),
    "sse3": (1, 0, 2, 0, 0), "ssse3": (1, 0, 2, 9, 0),
    "fma": (1, 0, 2, 12, _AVX), "cx16": (1, 0, 2, 13, 0), "sse4.1": (1, 0, 2, 19, 0),
    "sse4.2": (1, 0, 2, 20, 0), "movbe": (1, 0, 2, 22, 0), "popcnt": (1, 0, 2, 23, 0),
    "xsave": (1, 0, 2, 26, 0), "avx": (1, 0, 2, 28, _AVX),
    "f16c": (1, 0, 2, 29, _AVX), "bmi": (7, 0, 1, 3, 0), "avx2": (7, 0, 1, 5, _AVX),
    "bmi2": (7, 0, 1, 8, 0), "avx512f": (7, 0, 1, 16, _AVX512), "avx512dq": (7, 0, 1, 17, _AVX512),
    "avx512ifma": (7, 0, 1, 21, _AVX512),
    "avx512cd": (7, 0, 1, 28, _AVX512), "avx512bw": (7, 0, 1, 30, _AVX512),
    "avx512vl": (7, 0, 1, 31, _AVX512), "avx512vbmi": (7, 0, 2, 1, _AVX512),
    "avx512vbmi2": (7, 0, 2, 6, _AVX512), "gfni": (7, 0, 2, 8, 0),
    "avx512vnni": (7, 0, 2, 11, _AVX512),
    "avx512bitalg": (7, 0, 2, 12, _AVX512), "avx512vpopcntdq": (7, 0, 2, 14, _AVX512),
    "amx-bf16": (7, 0, 3, 22, _TILES), "avx512fp16": (7, 0, 3, 23, _AVX512),
    "amx-tile": (7, 0, 3, 24, _TILES), "amx-int8": (7, 0, 3, 25, _TILES),
    "avxvnni": (7, 1, 0, 4, _AVX), "avx512bf16": (7, 1, 0, 5, _AVX512),
    "lzcnt": (0x80000001, 0, 2, 5, 0), "sahf": (0x80000001, 0, 2, 0, 0),
})  # fmt: skip
"""Where `cpuid` tells of a feature: leaf, subleaf, register (eax, ebx, ecx, edx), bit, and the
state that the system must save for it. From the manuals of Intel and AMD. Features that LLVM uses
only for intrinsics which no kernel calls (AES, ADX, PCLMUL) are no reason to refuse a processor."""


TensorKey = tuple[MemorySpace, int]


class LoweredProgram(Struct, frozen=True):
    """A program that was lowered, as data."""

    outgoing: OutgoingProgram
    schedule: Schedule
    types: tuple[TensorType, ...]
    """The types of the inputs that callers pass."""
    data: ScheduleData

    @property
    def results(self) -> list[TensorType]:
        """The types of the results."""
        return [TensorType(each.view.dtype, each.view.shape) for each in self.schedule.results]


class _Arrays:
    """A program of C: its arrays, and the initializer of `struct program`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._fields: list[str] = []
        self.lines: list[str] = []

    @property
    def initializer(self) -> str:
        """The fields of the program."""
        return f"{{{', '.join(self._fields)}}}"

    def number(self, field: str, value: int) -> None:
        """Set a number."""
        self._fields.append(f".{field} = {value}")

    def array(self, field: str, type_: str, rows: Sequence[str], count: str | None = None) -> None:
        """Set an array, and the number of its rows."""
        name = f"{field}_{self._number}"
        self.lines.append(_array(type_, name, rows))
        self._fields.append(f".{field} = {name}")
        if count is not None:
            self.number(count, len(rows))

    def numbers(
        self, field: str, numbers: Sequence[int], type_: str = "int64_t", count: str | None = None
    ) -> None:
        """Set an array of numbers."""
        suffix = "LL" if type_ == "int64_t" else ""
        self.array(field, type_, [f"{number}{suffix}" for number in numbers], count)

    def pairs(self, field: str, pairs: Sequence[tuple[int, int]], count: str) -> None:
        """Set an array of pairs."""
        self.array(field, "struct pair", [f"{{{one},{other}}}" for one, other in pairs], count)


def _program(
    lowered: LoweredProgram, number: int, numbers: Numbers, offsets: Mapping[TensorKey, int]
) -> _Arrays:
    """Return a program, which calls kernels of the objects."""
    data, made = lowered.data, _Arrays(number)
    made.numbers("first_words", data.words, count="words")
    made.number("begin", data.begin)
    made.pairs("geometries", data.geometries, "geometry_count")
    made.pairs(
        "kernel_words",
        [(at, numbers(wanted)) for at, wanted in data.kernels],
        "kernel_count",
    )
    slots = [(at, numbers(wanted)) for at, wanted in data.slot_kernels]
    made.pairs("slot_kernels", slots, "slot_kernel_count")
    made.numbers("states", data.states, "int32_t", "state_count")
    made.array("calls", "struct call", [
        f'{{{at},{int(depends)},"{c_text(origin)}"}}'
        for at, (origin, depends) in data.calls.items()
    ], "call_count")  # fmt: skip
    _add_storages(made, lowered, offsets)
    _add_sizes(made, lowered)
    _add_types(made, lowered)
    return made


def _add_storages(made: _Arrays, lowered: LoweredProgram, offsets: Mapping[TensorKey, int]) -> None:
    rows: list[str] = []
    uses: list[str] = []
    weights: list[int] = []
    for (space, index), found in lowered.data.uses.items():
        kind, number = _SPACES.get(space, _WEIGHT), index
        if kind == _WEIGHT or (space is MemorySpace.INPUT and index >= len(lowered.types)):
            kind, number = _WEIGHT, len(weights)
            weights.append(offsets[space, index])
        rows.append(f"{{{kind},{number},{len(uses)},{len(found)}}}")
        uses += [
            f"{{{use.word},{-1 if use.slot is None else use.slot},{use.offset}LL}}" for use in found
        ]
    made.array("storages", "struct storage", rows, "storage_count")
    made.array("uses", "struct use", uses)
    made.numbers("weight_offsets", weights)


def _add_sizes(made: _Arrays, lowered: LoweredProgram) -> None:
    data, guards = lowered.data, lowered.outgoing.guards
    made.numbers("first_slots", data.slots, count="slots")
    made.numbers("size_code", data.size_code, count="code")
    made.pairs("symbol_sources", data.sources, "symbols")
    made.pairs("sized", data.sized, "sized_count")
    made.numbers("guard_slots", data.guards, "int32_t", "guards")
    words = [f'"{c_text(word)}"' for word in (guards.words() if guards else ())]
    made.array("guard_words", "char *const", words)
    made.number("scratch_slot", data.scratch)


def _add_types(made: _Arrays, lowered: LoweredProgram) -> None:
    slots: list[int] = []
    both = (
        ("input_types", lowered.types, lowered.data.inputs),
        ("output_types", lowered.results, lowered.data.results),
    )
    for field, types, dims in both:
        rows: list[str] = []
        for type_, found in zip(types, dims, strict=True):
            rows.append(f"{{{type_.rank},{type_.dtype.itemsize},{len(slots)}}}")
            slots += found
        made.array(field, "struct type", rows)
    made.numbers("dim_slots", slots, "int32_t")
    held = [-1 if each.donated is None else each.donated for each in lowered.schedule.results]
    made.numbers("output_inputs", held, "int32_t")


def data_text(
    outgoing: OutgoingLibrary,
    programs: Sequence[LoweredProgram],
    symbols: Sequence[str],
    numbers: Numbers,
    offsets: Sequence[Mapping[TensorKey, int]],
    threads: int,
) -> str:
    """Return the data of a library as a file of C.

    `offsets` are, for each program, where the tensors begin in the file of weights that calls read.
    """
    made = [
        _program(each, number, numbers, own)
        for number, (each, own) in enumerate(zip(programs, offsets, strict=True))
    ]
    run, worker, stop = (symbols[numbers(each)] for each in RUNTIME)
    constants = {
        "PROGRAMS": len(made), "THREADS": threads, "STATE_WORDS": STATE_WORDS,
        "INPUTS": len(outgoing.inputs), "OUTPUTS": len(outgoing.outputs),
        "MOST_SLOTS": max(len(each.data.slots) for each in programs),
        **_text_numbers(outgoing.texts),
    }  # fmt: skip
    lines = [
        f"enum {{ {', '.join(f'{name} = {number}' for name, number in constants.items())} }};",
        f"#define LARGEST_SIZE ({_LARGEST_SIZE}LL)",
        *(f"extern int32_t {symbol}(int64_t *, void **, ...);" for symbol in symbols),
        f"#define RUN {run}",
        f"#define WORKER {worker}",
        f"#define STOP {stop}",
        _array("void *const", "kernels", [f"(void *){symbol}" for symbol in symbols], const=False),
        _array("char *const", "input_names", [f'"{c_text(name)}"' for name in outgoing.inputs]),
        _array("char *const", "output_names", [f'"{c_text(name)}"' for name in outgoing.outputs]),
        _array("char *const", "input_dtypes", _dtype_names(programs[0].types)),
        _array("char *const", "output_dtypes", _dtype_names(programs[0].results)),
        *_processor(),
        *(line for each in made for line in each.lines),
        _array("struct program", "programs", [each.initializer for each in made]),
    ]
    return "\n".join((*lines, ""))


def _dtype_names(types: Iterable[TensorType]) -> list[str]:
    return [f'"{each.dtype.numpy.name}"' for each in types]


def _text_numbers(texts: TextCache | None) -> dict[str, int]:
    if texts is None:
        return {}
    return {
        "VOCABULARY": texts.vocab_size, "CONTEXT": texts.context_length, "PAGE": texts.page_size,
        "GROUPS": texts.groups, "POOLS": texts.pools, "FIRST_POOL": 4 + 2 * texts.groups,
        "REWINDS": int(texts.rewinds), "MOST_TEXTS": _MOST_TEXTS,
    }  # fmt: skip


def required_features() -> dict[str, tuple[int, int, int, int, int]]:
    """Return the features that compiled code may use, each with the place where it is found."""
    table, target = CPUID, chosen_target()
    if (this_machine() if target is None else target.machine) == "aarch64":
        table = {name: (AUXILIARY[word], 0, 0, bit, 0) for name, (word, bit) in ARM_BITS.items()}
    return {name: table[name] for name in sorted(usable_features()) if name in table}


def _processor() -> list[str]:
    found = required_features()
    rows = [
        f'{{"{name}",{leaf}u,{subleaf}u,{register},{bit},{state}u}}'
        for name, (leaf, subleaf, register, bit, state) in found.items()
    ]
    tiles = int("amx-tile" in found)
    return [
        f"enum {{ FEATURES = {len(rows)}, NEEDS_TILES = {tiles} }};",
        _array("struct feature", "features", rows),
    ]


def c_text(words: str) -> str:
    """Return a text for a literal of C."""
    plain = " _.,:;()[]<>=+-*/?'"
    return "".join(c if c.isascii() and (c.isalnum() or c in plain) else "?" for c in words)


def _array(type_: str, name: str, rows: Sequence[str], *, const: bool = True) -> str:
    listed = ",".join(rows) or "{0}"
    return f"static {'const ' if const else ''}{type_} {name}[] = {{{listed}}};"
