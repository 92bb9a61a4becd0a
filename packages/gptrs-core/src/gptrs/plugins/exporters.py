"""Programs and models into files of other formats, which plugins write: exporters.

An exporter is found by the suffix of the file that is to be written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor
from gptrs.errors import GptrsError
from gptrs.ir.program import Program
from gptrs.plugins.descriptions import ExporterPlugin
from gptrs.plugins.importers import ModelInput, plugin_for
from gptrs.plugins.manager import manager
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class OutgoingModel:
    """A program on its way into a file of another format.

    `program` has `@main` alone, in canonical form: no calls, and custom calls only where nothing
    says what they mean. Its parameters are the `inputs`, in order, and then the `weights`.
    """

    name: str
    program: Program
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    weights: tuple[OutgoingTensor, ...] = ()
    limits: tuple[str, ...] = ()
    """Conditions on free sizes, `sequence <= 512`."""


def exporter_of(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the exporter for files with the suffix of `path`, None if there is none.

    PluginError where several plugins take it.
    """
    return plugin_for(path, ExporterPlugin, "exporters write")


def export_model(model: OutgoingModel, path: str | os.PathLike[str], exporter: str) -> list[Path]:
    """Write a model as the plugin `exporter` does; return the files.

    Errors of gptrs pass through; any other one, and a result that is no list of paths, is a
    PluginError that names the plugin.
    """
    plugins = manager()
    factory = cast(
        "Callable[[OutgoingModel, Path], object]", plugins.factory(ExporterPlugin, exporter)
    )
    try:
        made = factory(model, Path(path))
        if not isinstance(made, (list, tuple)):
            raise TypeError(f"it returned a `{type(made).__name__}`, a list of paths is needed")
        return [Path(each) for each in cast("Sequence[str | os.PathLike[str]]", made)]
    except (KeyboardInterrupt, GptrsError):
        raise
    except BaseException as error:  # SystemExit, too: a plugin must not end the program
        raise plugins.broken(ExporterPlugin, exporter, error) from error
