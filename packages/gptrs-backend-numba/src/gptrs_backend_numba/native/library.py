"""Writes a program as a shared library: C sources, objects of kernels, and a file of weights."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from gptrs.backend.contract import Backend, OutgoingLibrary, OutgoingProgram, WrittenLibrary
from gptrs.backend.op_table import require_supported
from gptrs.errors import ExecutionError, UnsupportedError
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
from gptrs_backend_numba.codegen.machine import usable_features
from gptrs_backend_numba.codegen.targets import chosen_target
from gptrs_backend_numba.compiler import lower, lower_symbolic, needs_each_size
from gptrs_backend_numba.memory import POOL
from gptrs_backend_numba.native.c_data import (
    RUNTIME,
    LoweredProgram,
    StoredTensors,
    TensorKey,
    c_text,
    data_text,
)
from gptrs_backend_numba.native.schedule_data import schedule_data
from gptrs_backend_numba.run.executable import RUN_LOCK
from gptrs_backend_numba.views import MemorySpace

_ALIGNMENT: Final = 4096
"""Where weights begin in their file: on pages, which are read as they are needed."""
_HEAD: Final = 64
_SHOWN_LINES: Final = 10
_MAGIC: Final = b"gptrs weights 1\n"
_FLAGS: Final = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


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
            data = data_text(outgoing, programs, kernels.symbols, kernels.number, weights, threads)
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


def _lowering() -> AbstractContextManager[None]:
    """Return a scope in which kernels for other processors are not made for this one."""
    return nullcontext() if chosen_target() is None else named_kernels()


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


def _compiler() -> list[str]:
    """Return the command of the C compiler, `CC` or `cc`; ExecutionError if there is none.

    UnsupportedError on a system other than Linux: the runtime and the linker's options are for it.
    """
    if platform.system() != "Linux":
        raise UnsupportedError(f"libraries are written on Linux only, this is {platform.system()}")
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


def _write_weights(
    file: BinaryIO, programs: Sequence[LoweredProgram], threads: int
) -> StoredTensors:
    """Write each weight in the forms that calls of the programs read."""
    writer = _WeightFile(file)
    offsets = tuple(_written(writer, each, threads) for each in programs)
    head, nbytes = writer.finish()
    return StoredTensors(head, nbytes, offsets)


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
