"""`gptrs bisect`: finds the instructions of a program that one way of running it gets wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from msgspec import UNSET, Struct, UnsetType

from gptrs.api.programs import print_program
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import UsageError
from gptrs.quoting import counted, quoted
from gptrs_cli.dumped_programs import Case, ProgramInputs, cases
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import OutputFileError, Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note, printable
from gptrs_observe.bisection.search import Fault, Search, Trusted, TrustedFile, TrustedSide
from gptrs_observe.bisection.sides import Side, recorded, side
from gptrs_observe.bisection.values import Difference, value_names
from gptrs_runtime.results import Result

_UNOPTIMIZED: Final = ":optimizer=off"
_OTHER: Final = 1
"""The exit code where the sides disagree."""


class BisectedProgram(Struct, frozen=True, kw_only=True):
    """A program on which the sides disagree, and the smallest part of it where they do."""

    path: str
    instructions: list[str]
    """The instructions in the text form of programs."""
    number: int
    """The number of the first of them in `@main`, from 0."""
    of: int
    """The number of instructions in `@main`."""
    inside: list[str]
    """The instructions of the smallest part, if it is a part of what `instructions` call."""
    difference: Difference | UnsetType = UNSET
    problem: str | UnsetType = UNSET
    """The error of the suspect, if it could not run this part."""
    passes: list[str]
    """Passes of the optimizer to blame: without any one of them, the suspect is right."""
    claims: list[str]
    """Kinds of composites to blame: if the suspect does not claim one of them, it is right."""
    roles: list[str]
    """The roles of the inputs of the smallest part, if they are to blame: as arguments, they give
    the right results."""
    call: int
    """The number of the call of the compiled program that is wrong: 2, if the first is right."""
    tried: int
    written: str | UnsetType = UNSET
    """The folder with this part, its inputs and the expected values, with `--out`."""


class Bisect(Result, frozen=True, kw_only=True, tag="gptrs.bisect/1"):
    """`gptrs bisect`; `agree` if there is no program on which the sides disagree."""

    suspect: str
    trusted: str
    agree: bool
    programs: int
    found: list[BisectedProgram]


@command_options("threads")
def bisect(
    *,
    program: Annotated[
        Path,
        typer.Argument(
            help="A program (.ptir, .json), or a dump that has inputs: `--dump-dir DIR"
            " --dump-inputs` writes one.",
            show_default=False,
        ),
    ],
    suspect: Annotated[
        str,
        typer.Argument(
            help="What may be wrong: a backend, perhaps with settings, as in"
            " BACKEND:without=canonicalization, BACKEND:without=softmax.v1, BACKEND:threads=1,"
            " BACKEND:python=PATH.",
            show_default=False,
        ),
    ],
    trusted: Annotated[
        str | None,
        typer.Argument(
            help="What is right: another one, or a file of values that `gptrs replay --record`"
            " wrote, here or on another machine.  [default: SUSPECT:optimizer=off]",
            show_default=False,
        ),
    ] = None,
    inputs: ProgramInputs,
    tolerance: Annotated[
        float | None,
        option(
            "--tolerance",
            "Allowed error, relative to the largest magnitude of a tensor.  [default: by type, 1e-4"
            " for f32]",
            metavar="X",
            min=0.0,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Write the part that is wrong to this new folder, with its inputs and what is"
            " expected.",
            metavar="DIR",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Find the instructions that a backend or a pass gets wrong.

    Runs ever smaller parts of the program on both sides, each on the inputs that the trusted one
    computes. Of a dump, all programs with inputs are tried. Exits with 1 if the sides disagree.
    """
    # Checked before the search, which may take many minutes.
    if out is not None and out.exists():
        raise UsageError(f"{quoted(str(out), 200)} exists", hint="name a new folder")
    ours = side(suspect, settings.load.threads)
    if trusted is None:
        trusted = suspect.partition(":")[0] + _UNOPTIMIZED
    from_file = Path(trusted).is_file()
    theirs = None if from_file else side(trusted, settings.load.threads)
    found: list[BisectedProgram] = []
    count = 0
    with Waiting(f"reading `{program}`") as waiting:
        for case in cases(program, inputs):
            count += 1
            source = _file(case, Path(trusted)) if theirs is None else _side(case, theirs)
            waiting.now(f"comparing {case.path.parent.name}")
            search = Search(case.program, ours, source, tolerance, waiting.now, case.roles)
            fault = search.find()
            if fault is None:
                continue
            written = None
            if out is not None:
                # The first fault gets the folder that was asked for; scripts with one program know
                # its name.
                written = out if not found else out.with_name(f"{out.name}-{len(found) + 1}")
                _write(fault, written)
            found.append(_told(case, fault, written))
    result = Bisect(suspect=suspect, trusted=trusted, agree=not found, programs=count, found=found)
    if settings.json:
        print_result(result)
    else:
        _print(result)
    if found:
        raise typer.Exit(_OTHER)


def _side(case: Case, theirs: Side) -> Trusted:
    return TrustedSide(theirs, case.arrays)


def _file(case: Case, path: Path) -> Trusted:
    names = value_names(case.program)
    arrays = recorded(path, list(names.values()))
    return TrustedFile({value: arrays[name] for value, name in names.items()})


def _told(case: Case, fault: Fault, written: Path | None) -> BisectedProgram:
    return BisectedProgram(
        path=str(case.path),
        instructions=fault.instructions,
        number=fault.number,
        of=len(case.program.main.body.instructions),
        inside=fault.inside,
        difference=fault.difference or UNSET,
        problem=UNSET if fault.problem is None else fault.problem,
        passes=fault.passes,
        claims=fault.claims,
        roles=[each.value for each in fault.roles] if fault.by_role else [],
        call=fault.call,
        tried=fault.tried,
        written=UNSET if written is None else str(written),
    )


def _write(fault: Fault, folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        shown = quoted(str(folder), 200)
        raise OutputFileError(f"cannot make {shown}: {error.strerror}") from error
    with atomic_file(folder / "program.ptir") as file:
        file.write(print_program(fault.program).encode())
    # The parameters of a part are called so, and `gptrs replay` finds inputs by name.
    names = [f"v{number}" for number in range(len(fault.inputs))]
    write_archive(folder / "inputs.gptrsten", dict(zip(names, fault.inputs, strict=True)))
    results = {f"result{number}": array for number, array in enumerate(fault.expected)}
    write_archive(folder / "expected.gptrsten", results)
    # As in a dump.
    roles = [{"name": name, "role": role} for name, role in zip(names, fault.roles, strict=True)]
    with atomic_file(folder / "meta.json") as file:
        file.write(msgspec.json.encode({"signature": {"inputs": roles}}))


def _print(result: Bisect) -> None:
    if result.agree:
        programs = counted(result.programs, "program")
        print(printable(f"{result.suspect} agrees with {result.trusted} on {programs}"))
        return
    for each in result.found:
        _print_program(each, result.suspect)
    note("--out DIR writes the part that is wrong as a program with inputs")


def _print_program(each: BisectedProgram, suspect: str) -> None:
    where = f"instruction {each.number} of {each.of}"
    print(printable(f"{each.path}: {suspect} is wrong at {where}"))
    for line in each.instructions:
        print(printable(f"  {line}"))
    if each.inside:
        print("  in it:")
    for line in each.inside:
        print(printable(f"    {line}"))
    if isinstance(each.problem, str):
        print(printable(f"  it fails: {each.problem}"))
    if isinstance(each.difference, Difference):
        print(printable(f"  {_shown(each.difference)}"))
    for line in _blamed(each):
        print(printable(f"  {line}"))
    if isinstance(each.written, str):
        print(printable(f"  written to {each.written}: gptrs bisect {each.written}"))


def _blamed(each: BisectedProgram) -> Iterator[str]:
    """Yield when the suspect is right."""
    if each.passes:
        names = ", ".join(f"`{name}`" for name in each.passes)
        yield f"it is right without the optimizer's pass {names}"
    if each.claims:
        kinds = ", ".join(f"`{kind}`" for kind in each.claims)
        yield f"it is right without its own kernel for {kinds}"
    if each.roles:
        yield f"it is right if its inputs ({', '.join(each.roles)}) are arguments"
    if each.call > 1:
        yield "the first call of the compiled program is right, the second is wrong"


def _shown(difference: Difference) -> str:
    text = f"at {difference.where}: {difference.found}, expected {difference.expected}"
    if difference.error is None or difference.allowed is None:
        return text
    return f"{text}; error {difference.error:.3g}, allowed {difference.allowed:.3g}"
