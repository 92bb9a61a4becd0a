"""The options that only models read by an importer take, and the options that these do not take."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated

from gptrs.errors import UsageError
from gptrs.plugins.importers import importer_of
from gptrs.quick_dataclass import dataclass
from gptrs_cli.loading import chosen_backend
from gptrs_cli.options.declare import option
from gptrs_cli.options.settings import Settings
from gptrs_runtime.imported.loaded_import import LoadedImport, load_import

_SYMBOL = option(
    "--symbol",
    "Of an imported model: a size that it leaves free; can be repeated.",
    metavar="NAME=SIZE",
)


@dataclass(frozen=True)
class SizeOptions:
    """Sizes by name."""

    symbols: Annotated[list[str], _SYMBOL] = field(default_factory=list[str])


@dataclass(frozen=True)
class ImportOptions:
    """Sizes by name, and how images are prepared."""

    symbols: Annotated[list[str], _SYMBOL] = field(default_factory=list[str])
    preprocessor: Annotated[
        Path | None,
        option(
            "--preprocessor",
            "Of an imported model: prepare images as this preprocessor_config.json says, not the"
            " one beside the model.",
            metavar="FILE",
        ),
    ] = None


def importer_for(model: Path | None, options: SizeOptions | ImportOptions) -> str | None:
    """Return the importer of a model, None for a model of gptrs.

    UsageError for `options` that such a model does not take.
    """
    importer = None if model is None else importer_of(model)
    if importer is None and options != type(options)():
        raise UsageError(
            "`--symbol` and `--preprocessor` are for models that an importer reads",
            hint="`gptrs list plugins` shows the importers",
        )
    return importer


def loaded_import(path: Path, importer: str, settings: Settings) -> LoadedImport:
    """Read a model on the backend of `settings`; UsageError for those that it does not take."""
    for name, value in (("weights", settings.weights), ("weight-budget", settings.weight_budget)):
        if value is not None:
            raise UsageError(
                f"`--{name}` is for models of gptrs, `{path}` is read by the importer `{importer}`",
                hint="leave it out",
            )
    precision = None if settings.precision is None else settings.precision.value
    return load_import(path, importer, chosen_backend(settings), None, precision)
