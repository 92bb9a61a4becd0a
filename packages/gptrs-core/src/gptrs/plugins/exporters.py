"""Exporters: plugins that write programs and models to files of other formats.

The suffix of the output selects the exporter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import is_not
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.errors import GptrsError, PluginError, UsageError
from gptrs.ir.dtypes import DType
from gptrs.ir.program import Program
from gptrs.plugins.descriptions import ExporterPlugin, FormatPlugin, ImporterPlugin
from gptrs.plugins.entry_points import require_callable
from gptrs.plugins.manager import manager
from gptrs.quoting import quoted

if TYPE_CHECKING:
    from gptrs.backend.contract import Backend
    from gptrs.checkpoint.param_source import ParamSource
    from gptrs.checkpoint.params import Params


# Importers: plugins that read models from files of other formats.
#
# The suffix of a file selects the importer. Its model is called with arrays by name.


_MOST_OPTIONAL: Final = 8
"""Most optional inputs in a message: a file may have all its weights as such."""


class ModelInput(Struct, frozen=True):
    """An input of an imported model: element type, and sizes as numbers or names.

    A name means any size, equal wherever the name occurs. `shape` None leaves the rank open; an
    `optional` input may be omitted.
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...] | None
    optional: bool = False

    def __str__(self) -> str:
        sizes = "[..]" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{quoted(self.name)[1:-1]}: {self.dtype}{sizes}{'?' if self.optional else ''}"

    def array(self, value: object) -> np.ndarray:
        """Return `value` as an array for this input; UsageError for another type or shape.

        Lists and numbers, which have no element type, are converted if that loses at most digits of
        floats.
        """
        array = np.asarray(value)
        wanted = self.dtype.numpy
        if array.dtype is wanted and array.shape == self.shape:  # nearly always
            return array
        if array.dtype != wanted and not hasattr(value, "dtype"):
            array = self._converted(array)
        if array.dtype != wanted:
            raise UsageError(
                f"the input {self} got an array of {array.dtype}",
                hint=f'`array.astype("{wanted}")` makes one of its type',
            )
        if not self.fits(array.shape):
            raise UsageError(f"the input {self} got an array of shape {list(array.shape)}")
        return array

    def made_up(self, numbers: np.ndarray) -> np.ndarray:
        """Return random numbers of its type and shape as a value of this input."""
        return numbers

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether `shape` has the declared rank and numeric sizes."""
        stated = self.shape
        if stated is None or stated == shape:
            return True
        return len(shape) == len(stated) and all(
            isinstance(want, str) or want == have for want, have in zip(stated, shape, strict=True)
        )

    def _converted(self, array: np.ndarray) -> np.ndarray:
        if self.dtype.is_float and array.dtype.kind in "ifb":
            return array.astype(self.dtype.numpy)
        if self.dtype.is_integer and array.dtype.kind in "ib":
            whole = array.astype(self.dtype.numpy)
            return whole if np.array_equal(whole, array) else array
        return array


@runtime_checkable
class ImportedModel(Protocol):
    """A model from a file of another format, on one backend.

    `inputs` and `outputs` have the order of the file.
    """

    inputs: Mapping[str, ModelInput]
    outputs: tuple[str, ...]

    def __call__(self, *arrays: object, **named: object) -> dict[str, np.ndarray]:
        """Return the outputs by name; UsageError for inputs that do not fit."""
        ...


@runtime_checkable
class SeededModel(ImportedModel, Protocol):
    """An imported model whose operators may make random numbers."""

    seed: int | None
    """The seed of the numbers; without one, such operators are refused."""


class LanguageModelFile(Protocol):
    """A language model in a file of another format: its weights, and a model built from them."""

    @property
    def weights(self) -> ParamSource:
        """The weights by the names in the file."""
        ...

    def build(self, settings: Mapping[str, object], params: Params) -> object:
        """Return the model: an object with the class attribute `capabilities`.

        `settings` are those of config.json, `params` have the types of `weights`.
        """
        ...


def language_model_file(path: str | os.PathLike[str], importer: str) -> LanguageModelFile:
    """Open a language model by the plugin `importer`, which has a `language_model`.

    Errors of gptrs pass through; any other one is a PluginError that names the plugin.
    """
    plugins = manager()
    reference = plugins.find(ImporterPlugin, importer).language_model
    if reference is None:
        raise UsageError(f"the importer `{importer}` reads no language models")
    opens = plugins.imported(ImporterPlugin, importer, reference, require_callable)
    with plugins.code_of(ImporterPlugin, importer, GptrsError):
        return cast("LanguageModelFile", opens(Path(path)))


class FileValue(Struct, frozen=True):
    """An input or output that a file declares; `type` is that of PTIR where it has one."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{quoted(self.name)[1:-1]}: {self.type}"


class FileContents(Struct, frozen=True):
    """A file of another format as it describes itself, whether its model can be run or not.

    `ops` counts the operators that its graphs name, `missing` says why some of them, or types of
    values, are not converted. `facts` are other words about the file, by their heads.
    """

    inputs: tuple[FileValue, ...]
    outputs: tuple[FileValue, ...]
    ops: Mapping[str, int]
    missing: Mapping[str, str]
    weights: int
    weight_elements: int
    weight_bytes: int
    facts: Mapping[str, str]


def named_arguments(
    model: str,
    inputs: Mapping[str, ModelInput],
    arguments: Sequence[object],
    named: Mapping[str, object],
) -> dict[str, object]:
    """Return the arguments of a call of `model` by input, in the order of `inputs`.

    Optional inputs are absent if they were omitted or given as None. Raises UsageError for inputs
    that are missing, unknown or given twice.
    """

    if len(arguments) == len(inputs) and not named and all(map(is_not, arguments, repeat(None))):
        return dict(zip(inputs, arguments, strict=True))

    def refused(why: str) -> UsageError:
        # Only here: to describe the inputs took an eighth of the call of a small model.
        hint = f"its inputs are {shown_inputs(inputs) or 'none'}"
        return UsageError(f"{quoted(model)} {why}", hint=hint)

    if len(arguments) > len(inputs):
        raise refused(f"takes {len(inputs)} inputs, got {len(arguments)}")
    given = dict(zip(inputs, arguments, strict=False))
    for each, value in named.items():
        if each not in inputs:
            raise refused(f"takes no input {quoted(each)}")
        if each in given:
            raise refused(f"got the input {quoted(each)} twice")
        given[each] = value
    present = {each: given[each] for each in inputs if given.get(each) is not None}
    for each, slot in inputs.items():
        if each not in present and not slot.optional:
            raise refused(f"lacks the input {quoted(each)}")
    return present


def shown_inputs(inputs: Mapping[str, ModelInput], quote: str = "") -> str:
    """Return inputs with their types, for a message; of many optional ones the first."""
    optional = [each for each in inputs.values() if each.optional]
    more = len(optional) - _MOST_OPTIONAL
    left_out = optional[_MOST_OPTIONAL:]
    names = [f"{quote}{each}{quote}" for each in inputs.values() if each not in left_out]
    return ", ".join([*names, *([f"{more} optional ones"] if more > 0 else [])])


def importer_of(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the importer for the suffix of `path`; None if there is none.

    PluginError if several plugins take it.
    """
    return plugin_for(path, ImporterPlugin, "importers read")


def plugin_for(path: str | os.PathLike[str], point: type[FormatPlugin], several: str) -> str | None:
    """Return the name of the plugin for the suffix of `path`; None if there is none.

    PluginError if several plugins take it, which says what they do.
    """
    suffix = Path(path).suffix.lower()
    if not suffix:
        return None
    names = [plugin.name for plugin in manager().descriptions(point) if suffix in plugin.suffixes]
    if len(names) > 1:
        kind = "importer" if point is ImporterPlugin else "exporter"
        raise PluginError(
            f"several {several} `{suffix}` files: {', '.join(names)}",
            hint=f"leave all but one out, as by `-p no:{kind}:{names[-1]}`",
        )
    return names[0] if names else None


def import_model(path: str | os.PathLike[str], importer: str, backend: Backend) -> ImportedModel:
    """Read the model in a file by the plugin `importer`.

    Errors of gptrs pass through; any other one, and a result that is no `ImportedModel`, is a
    PluginError that names the plugin.
    """
    plugins = manager()
    factory = plugins.factory(ImporterPlugin, importer)
    with plugins.code_of(ImporterPlugin, importer, GptrsError):
        made = factory(Path(path), backend)
        if not isinstance(made, ImportedModel):
            kind = type(made).__name__
            raise TypeError(f"its factory made a `{kind}`, an `ImportedModel` is needed")
        return made


def file_contents(path: str | os.PathLike[str], importer: str) -> FileContents | None:
    """Return what the plugin `importer` says about a file, None if it does not look into files.

    Raises as `import_model` does.
    """
    plugins = manager()
    reference = plugins.find(ImporterPlugin, importer).contents
    if reference is None:
        return None
    look = plugins.imported(ImporterPlugin, importer, reference, require_callable)
    with plugins.code_of(ImporterPlugin, importer, GptrsError):
        found = look(Path(path))
        if not isinstance(found, FileContents):
            kind = type(found).__name__
            raise TypeError(f"`{reference}` returned a `{kind}`, `FileContents` are needed")
        return found


Arrays: TypeAlias = Mapping[str, np.ndarray]
"""Inputs or outputs of a model by name."""


def file_reference(
    path: str | os.PathLike[str], importer: str
) -> tuple[str, Callable[[Arrays], Arrays]] | None:
    """Return the name of a program of another project that runs a file, and what runs it.

    None if the plugin `importer` names none; errors are those of `import_model`, for the function,
    too.
    """
    plugins = manager()
    reference = plugins.find(ImporterPlugin, importer).reference
    if reference is None:
        return None
    make = plugins.imported(ImporterPlugin, importer, reference, require_callable)
    with plugins.code_of(ImporterPlugin, importer, GptrsError):
        name, run = cast("tuple[str, Callable[[Arrays], Arrays]]", make(Path(path)))
        return name, run


class OutgoingModel(Struct, frozen=True):
    """A program on its way to a file of another format.

    `program` has only `@main`, in canonical form: no calls, and custom calls only without a
    decomposition. Its parameters are the `inputs` in order, and then the `weights`.
    """

    name: str
    program: Program
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    weights: tuple[OutgoingTensor, ...] = ()
    limits: tuple[str, ...] = ()
    """Conditions on free sizes, such as `sequence <= 512`."""


def exporter_of(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the exporter for the suffix of `path`; None if there is none.

    PluginError if several plugins take it.
    """
    return plugin_for(path, ExporterPlugin, "exporters write")


def export_model(model: OutgoingModel, path: str | os.PathLike[str], exporter: str) -> list[Path]:
    """Write a model by the plugin `exporter`; return the files.

    Errors of gptrs pass through; any other one, and a result that is no list of paths, is a
    PluginError that names the plugin.
    """
    plugins = manager()
    factory = cast(
        "Callable[[OutgoingModel, Path], object]", plugins.factory(ExporterPlugin, exporter)
    )
    with plugins.code_of(ExporterPlugin, exporter, GptrsError):
        made = factory(model, Path(path))
        if not isinstance(made, (list, tuple)):
            raise TypeError(f"it returned a `{type(made).__name__}`, a list of paths is needed")
        return [Path(each) for each in cast("Sequence[str | os.PathLike[str]]", made)]
