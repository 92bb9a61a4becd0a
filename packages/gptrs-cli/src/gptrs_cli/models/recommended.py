"""Small open models to begin with: the list of `gptrs models recommended` and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

Task = Literal["text", "chat", "code", "embedding", "reranking", "vision", "speech"]


class RecommendedModel(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"nbytes": "bytes"}
):
    """A model of the hub, what it is for, and the `command` that it is tried with.

    `kind` is its `model_type`, `parameters` the number that its card states, `bits` the width of a
    stored weight. `bytes` is the memory of the weights, and about that of the files.
    """

    name: str
    task: Task
    command: str
    kind: str
    license: str
    parameters: int
    bits: int
    about: str
    nbytes: int = 0


def recommended() -> list[RecommendedModel]:
    """Return the list, grouped by task, small ones first."""
    data = (Path(__file__).parent / "recommended.json").read_bytes()
    found = msgspec.json.decode(data, type=list[RecommendedModel])
    return [
        msgspec.structs.replace(each, nbytes=each.bits // 8 * each.parameters) for each in found
    ]


def example(model: RecommendedModel) -> str:
    """Return a command that tries the model."""
    after = {
        "generate": '"Once upon a time"',
        "embed": "--text cat --text dog --similarity",
        "rank": '--query "Who?" --text "I did." --text "No."',
        "forward": "--input cat.jpg",
        "transcribe": "talk.wav",
    }
    return f"gptrs {model.command} {model.name} {after.get(model.command, '')}".rstrip()


def parameters_shown(count: int) -> str:
    """Return a number of parameters as their cards write it: `135 M`, `1.7 B`."""
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"
