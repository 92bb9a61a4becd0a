"""`gptrs inspect` for imported models: interface, operators and program."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct, field

from gptrs.errors import BackendError, GptrsError, UsageError
from gptrs.plugins.descriptions import ImporterPlugin
from gptrs.plugins.exporters import FileContents, ModelInput, file_contents, importer_of
from gptrs.plugins.manager import manager
from gptrs_cli.inspect.checkpoint import byte_size
from gptrs_cli.inspect.program import ProgramOptions, show_program
from gptrs_cli.options.declare import option
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import printable
from gptrs_observe.programs.report import report_program
from gptrs_runtime.imported.batch import (
    Converted,
    converted,
    example_sizes,
    named_sizes,
)
from gptrs_runtime.imported.scores import LoadedImport, load_import
from gptrs_runtime.results import Result

# Options that only imported models take, and options that they do not take.


_SYMBOL = option(
    "--symbol",
    "For imported models: set a free size; repeatable.",
    metavar="NAME=SIZE",
)


class SizeOptions(Struct, frozen=True):
    """Sizes by name."""

    symbols: Annotated[list[str], _SYMBOL] = field(default_factory=list[str])


class ImportOptions(Struct, frozen=True):
    """Sizes by name, and the preprocessing of images."""

    symbols: Annotated[list[str], _SYMBOL] = field(default_factory=list[str])
    preprocessor: Annotated[
        Path | None,
        option(
            "--preprocessor",
            "For imported models: preprocess images by this preprocessor_config.json instead of "
            "the one beside the model.",
            metavar="FILE",
        ),
    ] = None


def importer_for(model: Path | None, options: SizeOptions | ImportOptions) -> str | None:
    """Return the importer of a model; None for a model of gptrs.

    Raises UsageError for `options` that the model does not take.
    """
    importer = None if model is None else importer_of(model)
    # Ignored options would look as if they had an effect.
    if importer is None and options != type(options)():
        raise UsageError(
            "`--symbol` and `--preprocessor` are for models that an importer reads",
            hint="`gptrs list plugins` shows the importers",
        )
    return importer


def loaded_import(path: Path, importer: str, settings: Settings) -> LoadedImport:
    """Read a model by the options of `settings`; raises what `load_import` raises."""
    return load_import(path, importer, settings.load)


class ImportedInput(Struct, frozen=True, kw_only=True):
    """An input of an imported model; `shape` has names for free sizes, and is null for any rank."""

    name: str
    dtype: str
    shape: list[int | str] | None
    optional: bool


class FileWeights(Struct, frozen=True, kw_only=True):
    """The weights in a file: how many tensors, their elements, their bytes."""

    tensors: int
    elements: int
    bytes: int


class InspectModel(Result, frozen=True, kw_only=True, tag="gptrs.inspect.model/1"):
    """`gptrs inspect` of an imported model."""

    model: str
    importer: str
    support: str
    inputs: list[ImportedInput] | None
    """Null where the model cannot be loaded; `takes` has them as the file declares them."""
    outputs: list[str]
    takes: dict[str, str] | None
    """The type of each input as the file declares it; null if its importer does not tell."""
    gives: dict[str, str] | None
    """The type of each output."""
    ops: dict[str, int] | None
    """How many nodes each operator of the file has."""
    missing: dict[str, str] | None
    """Why an operator, or a value, is not converted."""
    weights: FileWeights | None
    facts: dict[str, str] | None
    """Further facts that the file states, such as its writer."""
    sizes: dict[str, int] | None
    """Sizes that the program was made for; empty if it has symbols."""
    program: dict[str, Any] | None
    """As in `gptrs inspect` of a program; null if the model cannot be converted."""
    refused: str | None
    """Why the model cannot be converted."""


class _Inspected(Struct, frozen=True):
    """A file: its model and program where they can be made, what it says of itself, why not."""

    path: Path
    importer: str
    loaded: LoadedImport | None
    made: Converted | None
    contents: FileContents | None
    refused: str | None


def inspect_imported(
    path: Path, importer: str, options: ProgramOptions, settings: Settings
) -> None:
    """Print inputs, outputs, operators and program of a model, or the requested view of it.

    A model that cannot be loaded or converted is shown with the reason, unless its program was
    asked for.
    """
    if options.asks_for_program:
        loaded = loaded_import(path, importer, settings)
        program = converted(loaded, named_sizes(options.symbols)).program
        show_program(program, str(path), options, as_json=settings.json)
        return
    found = _inspected(path, importer, named_sizes(options.symbols), settings)
    if settings.json:
        return print_result(_told(found))
    for name, text in _facts(found).items():
        first, *more = text.split("\n")
        print(printable(f"{name:<12}{first}"))
        for line in more:
            print(printable(f"{'':<12}{line}"))
    print()
    if found.made is None:
        print(printable(f"It cannot be run: {found.refused}"))
        return
    sizes = _listed(found.made.sizes)
    name = f"for {sizes}" if sizes else "as it was converted"
    show_program(found.made.program, name, options, as_json=False)


def _inspected(
    path: Path, importer: str, given: Mapping[str, int], settings: Settings
) -> _Inspected:
    """Return what there is to say of a file; errors are those of damage and of odd sizes."""
    # Read first: a file that cannot be loaded can still be described.
    contents = file_contents(path, importer)
    try:
        loaded = loaded_import(path, importer, settings)
    # Faults of the call, not of the file: they are raised as for any command.
    except (UsageError, BackendError):
        raise
    except GptrsError as error:
        # Without a description of the file there is nothing to show but the error.
        if contents is None:
            raise
        return _Inspected(path, importer, None, None, contents, str(error))
    sizes = example_sizes(loaded.model.inputs, given)
    try:
        made = converted(loaded, given)
    except GptrsError as error:
        # Sizes that were not given are guesses, which the error may follow from.
        made_up = _listed({name: size for name, size in sizes.items() if name not in given})
        more = f" (with the sizes {made_up}; `--symbol NAME=SIZE` gives others)" if made_up else ""
        return _Inspected(path, importer, loaded, None, contents, f"{error}{more}")
    return _Inspected(path, importer, loaded, made, contents, None)


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _reader(importer: str) -> str:
    record = manager().record(ImporterPlugin, importer)
    return f"{record.distribution} {record.version}"


def _facts(found: _Inspected) -> dict[str, str]:
    """Return what to print, by heads."""
    contents, loaded = found.contents, found.loaded
    takes = [] if contents is None else list(map(str, contents.inputs))
    gives = [] if contents is None else list(map(str, contents.outputs))
    if loaded is not None:  # its inputs have names for all sizes, as `--symbol` takes them
        takes = list(map(str, loaded.model.inputs.values()))
        gives = gives or list(loaded.model.outputs)
    facts = {
        "model": str(found.path),
        "importer": f"{found.importer} of {_reader(found.importer)}",
        "takes": "\n".join(takes) or "nothing",
        "gives": "\n".join(gives) or "nothing",
    }
    if contents is None:
        return facts
    weights = (
        f"{contents.weights} tensors, {contents.weight_elements:,} elements,"
        f" {byte_size(contents.weight_bytes)}"
    )
    counts = [f"{name} {count}" for name, count in contents.ops.items()]
    missing = [f"{name}: {why}" for name, why in contents.missing.items()]
    more = {
        "weights": weights,
        "ops": "\n".join(textwrap.wrap(", ".join(counts), 84)) or "none",
        "missing": "\n".join(missing),
        "file": "\n".join(f"{name} {text}" for name, text in contents.facts.items()),
    }
    return facts | {name: text for name, text in more.items() if text}


def _told(found: _Inspected) -> InspectModel:
    contents, model = found.contents, None if found.loaded is None else found.loaded.model
    made = found.made
    takes = None if contents is None else {each.name: each.type for each in contents.inputs}
    gives = None if contents is None else {each.name: each.type for each in contents.outputs}
    return InspectModel(
        model=str(found.path),
        importer=found.importer,
        support=_reader(found.importer),
        inputs=None if model is None else [_input(each) for each in model.inputs.values()],
        outputs=list(gives or {}) if model is None else list(model.outputs),
        takes=takes,
        gives=gives,
        ops=None if contents is None else dict(contents.ops),
        missing=None if contents is None else dict(contents.missing),
        weights=None
        if contents is None
        else FileWeights(
            tensors=contents.weights,
            elements=contents.weight_elements,
            bytes=contents.weight_bytes,
        ),
        facts=None if contents is None else dict(contents.facts),
        sizes=None if made is None else dict(made.sizes),
        program=None if made is None else report_program(made.program).as_json(),
        refused=found.refused,
    )


def _input(each: ModelInput) -> ImportedInput:
    return ImportedInput(
        name=each.name,
        dtype=str(each.dtype),
        shape=None if each.shape is None else list(each.shape),
        optional=each.optional,
    )
