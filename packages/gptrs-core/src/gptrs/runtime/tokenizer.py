"""Text to tokens and back, by the `tokenizers` library and the files beside a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from gptrs.errors import ModelError, UsageError


class TextTokenizer:
    """The tokenizer of a model, as its `tokenizer.json` defines it."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a malformed file
            raise ModelError(
                f"`{path.name}` is not a tokenizer file: {_first_line(error)}",
                hint="save it again with transformers' `save_pretrained`",
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`, with the special tokens that the file adds around a text.

        UsageError for text that has no UTF-8 form: it holds unpaired surrogates.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}") from error
        return self._tokenizer.encode(text).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens` without special tokens; bytes that are not UTF-8 show as U+FFFD."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
