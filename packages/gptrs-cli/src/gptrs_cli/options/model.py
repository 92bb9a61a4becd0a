"""The option that names a model, the same for all commands that run one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gptrs_cli.options.completion import model_names
from gptrs_cli.options.declare import option

ModelOption = Annotated[
    Path | None,
    option(
        "--model",
        "A folder, a file (.gptrschk, .gguf), or ORG/NAME[@REVISION] of the Hugging Face hub."
        "  [default: demo]",
        metavar="MODEL",
        names=model_names,
    ),
]

AdapterOption = Annotated[
    Path | None,
    option("--adapter", "Change the model by the LoRA adapter in a folder.", metavar="DIR"),
]


def model_shown(path: Path | None) -> str:
    """Return what messages call the model at `path`."""
    return f"`{path}`" if path else "the demo model"
