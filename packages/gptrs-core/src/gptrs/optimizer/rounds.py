"""How often the stages of the pipeline run, and the environment variables that say so."""

from __future__ import annotations

import os

from gptrs.errors import UsageError
from gptrs.variables import Variables

FIRST_ROUNDS, LAST_ROUNDS = "GPTRS_OPT_PRE_ITERS", "GPTRS_OPT_POST_ITERS"
"""The environment variables with the most rounds of the first and of the last stage."""

MAX_ROUNDS = 8
"""How often those stages run at most; each stops as soon as a round changes nothing."""

_SETTINGS = Variables(FIRST_ROUNDS, LAST_ROUNDS)


def pipeline_settings() -> tuple[str | None, ...]:
    """Return the environment variables on which the result of a pipeline depends."""
    return _SETTINGS.values()


def rounds(variable: str) -> int:
    """Return the rounds that an environment variable asks for.

    Raise UsageError unless it is a number >= 0.
    """
    text = os.environ.get(variable, "")
    if not text:
        return MAX_ROUNDS
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"`{variable}` must be a number of rounds, 0 or more, got {text!r}")
    return int(text)
