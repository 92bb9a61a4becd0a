"""Text to tokens and back, by the `tokenizers` library and the files beside a model."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tokenizers import Encoding

from gptrs.errors import UsageError
from gptrs.runtime.tokenization.rust_panics import panics_unheard
from gptrs.runtime.tokenization.text_slices import SLICE, is_sliceable, slices
from gptrs.runtime.tokenization.tokenizer_file import (
    read_tokenizer,
    without_panics,
)
from gptrs.runtime.tokenization.tokenizer_growth import MOST_BYTES, grown, made_bytes, steps_of


class TextTokenizer:
    """The tokenizer of a model, as its `tokenizer.json` defines it."""

    def __init__(self, data: bytes, name: str) -> None:
        """Read the content `data` of a file `name`; ModelError says what is wrong with it."""
        self._name = name
        self._tokenizer = read_tokenizer(data, name)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        parts = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        self._growth = grown(step for part in parts for step in steps_of(part))
        self._sliceable: bool | None = None

    def __repr__(self) -> str:
        return f"<TextTokenizer of {self._name}: {self._tokenizer.get_vocab_size()} tokens>"

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of `text`, with the special tokens that the file adds around it.

        With `special=False` none are added; those that are written in the text count in any case.
        UsageError for text that has no UTF-8 form, as it holds unpaired surrogates; for one that is
        too long for the steps of this tokenizer, if it cannot be encoded in slices.
        """
        return self._encoded(text, special).ids

    def encode_within(self, text: str, limit: int) -> list[int]:
        """Return the tokens of `text`, cut so that they fit `limit` with the special tokens.

        The special tokens are kept where they alone are more. UsageError as in `encode`.
        """
        encoding = self._encoded(text, special=False)
        encoding.truncate(max(0, limit - self._tokenizer.num_special_tokens_to_add(False)))
        return self._finished(encoding, special=True).ids

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
        if len(text) * max(1.0, self._growth / 16) > SLICE:
            return self._long_encoded(text, special)
        encode = self._tokenizer.encode
        with panics_unheard():
            return without_panics(lambda: encode(text, add_special_tokens=special), self._name)

    def _long_encoded(self, text: str, special: bool) -> Encoding:
        if self._sliceable is None:
            self._sliceable = is_sliceable(self._tokenizer)
        parts = [self._interruptible(part) for part in slices(text)] if self._sliceable else []
        whole = Encoding.merge(parts) if parts else self._interruptible(text)
        return self._finished(whole, special)

    def _interruptible(self, text: str) -> Encoding:
        """Encode in a thread: the library holds no lock in a batch, so that Ctrl-C is seen."""
        self._require_bounded(text)
        results: list[Encoding] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.extend(self._tokenizer.encode_batch([text], add_special_tokens=False))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()
        return without_panics(lambda: _only(results, errors), self._name)

    def _finished(self, encoding: Encoding, special: bool) -> Encoding:
        finish = self._tokenizer.post_process
        return without_panics(lambda: finish(encoding, None, special), self._name)

    def _require_bounded(self, text: str) -> None:
        """UsageError if the tokenizer may make more of a text than there is memory for."""
        if len(text) * 4 * self._growth <= MOST_BYTES:
            return
        made = made_bytes(self._tokenizer.normalizer, self._tokenizer.pre_tokenizer, text)
        if made > MOST_BYTES:
            raise UsageError(
                f"a text of {len(text)} characters is too long for this tokenizer: its steps may"
                f" make {made:.3g} bytes of it, and {MOST_BYTES} at most are allowed",
                hint="give it in parts",
            )


def _only(results: list[Encoding], errors: list[BaseException]) -> Encoding:
    if errors:
        raise errors[0]
    return results[0]
