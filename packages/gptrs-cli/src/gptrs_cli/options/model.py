"""The option that names a model, the same for all commands that run one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A directory as transformers saves it, a .gptrschk file, or ORG/NAME[@REVISION] of"
        " the Hugging Face hub; the bundled demo model without it.",
    ),
]
