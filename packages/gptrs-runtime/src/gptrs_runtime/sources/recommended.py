"""Small open models to begin with, and the short names that stand for them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from gptrs.quoting import did_you_mean

Task = Literal["text", "chat", "code", "embedding", "reranking", "vision", "speech"]


_WORDS: Final = {
    "generate": '"Once upon a time"',
    "embed": "--text cat --text dog --similarity",
    "rank": '--query "Who?" --text "I did." --text "No."',
    "forward": "--input cat.jpg",
    "transcribe": "talk.wav",
}
"""The words after the model in an example, by command."""


class RecommendedModel(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"nbytes": "bytes"}
):
    """A model of the hub, what it is for, and the `command` that it is tried with.

    `short` is a name that every command takes for it, as Ollama writes them.

    `kind` is its `model_type`, `parameters` the number that its card states, `bits` the width of a
    stored weight. `bytes` is the memory of the weights, and about that of the files.
    """

    name: str
    short: str
    task: Task
    command: str
    kind: str
    license: str
    parameters: int
    bits: int
    about: str
    nbytes: int = 0

    @property
    def example(self) -> str:
        """A command that tries the model."""
        return f"gptrs {self.command} {self.short} {_WORDS.get(self.command, '')}".rstrip()

    @property
    def parameters_shown(self) -> str:
        """The number of parameters as its card writes it: `135 M`, `1.7 B`."""
        count = self.parameters
        return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def recommended() -> list[RecommendedModel]:
    """Return the list, grouped by task, small ones first."""
    data = (Path(__file__).parent / "recommended.json").read_bytes()
    found = msgspec.json.decode(data, type=list[RecommendedModel])
    return [
        msgspec.structs.replace(each, nbytes=each.bits // 8 * each.parameters) for each in found
    ]


def short_name_like(name: str) -> str:
    """Return "did you mean `smollm2`? " with the short names most like `name`, else ""."""
    return did_you_mean(name.lower(), [each.short for each in recommended()], most=2)


def first_choice(task: Task) -> str:
    """Return a small model for a task, and the command that lists more, as the end of a hint."""
    found = next(each for each in recommended() if each.task == task)
    return (
        f"`{found.short}` is a small one of the Hugging Face hub,"
        f" `gptrs models recommended {task}` shows more"
    )


def hub_name(short: str) -> str | None:
    """Return the name on the hub that a short name of the list means; None for other names."""
    for each in recommended():
        if each.short == short.lower():
            return each.name
    return None
