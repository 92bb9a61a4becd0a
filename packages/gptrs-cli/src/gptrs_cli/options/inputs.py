"""The options that say what a model is run on once, shared by the commands that do so."""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from typing import Annotated

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs_cli.options.declare import option
from gptrs_runtime.model_inputs import InputChoice


@dataclass(frozen=True)
class InputOptions:
    """Files, tokens or a text as the input of a model, else made-up ones."""

    inputs: Annotated[
        list[Path],
        option(
            "--input",
            "An image, or a tensor as .npy, .npz, .safetensors or .gptrsten; several of one size"
            " make a batch.",
            metavar="FILE",
        ),
    ] = field(default_factory=list[Path])
    input_key: Annotated[
        str | None,
        option("--input-key", "Which tensor of a file that has several.", metavar="NAME"),
    ] = None
    tokens: Annotated[
        str | None, option("--tokens", "Tokens, for a model of text.", metavar="1,2,3")
    ] = None
    prompt: Annotated[
        str | None, option("--prompt", "Text, for a model of text.", metavar="TEXT")
    ] = None
    seed: Annotated[
        int,
        option(
            "--seed",
            "Where no input is given, make one up, the same for the same N.",
            metavar="N",
        ),
    ] = 0

    def choice(self, *made_up: int) -> InputChoice:
        """Return the choice for `batch_of`; `made_up`: its count and length of made-up inputs.

        UsageError for malformed tokens.
        """
        ids = None if self.tokens is None else tuple(parse_integers(self.tokens, "--tokens"))
        return InputChoice(
            tuple(self.inputs), self.input_key, ids, self.prompt, self.seed, *made_up
        )


def parse_integers(text: str, option: str, what: str = "tokens") -> list[int]:
    """Return the numbers in a list such as 1,2,3; else UsageError: `option` needs `what`."""
    parts = re.split(r"[,\s]+", text.strip())
    if not all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts):
        raise UsageError(f"`{option}` needs {what} such as 1,2,3, got `{text:.60}`")
    return [int(part) for part in parts]
