"""Text to tokens and back, by the `tokenizers` library and the files next to a model."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal

from tokenizers import AddedToken, Encoding
from tokenizers.models import BPE

from gptrs.errors import ContextLengthError, ModelError, UsageError
from gptrs.lazy_module import lazy_module
from gptrs.quoting import listed, quoted
from gptrs.spans import span
from gptrs_runtime.results import Tokenize, TokenPiece
from gptrs_runtime.sources.model_source import MAX_TOKENIZER_BYTES, TOKENIZER, ModelSource
from gptrs_runtime.sources.tokenizer_class import TOKENIZER_CONFIG, tokenizer_class
from gptrs_runtime.tokenization.cleaned_spaces import OPEN_ENDS, SETTING, cleaned
from gptrs_runtime.tokenization.encoded_text import (
    MOST_COUNTED,
    EncodedText,
    Overrides,
    TextLength,
    add_missing,
    cut_lengths,
    panics_unheard,
)
from gptrs_runtime.tokenization.least_tokens import LeastTokens
from gptrs_runtime.tokenization.special_tokens import TokenBytes, added_tokens
from gptrs_runtime.tokenization.text_slices import SLICE, is_sliceable, slices
from gptrs_runtime.tokenization.tokenizer_file import (
    MOST_BYTES,
    grown,
    made_bytes,
    read_tokenizer,
    steps_of,
    without_panics,
)

if TYPE_CHECKING:
    from gptrs_runtime.sources import byte_bpe_files
else:
    byte_bpe_files = lazy_module("gptrs_runtime.sources.byte_bpe_files")

_TWO_VOCABULARIES = "source.spm"
_MAKE_TOKENS = (
    "make the tokens with transformers, `AutoTokenizer.from_pretrained(FOLDER)(TEXT)`, and give"
    " them instead of text (--prompt-ids)"
)
_PYTHON_CLASSES = ("BioGptTokenizer",)
"""Classes of transformers without a tokenizer.json, of kinds that gptrs has."""
_AS_THEY_ARE = (*("PreTrainedTokenizer", "TokenizersBackend", "BloomTokenizer", "LlamaTokenizer"),)
"""Classes of transformers 5 that leave the steps of a tokenizer as the file has them."""
_CLEANING = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Settings of tokenizers of word pieces, and the attributes of their normalizer that they set."""
_OF_WORD_PIECES = (
    *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"),
    *("ConvBertTokenizer", "FunnelTokenizer", "MPNetTokenizer"),
)
"""Classes of transformers that do not read these attributes from tokenizer.json."""
_USUAL_CLEANING = {"lowercase": True, "strip_accents": None, "handle_chinese_chars": True}
"""Their defaults."""
_OF_BYTES = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "CodeGenTokenizer")
"""Classes of transformers that put no space before a text unless the settings say so."""
_LOWERING = ("DebertaV2Tokenizer", "AlbertTokenizer")
"""Classes of transformers whose `do_lower_case` is a step of a vocabulary of pieces."""
_OLDER = (
    *("tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model"),
    "sentencepiece.bpe.model",
)


def tokenizer_of(files: ModelSource, name: str) -> TextTokenizer:
    """Return the tokenizer in the files of a model; ModelError if there is none.

    Of other older files, like `tokenizer.model`, transformers makes one.
    """
    data = files.read_bytes(TOKENIZER, limit=MAX_TOKENIZER_BYTES)
    if data is not None:
        origin = files.origin_of(TOKENIZER)
        return TextTokenizer(data, origin, added_tokens(files), _overrides(files))
    older = next((file for file in _OLDER if files.has_file(file)), None)
    if files.has_file(_TWO_VOCABULARIES):
        hint = f"the files have two vocabularies, which no {TOKENIZER} says: {_MAKE_TOKENS}"
    elif tokenizer_class(files) in _PYTHON_CLASSES:
        hint = f"its texts are cut by code in Python, which no {TOKENIZER} says: {_MAKE_TOKENS}"
    elif older is None:
        hint = "add the file, or give token ids instead of text (--prompt-ids)"
    elif older == byte_bpe_files.VOCABULARY and files.has_file(byte_bpe_files.MERGES):
        hint = (
            f"name its class in {TOKENIZER_CONFIG}, as `tokenizer_class`:"
            f" {listed(byte_bpe_files.CLASSES)} are read from {byte_bpe_files.VOCABULARY} and"
            f" {byte_bpe_files.MERGES}; or make {TOKENIZER} with transformers:"
            " `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`"
        )
    else:
        hint = (
            f"make one of its {older} with transformers: `AutoTokenizer.from_pretrained(FOLDER)"
            ".save_pretrained(FOLDER)`"
        )
    raise ModelError(f"{quoted(name)} has no {TOKENIZER}", hint=hint)


def _overrides(files: ModelSource) -> Overrides:
    """Return the settings of tokenizer_config.json that override tokenizer.json.

    They depend on the class of the tokenizer.
    """
    settings = files.read_json(TOKENIZER_CONFIG) or {}
    found = {key: value for key, value in settings.items() if isinstance(value, bool)}
    made = tokenizer_class(files)
    of_steps = {} if made in _AS_THEY_ARE else found
    usual = _USUAL_CLEANING if made in _OF_WORD_PIECES else {}
    stated = {name: of_steps[key] for key, name in _CLEANING.items() if key in of_steps}
    return Overrides(
        prefix_space=of_steps.get("add_prefix_space", False if made in _OF_BYTES else None),
        cleaning={**usual, **stated},
        lowers=found.get("do_lower_case") if made in _LOWERING else None,
        splits_special=found.get("split_special_tokens", False),
        cuts_left=settings.get("truncation_side") == "left",
        cleans_spaces=found.get(SETTING, False),
    )


class TextTokenizer:
    """The tokenizer of a model, as defined by its `tokenizer.json` and the files next to it."""

    def __init__(
        self,
        data: bytes,
        name: str,
        added: Sequence[tuple[int | None, AddedToken]] = (),
        overrides: Overrides | None = None,
    ) -> None:
        """Read the content `data` of a file `name`; ModelError describes any fault.

        `added` are more tokens and the ids that they must have, None for any.
        """
        self._name = name
        self._tokenizer = read_tokenizer(data, name)
        with panics_unheard():
            without_panics(lambda: add_missing(self._tokenizer, added, name), name)
        overrides = overrides or Overrides()
        overrides.apply(self._tokenizer)
        self._cut_at: Literal["left", "right"] = "left" if overrides.cuts_left else "right"
        is_cleaned = overrides.cleans_spaces and not isinstance(self._tokenizer.model, BPE)
        self.open_ends: tuple[str, ...] = OPEN_ENDS if is_cleaned else ()
        """Ends of decoded texts that may change when the text goes on."""
        # Files of some models cut and pad all texts, which would silently change prompts.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        parts = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        self._growth = grown(step for part in parts for step in steps_of(part))
        self._sliceable: bool | None = None
        # Only decoders that strip ends of tokens panic, on tokens that are shorter.
        steps = steps_of(self._tokenizer.decoder)
        self._decode_panics = any(step.get("stop") for step in steps)
        self._bytes = without_panics(lambda: TokenBytes(self._tokenizer), name)

    def __repr__(self) -> str:
        return f"<TextTokenizer of {self._name}: {self.size} tokens>"

    def vocabulary(self) -> dict[str, int]:
        """Return the number of each token, added ones included."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of `text`, with the special tokens that the file adds around it.

        With `special=False` none are added; special tokens written in the text always count.
        UsageError for text without a UTF-8 form, with unpaired surrogates, and for text too long
        for the steps of this tokenizer that cannot be encoded in slices.
        """
        with span("tokenize"):
            return list(chain.from_iterable(self.encode_portions(text, special=special)))

    def encode_portions(self, text: str, *, special: bool = True) -> Iterator[list[int]]:
        """Yield the tokens of `encode` in portions, one list in memory at a time.

        The first portion raises UsageError as `encode` does, also for the end of the text.
        """
        self._require_unicode(text)
        if not self._is_long(text):
            yield self._short_encoded(text, special).ids
            return
        for part in self._slices(text):
            self._require_bounded(part)
        after: list[int] | None = None if special else []
        for part in self._parts(text):
            ids = part.ids
            if ids and after is None:
                whole = self._finished(part, special=True)
                end = whole.special_tokens_mask.index(0) + len(ids)
                ids, after = whole.ids[:end], whole.ids[end:]
            yield ids
        # Without any token, only special ones are left.
        yield self._finished(Encoding.merge([]), special=True).ids if after is None else after

    def require_fitting(self, text: str, most: int) -> None:
        """ContextLengthError if a text has more than `most` tokens for sure, before it is encoded.

        Many longer texts are not detected in advance.
        """
        least = self._least.of(text)
        if least > most:
            raise ContextLengthError(
                f"a prompt of {len(text)} characters has {least} tokens or more, which do not fit"
                f" into the context of {most} tokens",
                hint="shorten the prompt",
            )

    @cached_property
    def _least(self) -> LeastTokens:
        return LeastTokens(self._tokenizer)

    def encode_within(self, text: str, limit: int) -> tuple[list[int], TextLength]:
        """Return the tokens of `text`, cut so that they fit `limit` with the special tokens.

        The special tokens are kept even if they alone exceed the limit. UsageError as in `encode`.
        """
        enough = MOST_COUNTED * limit
        encoding = self._encoded(text, special=False, enough=enough, offsets=False)
        special = self._tokenizer.num_special_tokens_to_add(False)
        whole = len(encoding)
        encoding.truncate(max(0, limit - special), direction=self._cut_at)
        tokens = self._finished(encoding, special=True).ids
        or_more = whole > enough and len(text) > SLICE
        length = TextLength(len(tokens) + whole - len(encoding), len(tokens), or_more)
        return tokens, length

    def encode_pair(self, first: str, second: str | None, limit: int) -> EncodedText:
        """Return a text, or a pair as one, with special tokens, truncated to `limit` tokens.

        The longer of two is truncated first; all lose their end, or their beginning if the file
        cuts on the left. UsageError as in `encode`.
        """
        texts = [first] if second is None else [first, second]
        # Offsets of the end need all that precedes it.
        enough = None if self._cut_at == "left" else MOST_COUNTED * limit
        parts = [self._encoded(text, special=False, enough=enough) for text in texts]
        room = limit - self._tokenizer.num_special_tokens_to_add(second is not None)
        lengths = [len(part) for part in parts]
        kept = cut_lengths(lengths, max(0, room))
        for part, length in zip(parts, kept, strict=True):
            part.truncate(length, direction=self._cut_at)
        whole = self._finished(parts[0], special=True, pair=None if second is None else parts[1])
        or_more = enough is not None and sum(lengths) > enough and max(map(len, texts)) > SLICE
        return _facts(whole, left_out=sum(lengths) - sum(kept), or_more=or_more)

    def encode_with_offsets(self, text: str) -> EncodedText:
        """Return the tokens of a whole text with their offsets; UsageError as in `encode`."""
        return _facts(self._encoded(text, special=True))

    def offsets(self, text: str) -> list[int]:
        """Return the offset in the text of each token of `encode`; UsageError as in `encode`.

        Tokens that share a character all have its offset; added special tokens have that of the
        next token.
        """
        encoded = self.encode_with_offsets(text)
        begins: list[int] = []
        end = 0
        for token, (start, stop), special in zip(
            encoded.tokens, encoded.offsets, encoded.special, strict=True
        ):
            own = self.token_bytes(token) or b""
            spaces = len(own) - len(own.lstrip(b" "))  # which some tokenizers leave out of offsets
            at = end if special else min(start, max(end, start - spaces))
            begins.append(at)
            if not special:
                # A token of only spaces at the beginning of a text has the offsets (0, 0).
                shown = text[at : at + spaces]
                end = max(at + len(shown) - len(shown.lstrip(" ")), stop)
        return begins

    def continues_word(self, token: int, text: str, start: int, end: int) -> bool:
        """Return whether a token at `text[start:end]` continues the word of the previous one.

        As in transformers: by the prefix of pieces if the file has one (`##`), else by the space
        before it.
        """
        if getattr(self._tokenizer.model, "continuing_subword_prefix", None):
            return len(self.piece(token) or "") != end - start
        return start > 0 and " " not in text[start - 1 : start + 1]

    def number(self, piece: str) -> int | None:
        """Return the token of a vocabulary entry, None for an unknown one."""
        return without_panics(lambda: self._tokenizer.token_to_id(piece), self._name)

    def lowered(self, text: str) -> str:
        """Return `text` in lower case, as a normalizer before all others would make it.

        Each character by itself, so that a sigma at the end of a word is one like any other; added
        tokens that are found before normalizing are kept.
        """
        parts = self._found_first.split(text)
        # A split with a group alternates between texts and tokens.
        return "".join(
            part if index % 2 else "".join(map(str.lower, part)) for index, part in enumerate(parts)
        )

    @cached_property
    def _found_first(self) -> re.Pattern[str]:
        """Matches added tokens that are found before normalizing, the longest first."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        kept = sorted((token.content for token in added if not token.normalized), key=len)
        return re.compile(f"({'|'.join(map(re.escape, reversed(kept))) or '(?!)'})")

    def prefix_length(self, text: str) -> int:
        """Return the number of tokens of `text` as a prefix, special ones before it included."""
        encoding = self._encoded(text, special=True)
        ends_special = encoding.special_tokens_mask[-1:] == [1]
        return len(encoding.ids) - ends_special

    def decode(self, tokens: Sequence[int], *, special: bool | frozenset[str] = False) -> str:
        """Return the text of `tokens`, with `special` ones only if set, or if they are in that set.

        Bad UTF-8 is U+FFFD; of ByT5 it is left out, as in transformers. An added token is its own
        text, in a vocabulary of bytes, too.
        """
        if isinstance(special, frozenset):
            pieces = self._special
            tokens = [each for each in tokens if each not in pieces or pieces[each] in special]
            special = True
        if self._bytes.keeps_whole or self._bytes.misread:
            found = b"".join(self._bytes.shown(token, special=special) for token in tokens)
            return found.decode(errors="ignore" if self._bytes.keeps_whole else "replace")
        decode = self._tokenizer.decode
        with panics_unheard() if self._decode_panics else nullcontext():
            text = without_panics(
                lambda: decode(list(tokens), skip_special_tokens=not special), self._name
            )
        return cleaned(text) if self.open_ends else text

    def token_bytes(self, token: int, *, special: bool = True) -> bytes | None:
        """Return the bytes that a token adds to a text; None for an unknown one.

        The bytes of a special token are its text, empty without `special`. Joined they are the
        result of `decode`, except for spaces that some tokenizers omit, at the beginning or before
        punctuation.
        """
        with panics_unheard() if self._decode_panics else nullcontext():
            found = without_panics(lambda: self._bytes.of(token), self._name)
        return found if found is None else self._bytes.shown(token, special=special)

    def token_text(self, token: int) -> str | None:
        """Return the text of a token within others, special or not; None if it has none.

        Bytes that are not UTF-8, such as a part of a character, are shown as `\\xe2\\x80`.
        """
        found = self.token_bytes(token)
        return found.decode(errors="backslashreplace") if found else None

    @property
    def size(self) -> int:
        """How many tokens there are, added ones included."""
        return self._tokenizer.get_vocab_size()

    def as_json(self) -> str:
        """Return the content of a `tokenizer.json` that stands for it."""
        return self._tokenizer.to_str()

    def piece(self, token: int) -> str | None:
        """Return the vocabulary entry of a token, such as `Ġthe`; None for an unknown one."""
        if token < 0:
            return None
        return without_panics(lambda: self._tokenizer.id_to_token(token), self._name)

    def special_pieces(self) -> frozenset[str]:
        """Return the special tokens, which texts do not show."""
        return frozenset(self._special.values())

    @cached_property
    def _special(self) -> dict[int, str]:
        """The special tokens by their numbers."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        return {number: token.content for number, token in added if token.special}

    def _encoded(
        self, text: str, special: bool, enough: int | None = None, *, offsets: bool = True
    ) -> Encoding:
        """Return the tokens of a text; those after more than `enough` may be left out.

        Without `offsets`, these are 0, and the tokens left out are those that cuts leave out first.
        """
        self._require_unicode(text)
        if not self._is_long(text):
            return self._short_encoded(text, special)
        backwards = not offsets and self._cut_at == "left"
        parts: list[Encoding] = []
        count = 0
        for part in self._parts(text, offsets=offsets, backwards=backwards):
            parts.append(part)
            count += len(part)
            if enough is not None and count > enough:
                break
        # Each step copies all tokens, and holds the lock of Python meanwhile.
        whole = parts[0] if len(parts) == 1 else Encoding.merge(parts[:: -1 if backwards else 1])
        return self._finished(whole, special) if special or offsets else whole

    def _is_long(self, text: str) -> bool:
        """Return whether a text is encoded in parts, if it can be."""
        return len(text) * max(1.0, self._growth / 16) > SLICE

    def _require_unicode(self, text: str) -> None:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}") from error

    def _short_encoded(self, text: str, special: bool) -> Encoding:
        encode = self._tokenizer.encode
        with panics_unheard():
            return without_panics(lambda: encode(text, add_special_tokens=special), self._name)

    def _parts(
        self, text: str, *, offsets: bool = False, backwards: bool = False
    ) -> Iterator[Encoding]:
        """Yield the tokens of consecutive parts of a long text, `backwards` from its end."""
        parts = self._slices(text)
        for part in reversed(list(parts)) if backwards else parts:
            yield self._interruptible(part, offsets)

    def _slices(self, text: str) -> Iterator[str]:
        if self._sliceable is None:
            self._sliceable = is_sliceable(self._tokenizer)
        return slices(text) if self._sliceable else iter([text])

    def _interruptible(self, text: str, offsets: bool) -> Encoding:
        """Encode in a thread: the library releases the lock for a batch, so that Ctrl-C is
        handled.

        `offsets` double the memory, and the time for which later steps hold the lock.
        """
        self._require_bounded(text)
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        results: list[Encoding] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.extend(encode([text], add_special_tokens=False))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()
        return without_panics(lambda: _only(results, errors), self._name)

    def _finished(
        self, encoding: Encoding, special: bool, pair: Encoding | None = None
    ) -> Encoding:
        finish = self._tokenizer.post_process
        return without_panics(lambda: finish(encoding, pair, special), self._name)

    def _require_bounded(self, text: str) -> None:
        """UsageError if the tokenizer's steps may expand a text beyond the allowed memory."""
        if len(text) * 4 * self._growth <= MOST_BYTES:
            return
        made = made_bytes(self._tokenizer.normalizer, self._tokenizer.pre_tokenizer, text)
        if made > MOST_BYTES:
            raise UsageError(
                f"a text of {len(text)} characters is too long for this tokenizer: its steps may"
                f" make {made:.3g} bytes of it, and {MOST_BYTES} at most are allowed",
                hint="give it in parts",
            )


def tokenize(
    tokenizer: TextTokenizer,
    text: str | None = None,
    tokens: Sequence[int] | None = None,
    *,
    special: bool = True,
) -> Tokenize:
    """Return a text and its tokens, or tokens and their text; special ones only if `special`.

    UsageError for a token that is not in the vocabulary.
    """
    if tokens is None:
        tokens = tokenizer.encode(text or "", special=special)
    else:
        for token in tokens:
            if tokenizer.piece(token) is None:
                raise UsageError(f"token {token} is not in the vocabulary")
        text = tokenizer.decode(tokens, special=special)
    pieces = [
        TokenPiece(
            id=each,
            piece=tokenizer.piece(each) or "",
            text=tokenizer.token_text(each) or "",
            bytes=list(tokenizer.token_bytes(each) or b""),
        )
        for each in tokens
    ]
    return Tokenize(text=text or "", tokens=pieces)


def _facts(encoding: Encoding, *, left_out: int = 0, or_more: bool = False) -> EncodedText:
    return EncodedText(
        tokens=tuple(encoding.ids),
        segments=tuple(encoding.type_ids),
        offsets=tuple(encoding.offsets),
        special=tuple(map(bool, encoding.special_tokens_mask)),
        length=TextLength(len(encoding.ids) + left_out, len(encoding.ids), or_more),
    )


def _only(results: list[Encoding], errors: list[BaseException]) -> Encoding:
    if errors:
        raise errors[0]
    return results[0]
