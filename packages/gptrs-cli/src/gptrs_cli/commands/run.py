"""`gptrs run`: runs a program on inputs from files, or on random ones."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from msgspec import Struct

from gptrs import use_backend
from gptrs.api import UsageError
from gptrs.api.importers import ImportedModel
from gptrs.api.models import tensor
from gptrs.api.programs import run_program
from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs.plugins.exporters import SeededModel, import_model, importer_of
from gptrs.quoting import quoted
from gptrs_cli.dumped_programs import ProgramInputs, read_case
from gptrs_cli.loading import observed, profile_of
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.named_model import is_model, require_named
from gptrs_cli.options.settings import PROGRAM, Settings
from gptrs_cli.plain_commands import Application
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.streams import note, note_below, printable
from gptrs_observe.programs.report import result_types, shown_values
from gptrs_observe.results import Run, program_result
from gptrs_runtime.imported.batch import listed_inputs, made_up, named_sizes, sizes_of
from gptrs_runtime.imported.scores import named_arrays
from gptrs_runtime.programs import (
    InputFiles,
)
from gptrs_runtime.results import Profile

# Inputs of imported models.


def inputs_of(
    model: ImportedModel, files: InputFiles, sizes: Mapping[str, int], seed: int | None
) -> dict[str, np.ndarray]:
    """Return the inputs of a model: from files, or, with a seed, random ones.

    Raises UsageError for an input that is unknown, missing, or of a free size that was not given.
    """
    unknown = [name for name in files.types() if name not in model.inputs]
    if unknown:
        raise UsageError(
            f"the model has no input {quoted(unknown[0])}", hint=f"it takes {listed_inputs(model)}"
        )
    arrays = files.arrays()
    known = sizes_of(model.inputs, arrays, sizes)
    missing = [
        each for name, each in model.inputs.items() if name not in arrays and not each.optional
    ]
    if missing and seed is None:
        raise UsageError(
            f"no input is given for `{missing[0]}`, which is needed",
            hint="name files that have them with --input, or make them up with --random-seed",
        )
    for each in missing:
        arrays[each.name] = made_up(each, known, seed or 0)
    return arrays


app = Application(add_completion=False)
_ANY = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Options of `generate` and `chat` come along, and are read once it is known that one is meant."""


@app.command("run", context_settings=_ANY)
@command_options(*PROGRAM)
def run(
    *,
    ctx: typer.Context,
    program: Annotated[
        Path,
        typer.Argument(
            help="A program, as text (.ptir) or as JSON, a model that an importer reads (.onnx), or"
            " a model of text: a folder, a file (.gguf), ORG/NAME[:Q4_K_M] of the hub.",
            show_default=False,
        ),
    ],
    inputs: ProgramInputs,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Write the results (result0, result1, ...); the suffix selects the format.",
            metavar="FILE",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        option("--seed", "The seed of a model that makes random numbers.", metavar="N"),
    ] = None,
    settings: Settings,
) -> None:
    """Run a program, or an imported model, and print its results.

    Parameters without a name are called arg0, arg1 and so on by position. A model of text answers
    the prompt after it, and chats if there is none; options are those of `gptrs generate`.
    """
    if str(program).startswith("-"):
        raise UsageError(
            f"no such option for a program: {program}", hint="name the program or the model first"
        )
    if is_model(program):
        given = {
            "--input": inputs.inputs,
            "--random-seed": inputs.random_seed,
            "--symbol": inputs.symbols,
            "--out": out,
        }
        wrong = next((name for name, value in given.items() if value not in (None, [])), None)
        if wrong is not None:
            raise UsageError(f"`{wrong}` is for programs, `{program}` is a model of text")
        # Imported late: programs need no models.
        models = importlib.import_module("gptrs_cli.models.run_model")
        drawn = [] if seed is None else ["--seed", str(seed)]
        return models.run_model(program, [*drawn, *ctx.args], ctx)
    if ctx.args:
        what = "no such option" if ctx.args[0].startswith("-") else "unexpected extra argument"
        raise UsageError(f"{what}: {ctx.args[0]}", hint="see `gptrs run --help`")
    require_named(program)
    _run_file(program, inputs, out, seed, settings)


def _run_file(
    program: Path, inputs: ProgramInputs, out: Path | None, seed: int | None, settings: Settings
) -> None:
    importer = importer_of(program)
    if importer is None and seed is not None:
        raise UsageError(
            "`--seed` is for models with operators that make random numbers, and the seed of a"
            " program is one of its inputs",
            hint="draw its inputs with --random-seed",
        )
    if settings.overrides and importer is None:
        note("a program is made of ops, which overrides of functionals do not change")
    with observed(settings) as profile:
        if out is not None:
            require_writable(out)
        with Waiting(f"reading `{program}`") as waiting:
            if importer is None:
                done = _run_program(program, inputs, settings, waiting)
            else:
                done = _run_model(program, importer, inputs, seed, settings, waiting)
            if out is not None:
                waiting.now(f"writing `{out}`")
                write_archive(out, done.results)
        if settings.json:
            return print_result(_told(done, profile_of(profile)))
        _print(done)
        noun = "result" if len(done.results) == 1 else "results"
        written = f", written to {out}" if out is not None else ""
        note_below(
            f"{len(done.results)} {noun} in {done.seconds:.3f} s, backend {done.backend}{written}"
        )


class _Done(Struct, frozen=True):
    """The results of a run by name, their types, and how long it took."""

    results: Mapping[str, np.ndarray]
    types: Mapping[str, str]
    backend: str
    seconds: float


def _run_program(path: Path, inputs: ProgramInputs, settings: Settings, waiting: Waiting) -> _Done:
    waiting.now("reading the inputs")
    case = read_case(path, inputs)
    loaded, arrays = case.program, case.arrays
    backend = settings.load.made_backend()
    waiting.now(f"running on {backend.name}")
    started = time.perf_counter()
    with compilation_shown(backend, waiting):
        found = run_program(loaded, arrays, backend)
    seconds = time.perf_counter() - started
    results = {f"result{position}": array for position, array in enumerate(found)}
    return _Done(results, result_types(loaded), backend.name, seconds)


def _run_model(
    path: Path,
    importer: str,
    inputs: ProgramInputs,
    seed: int | None,
    settings: Settings,
    waiting: Waiting,
) -> _Done:
    sizes = named_sizes(inputs.symbols)
    backend = settings.load.made_backend()
    model = import_model(path, importer, backend)
    if seed is not None:
        if not isinstance(model, SeededModel):
            raise UsageError(f"the models of the importer `{importer}` take no `--seed`")
        model.seed = seed
    waiting.now("reading the inputs")
    with InputFiles(tuple(inputs.inputs)) as files:
        arrays = inputs_of(model, files, sizes, inputs.random_seed)
    waiting.now(f"running on {backend.name}")
    started = time.perf_counter()
    with compilation_shown(backend, waiting), use_backend(backend):
        results = named_arrays(model(**arrays))
    seconds = time.perf_counter() - started
    types = {name: _type_text(array) for name, array in results.items()}
    return _Done(results, types, backend.name, seconds)


def _type_text(array: np.ndarray) -> str:
    """Return the type of a result: that of PTIR, which has no strings."""
    if array.dtype == object:
        return f"string[{', '.join(map(str, array.shape))}]"
    return str(tensor(array).type)


def _print(done: _Done) -> None:
    for name, array in done.results.items():
        print(f"{printable(name)}: {done.types[name]}")
        for line in shown_values(array).splitlines():
            print(printable(f"  {line}".rstrip()))


def _told(done: _Done, profile: Profile) -> Run:
    results = [program_result(name, array) for name, array in done.results.items()]
    return Run(backend=done.backend, results=results, seconds=done.seconds, profile=profile)
