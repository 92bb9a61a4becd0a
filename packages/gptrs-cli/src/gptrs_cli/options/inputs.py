"""The options that say on what a model is run once, shared by the commands that do so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

InputOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="An image, or a tensor as .npy, .npz, .safetensors or .gptrsten; several of one"
        " size make a batch.",
    ),
]
InputKeyOption = Annotated[
    str | None,
    typer.Option("--input-key", metavar="NAME", help="Which tensor of a file that has several."),
]
TokensOption = Annotated[
    str | None, typer.Option("--tokens", metavar="1,2,3", help="Tokens, for a model of text.")
]
PromptOption = Annotated[
    str | None, typer.Option("--prompt", metavar="TEXT", help="Text, for a model of text.")
]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed", metavar="N", help="Where no input is given, make one up, the same for the same N."
    ),
]
