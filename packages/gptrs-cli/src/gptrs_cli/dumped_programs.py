"""Programs with their inputs for `gptrs replay` and `gptrs bisect`: files, or parts of a dump."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Struct, field

from gptrs.api.backends import InputRole
from gptrs.api.programs import Program
from gptrs.errors import UsageError
from gptrs.quoting import counted, quoted
from gptrs_cli.options.declare import option
from gptrs_cli.terminal.streams import note
from gptrs_observe.dump import MARKER
from gptrs_runtime.programs import (
    InputFiles,
    parse_sizes,
    random_inputs,
    read_program,
    require_complete,
    with_sizes,
)

_PROGRAM: Final = "program.ptir"
_INPUTS: Final = "inputs.gptrsten"
_META: Final = "meta.json"
_WEIGHTS: Final = "weights.gptrsten"


class ProgramInputs(Struct, frozen=True):
    """The inputs of a program, from files or random, and the sizes of its symbolic dims."""

    inputs: Annotated[
        list[Path],
        option(
            "--input",
            "Tensors by the names of the parameters: .safetensors, .npz, .gptrsten, or NAME.npy"
            " with one of them; repeatable.",
            metavar="FILE",
        ),
    ] = field(default_factory=list[Path])
    random_seed: Annotated[
        int | None,
        option(
            "--random-seed",
            "Draw the inputs that no file has at random, with this seed.",
            metavar="N",
        ),
    ] = None
    symbols: Annotated[
        list[str],
        option(
            "--symbol",
            "The size of a symbolic dim, by `?N` or its name; inputs from files set it, too. Can "
            "be repeated.",
            metavar="N=SIZE",
        ),
    ] = field(default_factory=list[str])


class Case(Struct, frozen=True):
    """A program whose sizes are known, and an array for each of its parameters."""

    path: Path
    program: Program
    arrays: Mapping[str, np.ndarray]
    roles: Mapping[str, InputRole] = {}
    """Those that the inputs had when a dump was written, by name."""


def cases(path: Path, inputs: ProgramInputs) -> Iterator[Case]:
    """Yield the program in a file, or those of a dump that have the inputs of a run.

    A dump is the folder of one program, or a whole one. UsageError for a dump without inputs.
    """
    if not path.is_dir():
        yield read_case(path, inputs)
        return
    folders = sorted(path.glob("program-*")) if (path / MARKER).exists() else [path]
    usable = [each for each in folders if (each / _INPUTS).exists() and (each / _PROGRAM).exists()]
    if not usable:
        shown = quoted(str(path), 200)
        if not any((each / _PROGRAM).exists() for each in folders):
            raise UsageError(
                f"{shown} is not a dump of programs", hint="--dump-dir DIR --dump-inputs writes one"
            )
        if not inputs.inputs and inputs.random_seed is None:
            raise UsageError(
                f"{shown} has no inputs of its programs",
                hint="--dump-inputs writes them; or give --input FILE, or --random-seed N",
            )
        usable = [each for each in folders if (each / _PROGRAM).exists()]
    # A symbolic program is also there for the sizes of its runs.
    sized = {_Meta.of(each).symbolic for each in usable}
    unused = [each for each in folders if each not in usable]
    left = [each.name for each in unused if _Meta.of(each).number not in sized]
    if left:
        note(f"{counted(len(left), 'program')} without inputs left out: {', '.join(left[:3])}")
    for folder in usable:
        yield read_case(folder / _PROGRAM, inputs, folder / _INPUTS, folder / _WEIGHTS)


class _Input(Struct, frozen=True):
    name: str
    role: InputRole


class _Signature(Struct, frozen=True):
    inputs: list[_Input] = []


class _Meta(Struct, frozen=True):
    """The fields of `meta.json` that are read: the numbers of a program and of its symbolic one,
    and the roles of its inputs.
    """

    number: int = -1
    symbolic: int | None = None
    signature: _Signature = _Signature()

    @classmethod
    def of(cls, folder: Path) -> _Meta:
        """Return that of a folder; folders that were made by hand have none."""
        try:
            return msgspec.json.decode((folder / _META).read_bytes(), type=_Meta)
        except (OSError, msgspec.MsgspecError):
            return _Meta()


def read_case(path: Path, inputs: ProgramInputs, *more: Path) -> Case:
    """Return the program in a file, with sizes for its symbols, and its inputs by name."""
    sizes = parse_sizes(inputs.symbols)
    program = read_program(path)
    files = [*inputs.inputs, *(each for each in more if each.exists())]
    with InputFiles(files) as opened:
        opened.require_known(program)
        types = opened.types()
        if inputs.random_seed is None:
            require_complete(program, types)
        program = with_sizes(program, sizes, types)
        arrays = opened.read(program)
    if inputs.random_seed is not None:
        arrays |= random_inputs(program, inputs.random_seed, arrays)
    roles = {each.name: each.role for each in _Meta.of(path.parent).signature.inputs}
    return Case(path, program, arrays, roles)
