"""The fields of requests that read and steer hidden states."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

MOST_VALUES: Final = 64
"""Most values that one request may read: each is a whole result of every step."""

_Numbers = Annotated[list[float], Meta(min_length=1, max_length=65_536)]


class Steering(Struct, forbid_unknown_fields=True, kw_only=True):
    """A vector to add: a preset by name, or `layer` and `vector`."""

    preset: str | None = None
    layer: str | None = None
    vector: _Numbers | Annotated[str, Meta(max_length=400_000)] | None = None
    scale: float = 1.0


Names = Annotated[
    Annotated[list[str], Meta(max_length=MOST_VALUES)],
    Meta(description="Values by name or pattern, such as `h.3`, `blocks.*.hook_resid_post`."),
]
Positions = Annotated[
    Literal["last", "prompt", "all"] | Annotated[list[int], Meta(max_length=4096)],
    Meta(
        description="Tokens whose rows are read: the `last` one of the prompt, the whole"
        " `prompt`, `all` with those of the answer, or positions in the prompt (-1: its last)."
    ),
]
NumberFormat = Annotated[
    Literal["float", "base64"],
    Meta(description="Values as lists, or as little-endian f32 in base64."),
]
LensTokens = Annotated[
    int,
    Meta(ge=1, le=100, description="Return the N likeliest next tokens for each row that is read."),
]
Vectors = Annotated[
    Annotated[list[str | Steering], Meta(max_length=16)],
    Meta(
        description="Vectors to add: names of presets, or objects with `preset`, or `layer` and"
        " `vector` (a list, or base64 of f32), and `scale`."
    ),
]


class Intervention(Struct, forbid_unknown_fields=True, kw_only=True):
    """Reads values and adds vectors while a model answers."""

    read: Names = field(default_factory=list[str])
    positions: Positions = "last"
    encoding_format: NumberFormat = "float"
    logit_lens: LensTokens | None = None
    steer: Vectors = field(default_factory=list[str | Steering])
