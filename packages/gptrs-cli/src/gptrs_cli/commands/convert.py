"""`gptrs convert`: writes a model, tensors or a program in another format or element type."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct, field
from msgspec.structs import asdict

from gptrs.errors import UsageError
from gptrs.plugins.descriptions import ExporterPlugin
from gptrs.plugins.exporters import exporter_of, importer_of
from gptrs.plugins.manager import manager
from gptrs.quoting import clipped, counted, quoted
from gptrs_cli.inspect.checkpoint import byte_size, count
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.streams import note, printable
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.converting.convert import convert as convert_checkpoint
from gptrs_runtime.converting.model_content import parse_size
from gptrs_runtime.imported.batch import named_sizes
from gptrs_runtime.outgoing_model import export
from gptrs_runtime.results import Convert, Converted

_LONGEST_PATH = 4096
"""Bytes of the longest path of Linux."""
_STEP = 2**20
"""Bytes per step of the progress bar; terminals show no finer ones."""


class ModelForm(StrEnum):
    """The format that a model is written in."""

    HF = "hf"
    GPTRSCHK = "gptrschk"


class WeightType(StrEnum):
    """The element type to round weights to."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"


class ConvertOptions(Struct, frozen=True):
    """The format of the copy, the type of its weights, and whether DST may be replaced."""

    to: Annotated[
        ModelForm | None,
        typer.Option("--to", help="Write a folder (hf) or one file, whatever the suffix of DST."),
    ] = None
    dtype: Annotated[
        WeightType | None,
        typer.Option(
            "--dtype", help="Round the weights to this type; by default, they keep their own."
        ),
    ] = None
    shard_size: Annotated[
        str | None,
        typer.Option(
            "--shard-size",
            metavar="SIZE",
            help="Split the weights of a folder into files of this size, such as 5GB.",
        ),
    ] = None
    symbols: Annotated[
        list[str],
        option(
            "--symbol",
            "Image sizes, for a plugin's format: height=SIZE, width=SIZE. For imported models:"
            " fix a free size.",
            metavar="NAME=SIZE",
        ),
    ] = field(default_factory=list[str])
    force: Annotated[
        bool, typer.Option("--force", help="Replace DST: a file, or a folder that holds a model.")
    ] = False


@command_options()
def convert(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A model folder, a .gptrschk or .gguf file, a model of the Hugging Face hub as"
            " ORG/NAME[@REVISION], a file of tensors (.safetensors, .npz, .npy, .gptrsten), a"
            " program (.ptir), or a model that an importer reads (.onnx).",
            show_default=False,
        ),
    ],
    destination: Annotated[
        Path,
        typer.Argument(
            metavar="DST",
            help="The folder or file to write. Its suffix decides the format: .gptrschk for a "
            "model in one file, a suffix of tensor files for the tensors alone, a plugin's suffix "
            "for its format; without one, a model folder.",
            show_default=False,
        ),
    ],
    options: ConvertOptions,
    settings: Settings,
) -> None:
    """Write a model in another format or element type.

    DST appears once it is complete. Settings, tokenizer and chat template are copied, too.
    """
    started = time.perf_counter()
    written = _converted(source, destination, options)
    if settings.json:
        seconds = round(time.perf_counter() - started, 3)
        return print_result(
            Convert(**asdict(written), source=source, destination=str(destination), seconds=seconds)
        )
    print(_sentence(clipped(str(destination), _LONGEST_PATH), written, options.dtype))
    if written.limits:
        note(f"it holds for {', '.join(written.limits)}")
    if written.left_out:
        note(f"not carried over: {', '.join(written.left_out)}")


def _converted(source: str, destination: Path, options: ConvertOptions) -> Converted:
    # An explicit `--to` wins over the suffix: a folder may be called `model.onnx`.
    exporter = None if options.to is not None else exporter_of(destination)
    if exporter is not None:
        return _exported(source, destination, exporter, options)
    # Would otherwise become a model folder called `NAME.ptir`, which no user wants.
    if options.to is None and destination.suffix == ".ptir":
        raise UsageError(
            f"`convert` writes models, and {quoted(str(destination), 200)} is called a program",
            hint=f"`gptrs inspect {clipped(source, 200)} --print text` prints the program of a"
            " model that an importer reads",
        )
    if importer_of(source) is not None:
        raise _not_a_form_of_imports(source, destination)
    if options.symbols:
        raise UsageError(
            "`--symbol` chooses sizes of a model in the format of a plugin",
            hint="leave it out: the files of gptrs hold weights of any use",
        )
    size = None if options.shard_size is None else parse_size(options.shard_size)
    with progress_bar(f"writing {destination.name}") as step:

        def progress(done: int, total: int, name: str) -> None:
            step(done // _STEP, max(1, total // _STEP), printable(name))

        return convert_checkpoint(
            model_path(source),
            destination,
            to=None if options.to is None else options.to.value,
            dtype=None if options.dtype is None else options.dtype.value,
            shard_size=size,
            force=options.force,
            progress=progress,
        )


def _not_a_form_of_imports(source: str, destination: Path) -> UsageError:
    exporters = manager().descriptions(ExporterPlugin)
    suffixes = [suffix for plugin in exporters for suffix in plugin.suffixes]
    shown = quoted(str(destination), 200)
    return UsageError(
        f"{quoted(source, 200)} is a graph that an importer reads, {shown} would be a model of"
        " gptrs",
        hint=f"choose a name that ends in {' '.join(suffixes)}",
    )


def _exported(source: str, destination: Path, exporter: str, options: ConvertOptions) -> Converted:
    """Write a model or a program in a plugin's format, which has no types or shards to choose."""
    if options.dtype is not None or options.shard_size is not None:
        raise UsageError(
            f"`--dtype` and `--shard-size` are not for {destination.suffix} files",
            hint="round the weights first, into a folder, and convert that",
        )
    with progress_bar(f"writing {destination.name}") as step:

        def progress(done: int, total: int, name: str) -> None:
            step(done // _STEP, max(1, total // _STEP), printable(name))

        return export(
            source,
            destination,
            exporter,
            sizes=named_sizes(options.symbols),
            force=options.force,
            progress=progress,
        )


def _sentence(destination: str, written: Converted, dtype: WeightType | None) -> str:
    what = "tensors" if written.kind is None else f"{written.kind} model"
    if written.kind is None and not written.tensors:
        return f"wrote {destination}: a program, {byte_size(written.nbytes)}"
    parts = f"{counted(written.tensors, 'tensor')}, {count(written.parameters)} parameters"
    size = byte_size(written.nbytes)
    rounded = f", {written.rounded} rounded to {dtype}" if written.rounded else ""
    return f"wrote {destination}: {what}, {parts}, {size}{rounded}"
