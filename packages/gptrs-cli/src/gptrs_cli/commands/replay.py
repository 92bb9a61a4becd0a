"""`gptrs replay`: runs a program one instruction at a time, forwards and back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from msgspec import UNSET, UnsetType

from gptrs.checkpoint.formats.tensor_archive import open_archive, require_writable, write_archive
from gptrs.errors import GptrsError, UsageError
from gptrs.quoting import counted, did_you_mean, quoted
from gptrs_cli.dumped_programs import Case, ProgramInputs, cases
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import complain, is_terminal, note, printable
from gptrs_observe.bisection.replay import Replay
from gptrs_observe.bisection.sides import Here, SideError
from gptrs_observe.programs.report import shown_values
from gptrs_observe.results import ProgramResult, program_result
from gptrs_runtime.results import Result

_SHOWN: Final = 5
"""Instructions around the next one that `list` shows."""
_HELP: Final = """\
step [N]            compute the next instruction, or N of them; so does an empty line
back [N]            go back before the last one, or N of them
run [NAME]          compute up to the value NAME, or to the end
show [NAME]         show a value; without NAME, the results of the last instruction
set NAME VALUE      let a value be a number everywhere, or the array in a .npy file, from here on
list                show the instructions around the next one
quit                end, as Ctrl-D does"""


class Replayed(Result, frozen=True, kw_only=True, tag="gptrs.replay/1"):
    """`gptrs replay`."""

    path: str
    backend: str
    instructions: int
    values: list[ProgramResult]
    recorded: str | UnsetType = UNSET


@command_options("backend", "threads")
def replay(
    *,
    program: Annotated[
        Path,
        typer.Argument(
            help="A program (.ptir, .json), or a program's folder in a dump that has inputs:"
            " `--dump-dir DIR --dump-inputs` writes one.",
            show_default=False,
        ),
    ],
    inputs: ProgramInputs,
    show: Annotated[
        list[str] | None,
        option("--show", "Print this value (%12, x); repeatable.", metavar="NAME"),
    ] = None,
    replaced: Annotated[
        list[str] | None,
        option(
            "--set",
            "Let a value be a number everywhere, or the array in a .npy file; repeatable.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        option(
            "--record",
            "Write all values, by name; `gptrs bisect` compares other machines with them.",
            metavar="FILE",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Run a program of a dump again, one instruction at a time.

    On a terminal it stops before the first instruction and takes commands; `help` lists them. In a
    pipe, or with --show or --record, it runs to the end. Nothing is optimized: each instruction is
    compiled by itself.
    """
    if record is not None:
        # Before the run: a large program takes minutes, and its values would be lost.
        require_writable(record)
    found = list(cases(program, inputs))
    if len(found) > 1:
        names = ", ".join(each.path.parent.name for each in found[:4])
        raise UsageError(
            f"{quoted(str(program), 200)} has {len(found)} programs", hint=f"name one: {names}"
        )
    (case,) = found
    backend = settings.load.made_backend()
    # Without the optimizer, which would fold and fuse instructions: then values would have no place
    # to be looked at.
    run = Replay(case.program, case.arrays, Here(backend.name, backend, optimizer=False))
    for text in replaced or ():
        name, _, value = text.partition("=")
        _set(run, name, value)
    try:
        if is_terminal(sys.stdin) and not (show or record or settings.json):
            _Session(run).loop()
            return
        with Waiting("running") as waiting:
            while run.position < len(run):
                waiting.now(f"running instruction {run.position + 1} of {len(run)}")
                run.step()
    except SideError as error:
        # The position is still that of the instruction that failed.
        where = f"instruction {run.position}, {run.line(run.position)}"
        raise GptrsError(f"{where}: {error}") from error
    if record is not None:
        write_archive(record, run.computed())
    _print(case, run, show, record, settings)


def _print(
    case: Case, run: Replay, show: list[str] | None, record: Path | None, settings: Settings
) -> None:
    names = [name.removeprefix("%") for name in show or ()]
    results = run.results()
    shown = {f"%{name}": run.value(name) for name in names}
    if not names:
        shown = {f"result{number}": array for number, array in enumerate(results)}
    if settings.json:
        values = [program_result(name, array) for name, array in shown.items()]
        print_result(
            Replayed(
                path=str(case.path),
                backend=settings.load.made_backend().name,
                instructions=len(run),
                values=values,
                recorded=UNSET if record is None else str(record),
            )
        )
        return
    for name, array in shown.items():
        _show(name, array)
    if record is not None:
        note(f"{counted(len(run.names), 'value')} written to {record}")


def _type(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _show(name: str, array: np.ndarray) -> None:
    print(printable(f"{name}: {_type(array)}"))
    for line in shown_values(array).splitlines():
        print(printable(f"  {line}".rstrip()))


def _set(run: Replay, name: str, text: str) -> None:
    name = name.removeprefix("%")
    if name not in run.names:
        run.value(name)  # raises, and guesses what was meant
    if text.endswith(".npy"):
        archive = open_archive(text)
        try:
            (only,) = archive.names()
            run.replace(name, np.array(archive.read(only)))
        finally:
            archive.close()
        return
    try:
        # Python writes the imaginary unit as `j`; users write `i`, too.
        number = complex(text.replace("i", "j")) if text.endswith(("i", "j")) else float(text)
    except ValueError as error:
        raise UsageError(
            f"{quoted(text)} is neither a number nor a .npy file", hint="--set %12=0"
        ) from error
    run.fill(name, number)


class _Session:
    """Commands that go through a program, read from a terminal."""

    def __init__(self, run: Replay) -> None:
        self._run = run
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "step": self._step,
            "back": self._back,
            "run": self._to,
            "show": self._show,
            "set": self._set,
            "list": self._list,
            "help": lambda _: note(_HELP),
        }

    def loop(self) -> None:
        """Read commands until the end of the input or `quit`."""
        note(f"{counted(len(self._run), 'instruction')}; `help` lists the commands")
        self._next()
        while True:
            try:
                words = input("(replay) ").split() or ["step"]
            # The shell's prompt then begins on a line of its own.
            except (EOFError, KeyboardInterrupt):
                print(flush=True)
                return
            if words[0] in ("quit", "q", "exit"):
                return
            try:
                self._command(words[0])(words[1:])
            except GptrsError as error:
                # A mistyped command must not lose the values that were computed so far.
                complain("error", str(error))

    def _command(self, name: str) -> Callable[[list[str]], None]:
        matching = [each for each in self._commands if each.startswith(name)]
        # `s` could be `step`, `show` or `set`: only a unique beginning is a command.
        if name in self._commands or len(matching) == 1:
            return self._commands[name if name in self._commands else matching[0]]
        guess = did_you_mean(name, self._commands)
        raise UsageError(f"there is no command {quoted(name)}", hint=f"{guess}`help` lists them")

    def _step(self, words: list[str]) -> None:
        for _ in range(_count(words)):
            if self._run.position < len(self._run):
                self._run.step()
                self._results()
        self._next()

    def _back(self, words: list[str]) -> None:
        for _ in range(_count(words)):
            self._run.back()
        self._next()

    def _to(self, words: list[str]) -> None:
        self._run.run(words[0] if words else None)
        self._next()

    def _show(self, words: list[str]) -> None:
        if not words:
            return self._results()
        for name in words:
            _show(f"%{name.removeprefix('%')}", self._run.value(name))

    def _set(self, words: list[str]) -> None:
        if len(words) != 2:
            raise UsageError("`set` takes a name and a value", hint="set %12 0")
        _set(self._run, *words)
        self._next()

    def _list(self, _: list[str]) -> None:
        position = self._run.position
        for number in range(max(0, position - _SHOWN), min(len(self._run), position + _SHOWN)):
            mark = "->" if number == position else "  "
            print(printable(f"{mark} {number:4} {self._run.line(number)}"))

    def _results(self) -> None:
        if not self._run.position:
            raise UsageError("nothing is computed yet", hint="`step` computes an instruction")
        for name, array in self._run.last().items():
            _show(f"%{name}", array)

    def _next(self) -> None:
        position = self._run.position
        if position == len(self._run):
            note("at the end; `back` goes back, `show NAME` shows a value")
        else:
            print(printable(f"-> {position:4} {self._run.line(position)}"))


def _count(words: list[str]) -> int:
    if words and not words[0].isdecimal():
        raise UsageError(f"{quoted(words[0])} is not a number of instructions")
    return int(words[0]) if words else 1
