"""The families of calls that the server reads, by their models."""

from __future__ import annotations

from typing import Final

from gptrs.errors import ModelError
from gptrs_runtime.chat.messages import (
    BARE,
    LISTED,
    NAMED,
    PIPED,
    TAGGED,
    CallFamily,
    call_family,
)
from gptrs_serve.problems import RequestError

HERMES: Final = TAGGED
LLAMA: Final = BARE
MISTRAL: Final = LISTED
MISTRAL_NAMED: Final = NAMED
GRANITE: Final = PIPED


def family_of(template: str, model: str) -> CallFamily:
    """Return how a model with a chat template writes calls; RequestError if unknown."""
    try:
        return call_family(template, model)
    except ModelError as error:
        raise RequestError(error.message, param="tools", code="tools_not_supported") from error
