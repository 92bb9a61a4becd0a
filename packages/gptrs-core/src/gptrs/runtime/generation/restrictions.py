"""What a model's generation_config.json forbids to come next, as transformers defines it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Restrictions:
    """Tokens that must not come next.

    `suppress` never do, `begin_suppress` not as the first new token, tokens that end the text not
    before `min_new_tokens` others, and none that would repeat `no_repeat_ngram_size` tokens in a
    row that occurred before, the prompt included; 0 for no such limit.
    """

    suppress: tuple[int, ...] = ()
    begin_suppress: tuple[int, ...] = ()
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
