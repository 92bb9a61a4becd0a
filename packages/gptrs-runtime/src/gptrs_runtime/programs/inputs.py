"""The inputs of a program by parameter name: from files of tensors, or made up from a seed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from gptrs.checkpoint.formats.tensor_archive import TensorArchive, open_archive
from gptrs.errors import UsageError
from gptrs.ir.ops import layout
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.ops.indexing import Gather, ScatterReduce, SegmentReduce, Take
from gptrs.ir.program import Instruction, Program, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.passes.inlining import Inlining
from gptrs.quoting import quoted

_SMALLEST, _BEYOND = 1, 8
"""The range of made-up integers: no zero to divide by, and within 4 bits."""


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
        """UsageError for a tensor that is no parameter of `program`."""
        wanted = {name: param.type for name, param in program.inputs.items()}
        for name in self._archives:
            if name not in wanted:
                hint = f"it takes {_listed(wanted)}"
                raise UsageError(f"the program has no parameter {quoted(name)}", hint=hint)

    def read(self, program: Program) -> dict[str, np.ndarray]:
        """Return the tensors that the files have for the parameters of `program`.

        UsageError, before any is read, for a tensor that is no parameter or of another type.
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
    inlined = Inlining().apply(program)
    limits = _index_limits(inlined.main.body.instructions)
    return {
        name: _random(param.type, _generator(seed, name), limits.get(param))
        for name, param in program.inputs.items()
        if name not in (given or {})
    }


def made_up_array(name: str, type_: TensorType, seed: int) -> np.ndarray:
    """Return a made-up array for an input, as `random_inputs` does where nothing is known of it."""
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
