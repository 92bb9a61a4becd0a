"""Answers of the engine as the objects of OpenAI's API: whole ones, and chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence

from gptrs.errors import NoTokenError
from gptrs_runtime.generation.guessing.guesser import GuessCounts
from gptrs_runtime.generation.outcome import FinishReason
from gptrs_runtime.serving.answers import AnswerStream, Piece

_REASONS: dict[FinishReason, str] = {"eos": "stop", "stop": "stop", "length": "length"}


def finish_reason(reason: FinishReason | None, *, calls: bool = False) -> str | None:
    """Return OpenAI's word for why an answer ended, perhaps in calls; None while it has not."""
    if calls and reason in ("eos", "stop"):
        return "tool_calls"
    return None if reason is None else _REASONS.get(reason)


def require_written(pieces: Iterable[Piece]) -> None:
    """NoTokenError if an answer ended as it could not go on: what was asked for allows no token."""
    for piece in pieces:
        if piece.finish_reason == "error":
            raise NoTokenError(piece.error or "the answer cannot go on")


class Envelope:
    """Fields that all objects of one answer have in common."""

    def __init__(self, prefix: str, kind: str, model: str) -> None:
        self._common: dict[str, object] = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def of(self, choices: Sequence[dict[str, object]], **more: object) -> dict[str, object]:
        """Return an object with these choices."""
        return {**self._common, "choices": list(choices), **more}


def usage(streams: Sequence[AnswerStream], reasoning: int | None = None) -> dict[str, object]:
    """Return how many tokens were read and written; those of a prompt count once for all answers.

    `cached_tokens` were known from other requests. Of tokens that were guessed ahead those that
    came true are accepted. `reasoning` tokens are thoughts, None of a model without.
    """
    prompt = sum(stream.prompt_tokens for stream in streams)
    new = sum(len(text.tokens) for stream in streams for text in stream.texts)
    cached = sum(stream.cached_tokens for stream in streams)
    told: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    details: dict[str, int] = {} if reasoning is None else {"reasoning_tokens": reasoning}
    guesses = guesses_of(streams)
    if guesses is not None:
        details["accepted_prediction_tokens"] = guesses.accepted
        details["rejected_prediction_tokens"] = guesses.proposed - guesses.accepted
    if details:
        told["completion_tokens_details"] = details
    return told


def guesses_of(streams: Sequence[AnswerStream]) -> GuessCounts | None:
    """Return what became of guessed tokens; None where nothing guesses."""
    texts = [text.guesses for stream in streams for text in stream.texts]
    counts = [guesses.counts for guesses in texts if guesses is not None]
    return sum(counts, GuessCounts()) if counts else None
