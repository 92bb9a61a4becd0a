"""The numbers of rounds of the pipeline's stages, and the environment variables that set them."""

from __future__ import annotations

import os

from gptrs.errors import UsageError
from gptrs.variables import Variables

FIRST_ROUNDS, LAST_ROUNDS = "GPTRS_OPT_PRE_ITERS", "GPTRS_OPT_POST_ITERS"
"""The environment variables that limit the rounds of the first and the last stage."""

MAX_ROUNDS = 8
"""Default limits of the rounds; a stage stops as soon as a round changes nothing."""

_SETTINGS = Variables(FIRST_ROUNDS, LAST_ROUNDS)


def pipeline_settings() -> tuple[str | None, ...]:
    """Return the values of the environment variables that affect the pipeline."""
    return _SETTINGS.values()


def rounds(variable: str) -> int:
    """Return the rounds set by an environment variable; UsageError unless it is a number >= 0."""
    text = os.environ.get(variable, "")
    if not text:
        return MAX_ROUNDS
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"`{variable}` must be a number of rounds, 0 or more, got {text!r}")
    return int(text)
