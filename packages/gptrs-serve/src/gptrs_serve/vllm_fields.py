"""Fields of prompts and of texts' ends that vLLM adds to OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

MOST_CUT: Final = 500_000
"""Most characters of a text that is cut, as it is tokenized first: see `TokenizeBody`."""
KeepsStop = Annotated[
    bool, Meta(description="End the answer with the stop text, or ordinary stop token, itself.")
]
LastTokens = Annotated[
    int,
    Meta(
        ge=-1,
        description="Read only the last N tokens of each prompt; -1: as many as fit with"
        " `max_tokens`.",
    ),
]
PromptScores = Annotated[
    int,
    Meta(
        ge=0,
        le=20,
        description="Return the log-probabilities of the prompt, also of the N likeliest tokens;"
        " `rank` is null for a token that is none of these.",
    ),
]
