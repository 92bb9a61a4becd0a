"""`gptrs convert`: write a model, or tensors, in another format or type."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gptrs_cli.options.settings import DebugOption, JsonOption, PluginsOption, settings_of


class ModelForm(StrEnum):
    """What a model is written as."""

    HF = "hf"
    GPTRSCHK = "gptrschk"


class WeightType(StrEnum):
    """What weights can be rounded to."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"


def convert(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A model folder, a .gptrschk file, a model of the Hugging Face hub as"
            " ORG/NAME[@REVISION], or a file of tensors (.safetensors, .npz, .npy, .gptrsten).",
            show_default=False,
        ),
    ],
    destination: Annotated[
        Path,
        typer.Argument(
            metavar="DST",
            help="The folder or file to write; its suffix says what it becomes: .gptrschk a model"
            " in one file, one of those of tensors only these, any other a model folder.",
            show_default=False,
        ),
    ],
    to: Annotated[
        ModelForm | None,
        typer.Option("--to", help="Write a folder (hf) or one file, whatever DST is called."),
    ] = None,
    dtype: Annotated[
        WeightType | None,
        typer.Option(
            "--dtype", help="Round the weights to this type; they keep their own without it."
        ),
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(
            "--shard-size", metavar="SIZE", help="Split the weights of a folder into files: 5GB."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace DST: a file, or a folder that holds a model.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Write a model in another format or type, whole or not at all.

    The files beside the weights are carried over: settings, tokenizer, chat template.
    """
    from gptrs.checkpoint.converting.shards import parse_size
    from gptrs_cli.conversion import Request, convert_and_print

    request = Request(
        source=source,
        destination=destination,
        to=None if to is None else to.value,
        dtype=None if dtype is None else dtype.value,
        shard_size=None if shard_size is None else parse_size(shard_size),
        force=force,
    )
    convert_and_print(request, as_json=settings_of(context).json)
