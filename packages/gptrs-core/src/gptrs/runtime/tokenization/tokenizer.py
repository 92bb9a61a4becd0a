"""Text to tokens and back, by the `tokenizers` library and the files beside a model."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Encoding

from gptrs.errors import UsageError
from gptrs.runtime.tokenization.tokenizer_file import read_tokenizer, without_panics


class TextTokenizer:
    """The tokenizer of a model, as its `tokenizer.json` defines it."""

    def __init__(self, data: bytes, name: str) -> None:
        """Read the content `data` of a file `name`; ModelError says what is wrong with it."""
        self._name = name
        self._tokenizer = read_tokenizer(data, name)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def __repr__(self) -> str:
        return f"<TextTokenizer of {self._name}: {self._tokenizer.get_vocab_size()} tokens>"

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of `text`, with the special tokens that the file adds around it.

        With `special=False` none are added; those that are written in the text count in any case.
        UsageError for text that has no UTF-8 form: it holds unpaired surrogates.
        """
        return self._encoded(text, special).ids

    def encode_within(self, text: str, limit: int) -> list[int]:
        """Return the tokens of `text`, cut so that they fit `limit` with the special tokens.

        The special tokens are kept where they alone are more. UsageError as in `encode`.
        """
        encoding = self._encoded(text, special=False)
        encoding.truncate(max(0, limit - self._tokenizer.num_special_tokens_to_add(False)))
        return without_panics(lambda: self._tokenizer.post_process(encoding), self._name).ids

    def prefix_length(self, text: str) -> int:
        """Return the number of tokens of `text` as a prefix, special ones before it included."""
        encoding = self._encoded(text, special=True)
        ends_special = encoding.special_tokens_mask[-1:] == [1]
        return len(encoding.ids) - ends_special

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of `tokens`, with `special` ones only if set; bad UTF-8 is U+FFFD."""
        decode = self._tokenizer.decode
        return without_panics(
            lambda: decode(list(tokens), skip_special_tokens=not special), self._name
        )

    def _encoded(self, text: str, special: bool) -> Encoding:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}") from error
        encode = self._tokenizer.encode
        return without_panics(lambda: encode(text, add_special_tokens=special), self._name)
