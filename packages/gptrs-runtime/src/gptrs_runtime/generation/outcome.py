"""The outcome of a generation: the text, why it ended, and how long it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from gptrs.lazy_module import lazy_module
from gptrs_runtime.generation.guessing.guesser import GuessCounts
from gptrs_runtime.generation.text_stream import TokenScores

if TYPE_CHECKING:
    import html
else:
    html = lazy_module("html")  # only notebooks show an outcome as a page

FinishReason = Literal["eos", "stop", "length", "error", "interrupted"]


class Timings(Struct, frozen=True):
    """Seconds and tokens per second of one generation; None for a phase that did not happen."""

    load_s: float
    first_token_s: float | None
    prompt_tokens_per_s: float | None
    decode_tokens_per_s: float | None


class Generation(Struct, frozen=True):
    """The outcome: `text` ends before a stop string, `token_ids` include the token that ended it.

    `finish_reason` is "eos", "stop" or "length"; "interrupted" while tokens are still to come.
    "error" means that a text cannot continue, and `error` says why: its form and logits processors
    leave no token, or a stop string cut it before its form was complete. With a form, "eos" and
    "stop" imply that the text has it. `logprobs` has one entry for each of `token_ids`, if
    requested; `guesses` is set with speculative decoding.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings
    logprobs: tuple[TokenScores, ...] | None = None
    guesses: GuessCounts | None = None
    error: str | None = None

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """Return the text for a notebook, with its tokens and its end below."""
        ended = f"{self.finish_reason}: {self.error}" if self.error else self.finish_reason
        told = f"{len(self.token_ids)} tokens, {ended}"
        return (
            f'<pre style="white-space: pre-wrap">{html.escape(self.text)}</pre>'
            f"<small>{html.escape(told)}</small>"
        )
