"""Changes to a tokenizer that the files beside tokenizer.json ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from gptrs.errors import ModelError
from gptrs.quoting import quoted, shown_value


class _Adding(Protocol):
    """Types what the stubs of the library leave open."""

    def add_tokens(self, tokens: list[AddedToken]) -> int: ...


def add_missing(
    tokenizer: Tokenizer, added: Sequence[tuple[int | None, AddedToken]], name: str
) -> None:
    """Add the tokens that the file `name` lacks, or has with other flags.

    ModelError if one would not get the number that it must have: the model knows it by that.
    """
    present = tokenizer.get_added_tokens_decoder().values()
    as_they_are = {repr(token) for token in present}
    contents = {token.content for token in present}
    missing = [
        token
        for number, token in added
        if (repr(token) not in as_they_are if number is not None else token.content not in contents)
    ]
    if missing:
        cast("_Adding", tokenizer).add_tokens(missing)
    for number, token in added:
        found = tokenizer.token_to_id(token.content)
        if number is not None and found != number:
            raise ModelError(
                f"token {shown_value(token.content)} is number {number} of the model, but with"
                f" {quoted(name)} it would be {found}",
                hint="save the tokenizer again with transformers' `save_pretrained`",
            )


def set_prefix_space(tokenizer: Tokenizer, prefix_space: bool | None) -> None:
    """Set whether a space precedes the text, of a tokenizer that works on bytes."""
    step = tokenizer.pre_tokenizer
    if prefix_space is not None and isinstance(step, ByteLevel):
        step.add_prefix_space = prefix_space
        tokenizer.pre_tokenizer = step
