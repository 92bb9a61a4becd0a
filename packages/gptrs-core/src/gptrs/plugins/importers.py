"""Models out of files of other formats, which plugins read: importers.

An importer is found by the suffix of a file. What it makes is called with arrays by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from gptrs.errors import GptrsError, PluginError
from gptrs.ir.dtypes import DType
from gptrs.plugins.descriptions import FormatPlugin, ImporterPlugin
from gptrs.plugins.manager import manager
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted

if TYPE_CHECKING:
    from gptrs.backend.protocol import Backend


@dataclass(frozen=True)
class ModelInput:
    """An input of an imported model: its element type, and its sizes, numbers or names.

    A name stands for any size, the same wherever it occurs. `shape` None leaves the rank open; an
    `optional` input may be left out.
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...] | None
    optional: bool = False

    def __str__(self) -> str:
        sizes = "[..]" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{quoted(self.name)[1:-1]}: {self.dtype}{sizes}{'?' if self.optional else ''}"


@runtime_checkable
class ImportedModel(Protocol):
    """A model out of a file of another format, on one backend.

    `inputs` and `outputs` have the order of the file.
    """

    inputs: Mapping[str, ModelInput]
    outputs: tuple[str, ...]

    def __call__(self, *arrays: object, **named: object) -> dict[str, np.ndarray]:
        """Return the outputs by name; UsageError for inputs that do not fit."""
        ...


def importer_of(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the importer for files with the suffix of `path`, None if there is none.

    PluginError where several plugins take it.
    """
    return plugin_for(path, ImporterPlugin, "importers read")


def plugin_for(path: str | os.PathLike[str], point: type[FormatPlugin], several: str) -> str | None:
    """Return the name of the plugin for files with the suffix of `path`, None if there is none.

    PluginError where several plugins take it, which says what they do.
    """
    suffix = Path(path).suffix.lower()
    if not suffix:
        return None
    names = [plugin.name for plugin in manager().descriptions(point) if suffix in plugin.suffixes]
    if len(names) > 1:
        raise PluginError(
            f"several {several} `{suffix}` files: {', '.join(names)}",
            hint="leave all but one out with --disable-plugin",
        )
    return names[0] if names else None


def import_model(path: str | os.PathLike[str], importer: str, backend: Backend) -> ImportedModel:
    """Return the model in a file as the plugin `importer` reads it.

    Errors of gptrs pass through; any other one, and a result that is no `ImportedModel`, is a
    PluginError that names the plugin.
    """
    plugins = manager()
    factory = plugins.factory(ImporterPlugin, importer)
    try:
        made = factory(Path(path), backend)
        if not isinstance(made, ImportedModel):
            kind = type(made).__name__
            raise TypeError(f"its factory made a `{kind}`, an `ImportedModel` is needed")
    except (KeyboardInterrupt, GptrsError):
        raise
    except BaseException as error:  # SystemExit, too: a plugin must not end the program
        raise plugins.broken(ImporterPlugin, importer, error) from error
    return made
