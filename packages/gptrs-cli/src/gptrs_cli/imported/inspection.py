"""`gptrs inspect` of a model that an importer reads: its interface, and its program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from gptrs.errors import GptrsError, UsageError
from gptrs.plugins.descriptions import ImporterPlugin
from gptrs.plugins.manager import manager
from gptrs_cli.imported.options import loaded_import
from gptrs_cli.inspect.program import ProgramOptions, show_program
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.stderr import printable
from gptrs_observe.programs.report import report_program
from gptrs_runtime.imported.conversion import Converted, converted
from gptrs_runtime.imported.loaded_import import LoadedImport
from gptrs_runtime.imported.sizes import named_sizes
from gptrs_runtime.results import Result


class ImportedInput(Struct, frozen=True, kw_only=True):
    """An input of an imported model; `shape` has names for free sizes, and is null for any rank."""

    name: str
    dtype: str
    shape: list[int | str] | None
    optional: bool


class InspectModel(Result, frozen=True, kw_only=True, tag="gptrs.inspect.model/1"):
    """`gptrs inspect` of a model that an importer reads."""

    model: str
    importer: str
    support: str
    inputs: list[ImportedInput]
    outputs: list[str]
    sizes: dict[str, int] | None
    """Those that the program was made for, none where it has symbols."""
    program: dict[str, Any] | None
    """As in `gptrs inspect` of a program; null where the model cannot be converted."""
    refused: str | None
    """Why it cannot be."""


def inspect_imported(
    path: Path, importer: str, options: ProgramOptions, settings: Settings
) -> None:
    """Print inputs, outputs and program of a model, or what of its program is asked for.

    A model that cannot be converted is shown with the reason, unless its program was asked for.
    """
    loaded = loaded_import(path, importer, settings)
    if options.asks_for_program:
        program = converted(loaded, named_sizes(options.symbols)).program
        show_program(program, str(path), options, as_json=settings.json)
        return
    made, refused = None, None
    try:
        made = converted(loaded, named_sizes(options.symbols))
    except UsageError:
        raise
    except GptrsError as error:
        refused = error.message
    if settings.json:
        return print_result(_told(loaded, made, refused))
    for name, text in _facts(loaded).items():
        first, *more = text.split("\n")
        print(printable(f"{name:<12}{first}"))
        for line in more:
            print(printable(f"{'':<12}{line}"))
    print()
    if made is None:
        print(printable(f"It cannot be run: {refused}"))
        return
    sizes = ", ".join(f"{name}={size}" for name, size in made.sizes.items())
    name = f"for {sizes}" if sizes else "as it was converted"
    show_program(made.program, name, options, as_json=False)


def _reader(loaded: LoadedImport) -> str:
    record = manager().record(ImporterPlugin, loaded.importer)
    return f"{record.distribution} {record.version}"


def _facts(loaded: LoadedImport) -> dict[str, str]:
    model = loaded.model
    return {
        "model": str(loaded.path),
        "importer": f"{loaded.importer} of {_reader(loaded)}",
        "takes": "\n".join(map(str, model.inputs.values())) or "nothing",
        "gives": "\n".join(model.outputs),
    }


def _told(loaded: LoadedImport, made: Converted | None, refused: str | None) -> InspectModel:
    model = loaded.model
    return InspectModel(
        model=str(loaded.path),
        importer=loaded.importer,
        support=_reader(loaded),
        inputs=[
            ImportedInput(
                name=each.name,
                dtype=str(each.dtype),
                shape=None if each.shape is None else list(each.shape),
                optional=each.optional,
            )
            for each in model.inputs.values()
        ],
        outputs=list(model.outputs),
        sizes=None if made is None else dict(made.sizes),
        program=None if made is None else report_program(made.program).as_json(),
        refused=refused,
    )
