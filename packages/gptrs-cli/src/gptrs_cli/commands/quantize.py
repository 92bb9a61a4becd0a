"""`gptrs quantize`: writes a model with quantized weights, and reports their error."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict

from gptrs.quoting import counted
from gptrs_cli.inspect.checkpoint import byte_size
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.streams import note_below, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.quantize import quantize as quantize_model
from gptrs_runtime.results import Quantize, Quantized

_STEP = 2**16
"""Bytes per step of the progress bar; terminals show no finer ones."""
_SHOWN = 5
"""Tensors shown without `--json`: the ones with the largest errors."""


class TypeName(StrEnum):
    """The types of `--type`."""

    Q8 = "q8"
    Q4 = "q4"
    Q4_ASYM = "q4_asym"
    INT8 = "int8"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"


class FormName(StrEnum):
    """The forms of `--to`."""

    HF = "hf"
    GGUF = "gguf"


class RoundingName(StrEnum):
    """How scales are found."""

    NEAREST = "nearest"
    SEARCH = "search"


class QuantizeOptions(Struct, frozen=True):
    """The type of the weights, their groups, the tensors to keep, and what may be replaced."""

    type: Annotated[
        TypeName,
        typer.Option(
            "--type",
            help="q8 or q4: groups with a scale. q4_asym: with a zero point, too."
            " int8: a scale for each row. f16, bf16, f32: round to that, in GGUF files.",
        ),
    ] = TypeName.Q4
    to: Annotated[
        FormName | None,
        typer.Option(
            "--to",
            help="hf: a folder of compressed-tensors. gguf: one file, as for a DST that ends in"
            " .gguf.",
        ),
    ] = None
    group: Annotated[
        int | None,
        typer.Option(
            "--group",
            metavar="N",
            min=0,
            help="Weights that share a scale; 0: a whole row.  [default: 32]",
        ),
    ] = None
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="PATTERN", help="Leave these tensors as they are; repeatable."
        ),
    ] = None
    rounding: Annotated[
        RoundingName,
        typer.Option("--rounding", help="search: take the scales with the least error."),
    ] = RoundingName.SEARCH
    force: Annotated[
        bool, typer.Option("--force", help="Replace DST: a file, or a folder with a model.")
    ] = False


@command_options()
def quantize(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A model folder, a .gptrschk or .gguf file, `demo`, or ORG/NAME[@REVISION].",
            show_default=False,
        ),
    ],
    destination: Annotated[
        Path,
        typer.Argument(
            metavar="DST", help="The folder, or the .gguf file, to write.", show_default=False
        ),
    ],
    options: QuantizeOptions,
    settings: Settings,
) -> None:
    """Write a model with quantized weights.

    DST appears once it is complete. Linear layers are quantized; norms and biases are not. A folder
    (compressed-tensors, which transformers reads, too) also keeps heads and token embeddings; a
    GGUF file stores them in 8 bits.
    """
    started = time.perf_counter()
    found = _quantized(source, destination, options)
    seconds = round(time.perf_counter() - started, 3)
    if settings.json:
        return print_result(
            Quantize(**asdict(found), source=source, destination=str(destination), seconds=seconds)
        )
    _show_largest_errors(found)
    done = f"{byte_size(found.nbytes)}, {seconds:.1f} s"
    print(printable(f"wrote {destination}: {found.kind} model, {_counts(found)}, {done}"))
    if found.quantized:
        note_below(_of_products(found))
    for each in found.notes:
        note_below(each)
    if found.left_out:
        note_below(f"not carried over: {', '.join(found.left_out)}")


def _show_largest_errors(found: Quantized) -> None:
    # By relative error: by the absolute one, layers with large weights would always come first.
    worst = sorted(found.quantized, key=lambda each: -each.relative_rms)[:_SHOWN]
    rows = [
        [
            printable(each.name),
            each.type,
            f"{each.relative_rms:.3%}",
            f"{each.product_rms:.3%}",
            f"{each.max_error:.3g}",
        ]
        for each in worst
    ]
    if rows:
        print_table(["largest errors", "type", "weights", "products", "largest error"], rows)
        print()


def _counts(found: Quantized) -> str:
    """Return the numbers of tensors that were quantized, and that were not."""
    kept = len(found.kept)
    if not found.quantized:
        return f"{counted(kept, 'tensor')}, none quantized"
    bits = f"{found.type} of {found.bits_per_weight:.2f} bits a weight"
    return f"{counted(len(found.quantized), 'tensor')} in {bits}, {kept} as they were"


def _of_products(found: Quantized) -> str:
    """Return the error of products when the copy runs, relative to the original model."""
    said = f"products will be {found.product_rms:.3%} off on average, for normal inputs"
    if found.precision == "int8":
        said += ", which are rounded to 8 bits, too; `--precision f32` does not round them"
    return said


def _quantized(source: str, destination: Path, options: QuantizeOptions) -> Quantized:
    with progress_bar(f"quantizing {destination.name}") as step:

        def progress(done: int, total: int, name: str) -> None:
            if step is not None:
                step(done // _STEP, max(1, total // _STEP), printable(name))

        return quantize_model(
            source,
            destination,
            options.type.value,
            to=None if options.to is None else options.to.value,
            group=options.group,
            keep=options.keep or (),
            rounding=options.rounding.value,
            force=options.force,
            progress=progress,
        )
