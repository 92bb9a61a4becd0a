"""Writes a program as a shared library: C sources, objects of kernels, and a file of weights."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.backend.library import OutgoingLibrary, OutgoingProgram, TextCache, WrittenLibrary
from gptrs.backend.op_table import require_supported
from gptrs.errors import ExecutionError, UnsupportedError
from gptrs.ir.size_guards import deciding
from gptrs.ir.tensor_type import TensorType
from gptrs.progress import StepProgress
from gptrs.spans import span
from gptrs_backend_numba.codegen import interpreter
from gptrs_backend_numba.codegen.compiled import (
    WantedKernel,
    kernels_by_address,
    shared_object,
)
from gptrs_backend_numba.codegen.kernel import KernelFunction
from gptrs_backend_numba.codegen.machine import usable_features
from gptrs_backend_numba.codegen.tasks import STATE_WORDS, stop_kernel, worker_kernel
from gptrs_backend_numba.compiler import lower, lower_symbolic, needs_each_size
from gptrs_backend_numba.memory import POOL
from gptrs_backend_numba.native.schedule_data import ScheduleData, schedule_data
from gptrs_backend_numba.run.executable import RUN_LOCK
from gptrs_backend_numba.schedule import Schedule
from gptrs_backend_numba.views import MemorySpace

_ALIGNMENT: Final = 4096
"""Where weights begin in their file: on pages, which are read as they are needed."""
_HEAD: Final = 64
_SHOWN_LINES: Final = 10
_MAGIC: Final = b"gptrs weights 1\n"
_MOST_TEXTS: Final = 1 << 16
_LARGEST_SIZE: Final = 1 << 40
"""Of an axis: products of sizes stay within int64."""
_SPACES: Final = {MemorySpace.INPUT: 0, MemorySpace.RESULT: 2, MemorySpace.SCRATCH: 3}
_WEIGHT: Final = 1
_FLAGS: Final = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
_AVX, _AVX512, _TILES = 0x6, 0xE6, 0x60000
_CPUID: Final[Mapping[str, tuple[int, int, int, int, int]]] = MappingProxyType({
    "mmx": (1, 0, 3, 23, 0), "fxsr": (1, 0, 3, 24, 0), "sse2": (1, 0, 3, 26, 0),
    "sse3": (1, 0, 2, 0, 0), "pclmul": (1, 0, 2, 1, 0), "ssse3": (1, 0, 2, 9, 0),
    "fma": (1, 0, 2, 12, _AVX), "cx16": (1, 0, 2, 13, 0), "sse4.1": (1, 0, 2, 19, 0),
    "sse4.2": (1, 0, 2, 20, 0), "movbe": (1, 0, 2, 22, 0), "popcnt": (1, 0, 2, 23, 0),
    "aes": (1, 0, 2, 25, 0), "xsave": (1, 0, 2, 26, 0), "avx": (1, 0, 2, 28, _AVX),
    "f16c": (1, 0, 2, 29, _AVX), "bmi": (7, 0, 1, 3, 0), "avx2": (7, 0, 1, 5, _AVX),
    "bmi2": (7, 0, 1, 8, 0), "avx512f": (7, 0, 1, 16, _AVX512), "avx512dq": (7, 0, 1, 17, _AVX512),
    "adx": (7, 0, 1, 19, 0), "avx512ifma": (7, 0, 1, 21, _AVX512),
    "avx512cd": (7, 0, 1, 28, _AVX512), "avx512bw": (7, 0, 1, 30, _AVX512),
    "avx512vl": (7, 0, 1, 31, _AVX512), "avx512vbmi": (7, 0, 2, 1, _AVX512),
    "avx512vbmi2": (7, 0, 2, 6, _AVX512), "gfni": (7, 0, 2, 8, 0), "vaes": (7, 0, 2, 9, _AVX),
    "vpclmulqdq": (7, 0, 2, 10, _AVX), "avx512vnni": (7, 0, 2, 11, _AVX512),
    "avx512bitalg": (7, 0, 2, 12, _AVX512), "avx512vpopcntdq": (7, 0, 2, 14, _AVX512),
    "amx-bf16": (7, 0, 3, 22, _TILES), "avx512fp16": (7, 0, 3, 23, _AVX512),
    "amx-tile": (7, 0, 3, 24, _TILES), "amx-int8": (7, 0, 3, 25, _TILES),
    "avxvnni": (7, 1, 0, 4, _AVX), "avx512bf16": (7, 1, 0, 5, _AVX512),
    "lzcnt": (0x80000001, 0, 2, 5, 0), "sahf": (0x80000001, 0, 2, 0, 0),
})  # fmt: skip
"""Where `cpuid` tells of a feature: leaf, subleaf, register (eax, ebx, ecx, edx), bit, and the
state that the system must save for it. From the manuals of Intel and AMD."""


def write_library(
    outgoing: OutgoingLibrary, folder: Path, backend: Backend, progress: StepProgress | None
) -> WrittenLibrary:
    """Write the library, its header and its weights; see `Backend.write_library`."""
    compiler, threads, name = _compiler(), backend.threads, outgoing.name
    programs = [_lowered(each, len(outgoing.inputs), backend) for each in outgoing.programs]
    with span("write weights"), (folder / f"{name}.weights").open("xb") as file:
        weights = _write_weights(file, programs, threads)
    with tempfile.TemporaryDirectory(prefix="gptrs-library-") as scratch:
        work = Path(scratch)
        with span("compile objects"):
            kernels = _Objects(work)
            kernels.add_all(programs, progress)
            data = _data_text(outgoing, programs, kernels, weights, threads)
        header = _template("library.h", _header_words(outgoing, programs[0], threads))
        (folder / f"{name}.h").write_text(header, encoding="utf-8")
        (work / f"{name}.h").write_text(header, encoding="utf-8")
        (work / f"{name}_data.h").write_text(data, encoding="utf-8")
        parts = ["library.c", "texts.c" if outgoing.texts else "calls.c"]
        source = "".join(_template(part, _names(name)) for part in parts)
        (work / f"{name}.c").write_text(source, encoding="utf-8")
        # One kind of processor a library: the objects have its instructions, C is for any.
        hidden = [f"-Wl,--version-script={name}.map"]
        (work / f"{name}.map").write_text(f"{{ global: {name}_*; local: *; }};\n")
        target = folder / f"lib{name}.so"
        command = [*compiler, *_FLAGS, *hidden, f"{name}.c", *kernels.files, "-o", str(target)]
        _run([*command, "-lm", "-lpthread"], work)
    return WrittenLibrary(
        library=target.name,
        header=f"{name}.h",
        weights=f"{name}.weights",
        threads=threads,
        kernels=len(kernels.files),
        programs=len(programs),
        needs=tuple(sorted(usable_features())),
    )


_RUNTIME: Final = (interpreter.run_schedule, worker_kernel, stop_kernel)


def _whole(kernel: KernelFunction) -> WantedKernel:
    return WantedKernel(kernel.specialize())


def _lowered(outgoing: OutgoingProgram, given: int, backend: Backend) -> _Lowered:
    """Return a program lowered; UnsupportedError if each size needs a schedule of its own."""
    program, roles, guards = outgoing.program, outgoing.roles, outgoing.guards
    if guards is None:
        require_supported(backend, program)
        schedule = lower(program, roles, backend.threads)
    else:
        with deciding(guards.deriving()) as sizes:
            require_supported(backend, program, symbolic=True)
            if needs_each_size(program):
                raise UnsupportedError(
                    "convolutions of images of free sizes are planned for each size, and a library"
                    " has one plan",
                    hint="fix the sizes, for images by --symbol height=SIZE --symbol width=SIZE",
                )
            schedule, _ = lower_symbolic(program, roles, backend.threads, sizes)
    # With all symbols: lowering may put numbers for some, which are guards then.
    params = program.main.body.params
    data = schedule_data(schedule, params, given, guards)
    return _Lowered(outgoing, schedule, tuple(each.type for each in params[:given]), data)


def _compiler() -> list[str]:
    """Return the command of the C compiler, `CC` or `cc`; ExecutionError if there is none."""
    asked = os.environ.get("CC", "cc").split() or ["cc"]
    found = shutil.which(asked[0])
    if found is None:
        raise ExecutionError(
            f"a library is linked by a C compiler, and `{asked[0]}` is not installed",
            hint="install gcc or clang, or name another one in `CC`",
        )
    return [found, *asked[1:]]


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        shown = [line for line in lines if "error" in line] or lines[-_SHOWN_LINES:]
        said = "\n".join(shown[:_SHOWN_LINES]) or f"it ended with {done.returncode}"
        raise ExecutionError(f"the C compiler `{command[0]}` failed: {said}")


# The objects of kernels.


class _Objects:
    """The objects of kernels in a folder, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self.symbols: list[str] = []
        """The names of the functions, by number."""
        self.files: list[str] = []

    def add_all(self, programs: Sequence[_Lowered], progress: StepProgress | None) -> None:
        """Compile what a library itself calls, and the kernels of programs."""
        needed = [*map(_whole, _RUNTIME)]
        for each in programs:
            needed += [wanted for _, wanted in (*each.data.kernels, *each.data.slot_kernels)]
        by_key = {wanted.key: wanted for wanted in needed}
        for number, (key, wanted) in enumerate(by_key.items()):
            if progress is not None:
                progress(number, len(by_key), wanted.name)
            symbol, content = shared_object(wanted)
            self.files.append(f"kernel{number}.o")
            (self._folder / self.files[-1]).write_bytes(content)
            self.symbols.append(symbol)
            self._numbers[key] = number

    def number(self, wanted: WantedKernel) -> int:
        """Return the number of a kernel that was added."""
        return self._numbers[wanted.key]


# The file of weights: what kernels read of them, and constants.


_Place = tuple[MemorySpace, int]


class _Weights(Struct, frozen=True):
    digest: bytes
    """The first bytes of the file, which the library compares."""
    nbytes: int
    offsets: tuple[Mapping[_Place, int], ...]
    """For each program, where the tensors begin that calls read."""


class _WeightFile:
    """Writes arrays to a file, equal ones once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = _HEAD
        self._digest = hashlib.blake2b(digest_size=16)
        self._known: dict[bytes, int] = {}
        file.write(bytes(_HEAD))

    def add(self, array: np.ndarray) -> int:
        """Return where the elements of an array begin."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.blake2b(content.data, digest_size=20).digest()
        if digest not in self._known:
            begin = -(-self._end // _ALIGNMENT) * _ALIGNMENT
            self._file.seek(begin)
            self._file.write(content.data)
            self._end = begin + content.nbytes
            self._digest.update(digest)
            self._known[digest] = begin
        return self._known[digest]

    def finish(self) -> tuple[bytes, int]:
        """Write the head; return it and the length of the file."""
        end = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        self._file.truncate(end)
        head = _MAGIC + self._digest.digest()
        self._file.seek(0)
        self._file.write(head)
        return head, end


def _write_weights(file: BinaryIO, programs: Sequence[_Lowered], threads: int) -> _Weights:
    """Write each weight in the forms that calls of the programs read."""
    writer = _WeightFile(file)
    offsets = tuple(_written(writer, each, threads) for each in programs)
    head, nbytes = writer.finish()
    return _Weights(head, nbytes, offsets)


def _written(writer: _WeightFile, lowered: _Lowered, threads: int) -> dict[_Place, int]:
    schedule, uses = lowered.schedule, lowered.data.uses
    packings: dict[int, list[int]] = {}
    for number, packing in enumerate(schedule.packings):
        packings.setdefault(packing.input, []).append(number)
    offsets: dict[_Place, int] = {}
    for number, load in enumerate(lowered.outgoing.weights, len(lowered.types)):
        raw = (MemorySpace.INPUT, number)
        if raw not in uses and number not in packings:
            continue
        array = np.ascontiguousarray(load())
        if raw in uses:
            offsets[raw] = writer.add(array)
        for packed in packings.get(number, ()):
            with RUN_LOCK:  # packing shares the threads with programs
                POOL.grow(threads)
                form = schedule.packings[packed].layout.packed(array, threads)
            offsets[MemorySpace.PACKED, packed] = writer.add(form)
    known = np.array(list(kernels_by_address()), np.int64)
    for number, array in enumerate(schedule.constants):
        is_table = array.dtype == np.int64 and np.isin(array, known).any()
        assert not is_table, "a constant of the program has addresses of kernels"
        offsets[MemorySpace.CONSTANT, number] = writer.add(array)
    return offsets


# The sources.


def _template(name: str, words: Mapping[str, str]) -> str:
    text = files("gptrs_backend_numba.native").joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], text)


def _names(name: str) -> dict[str, str]:
    return {"NAME": name, "PREFIX": name.upper()}


def _header_words(outgoing: OutgoingLibrary, first: _Lowered, threads: int) -> dict[str, str]:
    names = _names(outgoing.name)
    words = {
        **names,
        "TITLE": f"The model `{outgoing.name}` as a library of machine code.",
        "INPUTS": str(len(first.types)),
        "OUTPUTS": str(len(first.results)),
        "AXES": str(max((type_.rank for type_ in (*first.types, *first.results)), default=0) or 1),
        "THREADS": str(threads),
    }
    texts = outgoing.texts
    if texts is None:
        lines = ["Inputs, in order:", *_described(outgoing.inputs, first.types)]
        lines += ["Outputs:", *_described(outgoing.outputs, first.results)]
        calls = _template("calls.h", names)
    else:
        lines = ["Tokens are numbers of the model's tokenizer; the caller chooses the next one."]
        numbers = {"VOCABULARY": str(texts.vocab_size), "CONTEXT": str(texts.context_length)}
        indent = " " * len(f"int {outgoing.name}_append(")
        calls = _template("texts.h", {**names, **numbers, "INDENT": indent})
    return words | {"TENSORS": "\n".join(f" * {line}" for line in lines), "CALLS": calls}


def _described(names: Iterable[str], types: Iterable[TensorType]) -> list[str]:
    pairs = enumerate(zip(names, types, strict=True))
    return [f"  {number}: {_text(name)}, {type_}" for number, (name, type_) in pairs]


class _Lowered(Struct, frozen=True):
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
    lowered: _Lowered, number: int, kernels: _Objects, offsets: Mapping[_Place, int]
) -> _Arrays:
    """Return a program, which calls kernels of the objects."""
    data, made = lowered.data, _Arrays(number)
    made.numbers("first_words", data.words, count="words")
    made.number("begin", data.begin)
    made.pairs("geometries", data.geometries, "geometry_count")
    made.pairs(
        "kernel_words",
        [(at, kernels.number(wanted)) for at, wanted in data.kernels],
        "kernel_count",
    )
    slots = [(at, kernels.number(wanted)) for at, wanted in data.slot_kernels]
    made.pairs("slot_kernels", slots, "slot_kernel_count")
    made.numbers("states", data.states, "int32_t", "state_count")
    made.array("calls", "struct call", [
        f'{{{at},{int(depends)},"{_text(origin)}"}}'
        for at, (origin, depends) in data.calls.items()
    ], "call_count")  # fmt: skip
    _add_storages(made, lowered, offsets)
    _add_sizes(made, lowered)
    _add_types(made, lowered)
    return made


def _add_storages(made: _Arrays, lowered: _Lowered, offsets: Mapping[_Place, int]) -> None:
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


def _add_sizes(made: _Arrays, lowered: _Lowered) -> None:
    data, guards = lowered.data, lowered.outgoing.guards
    made.numbers("first_slots", data.slots, count="slots")
    made.numbers("size_code", data.size_code, count="code")
    made.pairs("symbol_sources", data.sources, "symbols")
    made.pairs("sized", data.sized, "sized_count")
    made.numbers("guard_slots", data.guards, "int32_t", "guards")
    words = [f'"{_text(word)}"' for word in (guards.words() if guards else ())]
    made.array("guard_words", "char *const", words)
    made.number("scratch_slot", data.scratch)


def _add_types(made: _Arrays, lowered: _Lowered) -> None:
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


def _data_text(
    outgoing: OutgoingLibrary,
    programs: Sequence[_Lowered],
    kernels: _Objects,
    weights: _Weights,
    threads: int,
) -> str:
    """Return the data of a library as a file of C."""
    made = [
        _program(each, number, kernels, offsets)
        for number, (each, offsets) in enumerate(zip(programs, weights.offsets, strict=True))
    ]
    symbols = kernels.symbols
    run, worker, stop = (symbols[kernels.number(_whole(each))] for each in _RUNTIME)
    digest = "".join(f"\\x{byte:02x}" for byte in weights.digest)
    numbers = {
        "PROGRAMS": len(made), "THREADS": threads, "STATE_WORDS": STATE_WORDS,
        "INPUTS": len(outgoing.inputs), "OUTPUTS": len(outgoing.outputs),
        "MOST_SLOTS": max(len(each.data.slots) for each in programs),
        **_text_numbers(outgoing.texts),
    }  # fmt: skip
    lines = [
        f"enum {{ {', '.join(f'{name} = {number}' for name, number in numbers.items())} }};",
        f'#define DIGEST "{digest}"',
        f"#define WEIGHT_BYTES {weights.nbytes}LL",
        f"#define LARGEST_SIZE ({_LARGEST_SIZE}LL)",
        *(f"extern int32_t {symbol}(int64_t *, void **, ...);" for symbol in symbols),
        f"#define RUN {run}",
        f"#define WORKER {worker}",
        f"#define STOP {stop}",
        _array("void *const", "kernels", [f"(void *){symbol}" for symbol in symbols], const=False),
        _array("char *const", "input_names", [f'"{_text(name)}"' for name in outgoing.inputs]),
        _array("char *const", "output_names", [f'"{_text(name)}"' for name in outgoing.outputs]),
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


def _processor() -> list[str]:
    needs = [name for name in sorted(usable_features()) if name in _CPUID]
    rows = [
        f'{{"{name}",{leaf}u,{subleaf}u,{register},{bit},{state}u}}'
        for name in needs
        for leaf, subleaf, register, bit, state in [_CPUID[name]]
    ]
    tiles = int("amx-tile" in needs)
    return [
        f"enum {{ FEATURES = {len(rows)}, NEEDS_TILES = {tiles} }};",
        _array("struct feature", "features", rows),
    ]


def _text(words: str) -> str:
    """Return a text for a literal of C."""
    plain = " _.,:;()[]<>=+-*/?'"
    return "".join(c if c.isascii() and (c.isalnum() or c in plain) else "?" for c in words)


def _array(type_: str, name: str, rows: Sequence[str], *, const: bool = True) -> str:
    listed = ",".join(rows) or "{0}"
    return f"static {'const ' if const else ''}{type_} {name}[] = {{{listed}}};"
