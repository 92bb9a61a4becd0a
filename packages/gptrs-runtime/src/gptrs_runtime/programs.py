"""Programs in files: reading them, inputs for them, sizes, and a run."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.capture import execute
from gptrs.checkpoint.files.open_file import open_regular, read_at, read_whole
from gptrs.checkpoint.formats.foreign_files import FIRST_BYTES, foreign_format
from gptrs.checkpoint.formats.tensor_archive import TensorArchive, open_archive
from gptrs.errors import GptrsError, ProgramError, UsageError
from gptrs.ir import parse_json, parse_program
from gptrs.ir.ops import layout
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.ops.indexing import Gather, ScatterReduce, SegmentReduce, Take
from gptrs.ir.program import Instruction, Program, Value
from gptrs.ir.specialize import bind, specialize, symbols
from gptrs.ir.tensor_type import TensorType
from gptrs.lazy_module import lazy_module
from gptrs.plugins.manager import manager
from gptrs.quoting import quoted
from gptrs_runtime.sources.model_source import CONFIG

if TYPE_CHECKING:
    from gptrs.optimizer.passes import cleanup
else:
    cleanup = lazy_module("gptrs.optimizer.passes.cleanup")  # most starts draw no inputs

MAX_PROGRAM_BYTES = 100_000_000
"""Largest file accepted in bytes; reading takes a multiple of that in memory."""
_START_BYTES = 4096
_SUFFIXES = (".ptir", ".json")


def read_program(path: str | os.PathLike[str]) -> Program:
    """Return the program in a file, verified; a file that begins with `{` is JSON, others are text.

    ProgramError if there is no such regular file, if it is larger than MAX_PROGRAM_BYTES, not
    UTF-8 or of another format; ParseError or ProgramError, with the file and the position, if it is
    not a program.
    """
    data = read_whole(_resolved(path), MAX_PROGRAM_BYTES, ProgramError)
    shown = quoted(str(path), 200)
    looks = _begins_program(path, data[:_START_BYTES])
    foreign = foreign_format(path, data[:FIRST_BYTES])
    if foreign is not None and (foreign.has_graph or not looks):
        graph = ", no program of PTIR" if foreign.has_graph else ""
        raise ProgramError(f"{shown} is {foreign.name}{graph}", hint=foreign.hint)
    if Path(path).name == CONFIG:
        raise ProgramError(
            f"{shown} is the settings of a model, no program",
            hint=f"name the model's folder, {quoted(str(Path(path).parent), 200)}",
        )
    if not looks:
        raise ProgramError(
            f"{shown} is not a program",
            hint="a program begins with its version, `ptir.v0.5`, or with `{` in JSON;"
            " `gptrs inspect` shows what else a file may hold",
        )
    try:
        return parse_json(data) if data.lstrip()[:1] == b"{" else parse_program(data.decode())
    except UnicodeDecodeError as problem:
        raise ProgramError(f"{shown} is not a program: byte {problem.start} is not UTF-8") from None
    except ProgramError as problem:
        problem.message = f"{shown}: {problem.message}"
        raise


def is_program(path: str | os.PathLike[str]) -> bool:
    """Return whether a file looks like a program, valid or not, rather than a checkpoint."""
    try:
        descriptor = open_regular(_resolved(path))
    except GptrsError:
        return False
    try:
        start = read_at(descriptor, _START_BYTES, 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return _begins_program(path, start)


def _begins_program(path: str | os.PathLike[str], start: bytes) -> bool:
    if b"\0" in start:  # as in the length at the start of a safetensors file
        return False
    return start.lstrip().startswith((b"{", b"ptir.", b"//")) or Path(path).suffix in _SUFFIXES


def _resolved(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError as problem:
        raise ProgramError(f"cannot open {quoted(str(path), 200)}: {problem}") from problem


# The inputs of a program by parameter name: from files of tensors, or made up from a seed.


_SMALLEST, _BEYOND = 1, 8
"""The range of random integers: excludes 0, a possible divisor, and fits 4 bits."""


class InputFiles:
    """Archives that hold the inputs of a program, each under the name of its parameter.

    CheckpointError for a file that cannot be read; UsageError if two have tensors of one name. Use
    as a context manager, which closes the files.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._archives: dict[str, TensorArchive] = {}
        self._open = ExitStack()
        with ExitStack() as opened:
            for path in paths:
                archive = open_archive(path)
                opened.callback(archive.close)
                self._add(str(path), archive)
            self._open = opened.pop_all()

    def __enter__(self) -> InputFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def types(self) -> dict[str, TensorType]:
        """Return the type of each tensor, by name; no elements are read."""
        return {name: archive.type_of(name) for name, archive in self._archives.items()}

    def require_known(self, program: Program) -> None:
        """Raise UsageError for a tensor that is not a parameter of `program`."""
        wanted = {name: param.type for name, param in program.inputs.items()}
        for name in self._archives:
            if name not in wanted:
                hint = f"it takes {_listed(wanted)}"
                raise UsageError(f"the program has no parameter {quoted(name)}", hint=hint)

    def read(self, program: Program) -> dict[str, np.ndarray]:
        """Return the tensors that the files have for the parameters of `program`.

        UsageError, before any is read, for a tensor that is not a parameter or has another type.
        """
        self.require_known(program)
        wanted = program.inputs
        for name, found in self.types().items():
            if found != wanted[name].type:
                raise UsageError(
                    f"input {quoted(name)} must be `{wanted[name].type}`, got `{found}`",
                    hint="give a tensor of that type: nothing is converted",
                )
        return self.arrays()

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all tensors of the files."""
        return {name: archive.read(name) for name, archive in self._archives.items()}

    def _add(self, path: str, archive: TensorArchive) -> None:
        for name in archive.names():
            if name in self._archives:
                raise UsageError(
                    f"{quoted(path, 200)} has the input {quoted(name)}, as a file before it has",
                    hint="give each input once",
                )
            self._archives[name] = archive


def require_complete(program: Program, inputs: Mapping[str, object]) -> None:
    """UsageError unless there is an input for each parameter."""
    wanted = {name: param.type for name, param in program.inputs.items()}
    missing = [name for name in wanted if name not in inputs]
    if missing:
        listed = _listed({name: wanted[name] for name in missing})
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"no input is given for {listed}, which {verb} needed",
            hint="name files that have them with --input, or make them up with --random-seed",
        )


def random_inputs(
    program: Program, seed: int, given: Mapping[str, object] | None = None
) -> dict[str, np.ndarray]:
    """Made-up arrays for the parameters that are not in `given`.

    Floats and both parts of complex numbers are normally distributed, `i1` is true or false,
    integers are 1 to 7; where they are indices of an axis, the parameter itself or after layout ops
    and casts, they are 0 to its size - 1. The same seed, name and type give the same array.
    UsageError for a negative seed.
    """
    if seed < 0:
        raise UsageError(f"a seed is an integer >= 0, got {seed}")
    # Indices of a model are mostly read in the functions of its layers.
    inlined = cleanup.Inlining().apply(program)
    limits = _index_limits(inlined.main.body.instructions)
    return {
        name: _random(param.type, _generator(seed, name), limits.get(param))
        for name, param in program.inputs.items()
        if name not in (given or {})
    }


def made_up_array(name: str, type_: TensorType, seed: int) -> np.ndarray:
    """Return a random array for an input, as `random_inputs` does for inputs without known use."""
    return _random(type_, _generator(seed, name), None)


def _generator(seed: int, name: str) -> np.random.Generator:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])


def _random(type_: TensorType, rng: np.random.Generator, limit: int | None) -> np.ndarray:
    dtype, shape = type_.dtype, type_.shape
    if dtype.is_bool:
        return rng.integers(0, 2, shape, np.uint8).astype(dtype.numpy)
    if dtype.is_integer:
        low, beyond = (_SMALLEST, _BEYOND) if limit is None else (0, max(limit, 1))
        beyond = min(beyond, _BEYOND if dtype.bits == 4 else 2 ** (dtype.bits - 1))
        return rng.integers(low, beyond, shape, np.int64).astype(dtype.numpy)
    values = rng.standard_normal(shape)
    if dtype.is_complex:
        return (values + 1j * rng.standard_normal(shape)).astype(dtype.numpy)
    return values.astype(dtype.numpy)


def _index_limits(instructions: Sequence[Instruction]) -> dict[Value, int]:
    """Return, for values used as indices, the size of the smallest axis that they point into."""
    limits: dict[Value, int] = {}
    for instruction in reversed(instructions):
        indices = _indices(instruction)
        if indices is not None:
            value, size = indices
            limits[value] = min(size, limits.get(value, size))
        elif isinstance(instruction.op, Cast) or type(instruction.op).__module__ == layout.__name__:
            sizes = [limits[result] for result in instruction.results if result in limits]
            for value in instruction.operands if sizes else ():
                limits[value] = min(*sizes, limits.get(value, sizes[0]))
    return limits


def _indices(instruction: Instruction) -> tuple[Value, int] | None:
    """Return the operand that holds indices, and the size of the axis that they point into."""
    op, operands = instruction.op, instruction.operands
    if isinstance(op, Take):
        return operands[1], operands[0].type.shape[0]
    if isinstance(op, (Gather, ScatterReduce)):
        return operands[1], operands[0].type.shape[op.axis]
    if isinstance(op, SegmentReduce):
        return operands[1], op.num_segments
    return None


def _listed(types: Mapping[str, TensorType]) -> str:
    return ", ".join(f"{quoted(name)}: {type_}" for name, type_ in types.items()) or "none"


# Run a PTIR program on a backend by name.


def run_program(
    program: Program, inputs: Mapping[str, np.ndarray], backend: str | Backend | None = None
) -> list[np.ndarray]:
    """Verify, optimize, compile and run `program`; its results as NumPy arrays, in order.

    `inputs` gives an array for each parameter of `@main`, by name. `backend` is a name, a backend,
    or None for the default. UsageError when an input is missing, unknown or of another type,
    ProgramError for a malformed program, UnsupportedError (before anything runs) for an op or
    dtype that the backend lacks, PluginError for an unknown backend.
    """
    engine = manager().get_backend(backend) if isinstance(backend, str) else backend
    return execute.run_program(program, inputs, engine)


# The sizes of symbolic dims, from users and from inputs.


_SIZE = re.compile(r"\??([0-9]{1,6})=([0-9]{1,18})")


def parse_sizes(texts: Sequence[str]) -> dict[int, int]:
    """Parse sizes by symbol number from texts such as `?0=5` or `0=5`.

    UsageError for anything else, and for two sizes of one symbol.
    """
    sizes: dict[int, int] = {}
    for text in texts:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{quoted(text)} is not a size of a symbol", hint="write it as in `--symbol 0=5`"
            )
        number, size = int(match[1]), int(match[2])
        if sizes.setdefault(number, size) != size:
            raise UsageError(f"`?{number}` is given the sizes {sizes[number]} and {size}")
    return sizes


def with_sizes(
    program: Program,
    sizes: Mapping[int, int],
    inputs: Mapping[str, TensorType] | None = None,
) -> Program:
    """`program` with the sizes that are given and those that inputs of these types have.

    UsageError for a symbol that the program does not have, one without a size, or one whose size
    differs from that of an input; ProgramError if the program is malformed with these sizes.
    """
    unknown = symbols(program)
    for number in sizes:
        if number not in unknown:
            listed = ", ".join(f"`?{other}`" for other in unknown) or "none"
            raise UsageError(f"the program has no symbol `?{number}`", hint=f"it has {listed}")
    bound = bind(program, inputs or {})
    for number, size in bound.items():
        if sizes.get(number, size) != size:
            raise UsageError(f"`?{number}` is {size} in the inputs, not {sizes[number]}")
    known = {**sizes, **bound}
    missing = [number for number in unknown if number not in known]
    if missing:
        listed = ", ".join(f"`?{number}`" for number in missing)
        raise UsageError(
            f"the size of {listed} is not known",
            hint=f"give it with `--symbol {missing[0]}=SIZE`, or an input that has it as a dim",
        )
    return specialize(program, known)
