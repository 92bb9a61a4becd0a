"""`gptrs run`: run a program on inputs from files, or on made-up ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from gptrs.api import Program, run_program
from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs.plugins.manager import get_backend
from gptrs.quick_dataclass import dataclass
from gptrs.runtime.programs.file import read_program
from gptrs.runtime.programs.inputs import InputFiles, random_inputs, require_complete
from gptrs.runtime.programs.report import result_types
from gptrs.runtime.programs.sizes import parse_sizes, with_sizes
from gptrs.runtime.programs.value_text import MAX_JSON_ELEMENTS, json_values, shown_values
from gptrs_cli.observation import observed, profile_fields
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import PROGRAM, Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.stderr import note, note_below, printable
from gptrs_cli.terminal.waiting import Waiting


@dataclass(frozen=True)
class ProgramInputs:
    """The inputs of a program, from files or made up, and the sizes of its symbolic dims."""

    inputs: Annotated[
        list[Path],
        option(
            "--input",
            "Tensors by the names of the parameters: .safetensors, .npz, .gptrsten, or NAME.npy"
            " with one of them; can be repeated.",
            metavar="FILE",
        ),
    ] = field(default_factory=list[Path])
    random_seed: Annotated[
        int | None,
        option(
            "--random-seed",
            "Make up the inputs that no file has, the same for the same N.",
            metavar="N",
        ),
    ] = None
    symbols: Annotated[
        list[str],
        option(
            "--symbol",
            "The size of the dim `?N`, which inputs from files give as well; can be repeated.",
            metavar="N=SIZE",
        ),
    ] = field(default_factory=list[str])


@command_options(*PROGRAM)
def run(
    *,
    program: Annotated[
        Path, typer.Argument(help="A program, as text (.ptir) or as JSON.", show_default=False)
    ],
    inputs: ProgramInputs,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Write the results, result0 and so on; the suffix says in which of these formats.",
            metavar="FILE",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Run a program and print its results, large ones abbreviated.

    Parameters without a name are called arg0, arg1 and so on, by their position.
    """
    sizes = parse_sizes(inputs.symbols)
    if settings.overrides:
        note("a program is made of ops: what overrides functionals changes nothing in it")
    with observed(settings) as profile:
        if out is not None:
            require_writable(out)
        with Waiting(f"reading `{program}`") as waiting:
            loaded, arrays = _read(program, inputs, sizes, waiting)
            backend = get_backend(settings.backend, settings.threads)
            waiting.now(f"running on {backend.name}")
            started = time.perf_counter()
            with compilation_shown(backend, waiting):
                found = run_program(loaded, arrays, backend)
            seconds = time.perf_counter() - started
            results = {f"result{position}": array for position, array in enumerate(found)}
            if out is not None:
                waiting.now(f"writing `{out}`")
                write_archive(out, results)
        types = result_types(loaded)
        if settings.json:
            fields = _as_json(types, results, backend.name, seconds)
            print_result("run", fields | profile_fields(profile))
            return
        _print(types, results)
        noun = "result" if len(results) == 1 else "results"
        written = f", written to {out}" if out is not None else ""
        note_below(f"{len(results)} {noun} in {seconds:.3f} s, backend {backend.name}{written}")


def _read(
    path: Path, inputs: ProgramInputs, sizes: dict[int, int], waiting: Waiting
) -> tuple[Program, dict[str, np.ndarray]]:
    """Return the program in the file, with sizes for its symbols, and its inputs by name."""
    program = read_program(path)
    waiting.now("reading the inputs")
    with InputFiles(tuple(inputs.inputs)) as files:
        files.require_known(program)
        types = files.types()
        if inputs.random_seed is None:
            require_complete(program, types)
        program = with_sizes(program, sizes, types)
        arrays = files.read(program)
    if inputs.random_seed is not None:
        arrays |= random_inputs(program, inputs.random_seed, arrays)
    return program, arrays


def _print(types: Mapping[str, str], results: Mapping[str, np.ndarray]) -> None:
    for name, array in results.items():
        print(f"{name}: {types[name]}")
        for line in shown_values(array).splitlines():
            print(printable(f"  {line}".rstrip()))


def _as_json(
    types: Mapping[str, str],
    results: Mapping[str, np.ndarray],
    backend: str,
    seconds: float,
) -> dict[str, object]:
    listed: list[dict[str, object]] = []
    for name, array in results.items():
        fields: dict[str, object] = {
            "name": name,
            "dtype": types[name].partition("[")[0],
            "shape": list(array.shape),
        }
        if array.size <= MAX_JSON_ELEMENTS:
            fields["values"] = json_values(array)
        listed.append(fields)
    return {"backend": backend, "results": listed, "seconds": seconds}
