"""Writes a program as a shared library: C sources, objects of kernels, and a file of weights."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
from msgspec import Struct, field

from gptrs.backend.contract import Backend, OutgoingLibrary, OutgoingProgram, WrittenLibrary
from gptrs.backend.op_table import require_supported
from gptrs.errors import UnsupportedError
from gptrs.ir.size_guards import deciding
from gptrs.ir.tensor_type import TensorType
from gptrs.progress import StepProgress
from gptrs.spans import span
from gptrs_backend_numba.codegen.compiled import (
    WantedKernel,
    kernels_by_address,
    named_kernels,
    shared_object,
)
from gptrs_backend_numba.codegen.processor import this_machine
from gptrs_backend_numba.codegen.targets import chosen_target
from gptrs_backend_numba.compiler import lower, lower_symbolic, needs_each_size
from gptrs_backend_numba.memory import POOL
from gptrs_backend_numba.native import linking
from gptrs_backend_numba.native.c_data import (
    RUNTIME,
    LoweredProgram,
    TensorKey,
    c_text,
    data_text,
    required_features,
)
from gptrs_backend_numba.native.linking import HEAD, WEIGHTS
from gptrs_backend_numba.native.schedule_data import schedule_data
from gptrs_backend_numba.parts import whole_kernels
from gptrs_backend_numba.run.executable import RUN_LOCK
from gptrs_backend_numba.views import MemorySpace

_ALIGNMENT: Final = 4096
"""Where weights begin in their file: on pages, which are read as they are needed."""
_MAGIC: Final = b"gptrs weights 1\n"


def write_library(
    outgoing: OutgoingLibrary, folder: Path, backend: Backend, progress: StepProgress | None
) -> WrittenLibrary:
    """Write the library, its header and its weights; see `Backend.write_library`."""
    linking.c_compiler(this_machine())  # before the work
    with tempfile.TemporaryDirectory(prefix="gptrs-library-") as scratch:
        work = Path(scratch)
        written = write_part(outgoing, work / outgoing.name, backend, progress)
        return linking.join_library(outgoing.name, folder, work, [written])


def write_part(
    outgoing: OutgoingLibrary, work: Path, backend: Backend, progress: StepProgress | None
) -> WrittenLibrary:
    """Write sources and objects for the target of this process into the new folder `work`.

    Weights go to the file beside it, which holds those of parts before.
    """
    work.mkdir(parents=True)
    threads, name = backend.threads, outgoing.name
    programs = [_lowered(each, len(outgoing.inputs), backend) for each in outgoing.programs]
    with span("write weights"):
        offsets = _write_weights(work.parent, programs, threads)
    with span("compile objects"):
        kernels = _Objects(work)
        kernels.add_all(programs, progress)
        data = data_text(outgoing, programs, kernels.symbols, kernels.number, offsets, threads)
    header = _template("library.h", _header_words(outgoing, programs[0], threads))
    parts = ["library.c", "texts.c" if outgoing.texts else "calls.c"]
    source = "".join(_template(part, _names(name)) for part in parts)
    texts = {f"{name}.h": header, f"{name}_data.h": data, f"{name}.c": source}
    for file, text in texts.items():
        (work / file).write_text(text, encoding="utf-8")
    return WrittenLibrary(
        library=f"lib{name}.so",
        header=f"{name}.h",
        weights=f"{name}.weights",
        threads=threads,
        kernels=len(kernels.files),
        programs=len(programs),
        needs=tuple(required_features()),
    )


@contextmanager
def _lowering() -> Generator[None]:
    """Scope of whole kernels, in which those for other processors are not made for this one."""
    with whole_kernels(), nullcontext() if chosen_target() is None else named_kernels():
        yield


def _lowered(outgoing: OutgoingProgram, given: int, backend: Backend) -> LoweredProgram:
    """Return a program lowered; UnsupportedError if each size needs a schedule of its own."""
    program, roles, guards = outgoing.program, outgoing.roles, outgoing.guards
    # With all symbols: lowering may put numbers for some, which are guards then.
    params = program.main.body.params
    types = tuple(each.type for each in params[:given])
    if guards is None:
        require_supported(backend, program)
        with _lowering():
            schedule = lower(program, roles, backend.threads)
        return LoweredProgram(outgoing, schedule, types, schedule_data(schedule, params, given))
    with deciding(guards.deriving()) as sizes, _lowering():
        require_supported(backend, program, symbolic=True)
        if needs_each_size(program):
            raise UnsupportedError(
                "convolutions of images are planned for each size, and a library has one plan",
                hint="fix the sizes of images, the batch too: --symbol batch=1",
            )
        schedule, _ = lower_symbolic(program, roles, backend.threads, sizes)
        # Inside: offsets of pages and pieces may be longer than a dim of a program may be.
        data = schedule_data(schedule, params, given, guards)
    return LoweredProgram(outgoing, schedule, types, data)


# The objects of kernels.


class _Objects:
    """The objects of kernels in a folder, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self.symbols: list[str] = []
        """The names of the functions, by number."""
        self.files: list[str] = []

    def add_all(self, programs: Sequence[LoweredProgram], progress: StepProgress | None) -> None:
        """Compile what a library itself calls, and the kernels of programs."""
        needed = [*RUNTIME]
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


class _KnownWeights(Struct):
    """The content of the file of weights, for the next part of a library."""

    end: int = HEAD
    begins: dict[str, int] = field(default_factory=dict[str, int])
    """Where arrays begin, by their digests."""


class _WeightFile:
    """Writes arrays to a file, equal ones once; those that it has stay."""

    def __init__(self, file: BinaryIO, known: _KnownWeights) -> None:
        self._file = file
        self.known = known

    def add(self, array: np.ndarray) -> int:
        """Return where the elements of an array begin."""
        known, content = self.known, np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.blake2b(content.data, digest_size=20).hexdigest()
        if digest not in known.begins:
            begin = -(-known.end // _ALIGNMENT) * _ALIGNMENT
            self._file.seek(begin)
            self._file.write(content.data)
            known.end = begin + content.nbytes
            known.begins[digest] = begin
        return known.begins[digest]

    def finish(self) -> None:
        """Write the head, and fill the last page."""
        digest = hashlib.blake2b("".join(self.known.begins).encode(), digest_size=16).digest()
        self._file.truncate(-(-self.known.end // _ALIGNMENT) * _ALIGNMENT)
        self._file.seek(0)
        self._file.write((_MAGIC + digest).ljust(HEAD, b"\0"))


def _write_weights(
    folder: Path, programs: Sequence[LoweredProgram], threads: int
) -> list[dict[TensorKey, int]]:
    """Write each weight in the forms that calls of the programs read; return where they begin."""
    path, state = folder / WEIGHTS, folder / f"{WEIGHTS}.json"
    known = msgspec.json.decode(state.read_bytes(), type=_KnownWeights) if path.exists() else None
    with path.open("xb" if known is None else "r+b") as file:
        writer = _WeightFile(file, known or _KnownWeights())
        offsets = [_written(writer, each, threads) for each in programs]
        writer.finish()
    state.write_bytes(msgspec.json.encode(writer.known))
    return offsets


def _written(writer: _WeightFile, lowered: LoweredProgram, threads: int) -> dict[TensorKey, int]:
    schedule, uses = lowered.schedule, lowered.data.uses
    packings: dict[int, list[int]] = {}
    for number, packing in enumerate(schedule.packings):
        packings.setdefault(packing.input, []).append(number)
    offsets: dict[TensorKey, int] = {}
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


def _header_words(outgoing: OutgoingLibrary, first: LoweredProgram, threads: int) -> dict[str, str]:
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
    return [f"  {number}: {c_text(name)}, {type_}" for number, (name, type_) in pairs]
