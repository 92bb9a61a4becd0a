"""`gptrs inspect`: shows the contents of a checkpoint or of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gptrs.errors import UsageError
from gptrs.plugins.exporters import importer_of
from gptrs.quoting import quoted
from gptrs_cli.imported.inspection import inspect_imported
from gptrs_cli.inspect.checkpoint import print_report, read_report
from gptrs_cli.inspect.program import ProgramOptions, inspect_program
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_runtime.programs import is_program
from gptrs_runtime.sources.imported_folder import named_file


@command_options()
def inspect(
    *,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A model (a directory, a .gptrschk file, ORG/NAME of the hub), a file of tensors"
            " (.safetensors, .npz, .npy, .gptrsten), a program (.ptir, or as JSON), or a model that"
            " an importer reads.",
            show_default=False,
        ),
    ],
    options: ProgramOptions,
    settings: Settings,
) -> None:
    """Show the contents of a checkpoint, or verify a program.

    Programs, and those of imported models, are shown with their inputs, outputs and cost. Of a
    checkpoint, only the headers of its files are read and checked.
    """
    options.check(as_json=settings.json)
    path = named_file(path)
    importer = importer_of(path)
    if importer is not None:
        inspect_imported(path, importer, options, settings)
        return
    if is_program(path):
        inspect_program(path, options, as_json=settings.json)
        return
    if options != ProgramOptions():
        raise UsageError(
            "`--print`, `--svg`, `--dot`, `--times`, `--symbol` and `--why` are for programs,"
            f" {quoted(str(path), 200)} is none",
            hint="a program begins with its version, `ptir.v0.5`, or with `{` in JSON",
        )
    report = read_report(path)
    if settings.json:
        print_result(report.told())
    else:
        print_report(report)
