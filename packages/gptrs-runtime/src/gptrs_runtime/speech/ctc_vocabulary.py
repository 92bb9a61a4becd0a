"""CTC decoding: merges equal neighbors, drops blanks, and splits words at the delimiter."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, cast

from msgspec import Struct

from gptrs.checkpoint.config_fields import Fields, is_integer
from gptrs.errors import ModelError
from gptrs.quoting import listed, quoted, shown_value
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_runtime.tokenization.cleaned_spaces import SETTING, cleaned
from gptrs_runtime.tokenization.special_tokens import added_tokens, named_tokens

_VOCABULARY: Final = "vocab.json"
_CONFIG: Final = "tokenizer_config.json"
_CLASSES: Final = ("Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer")
_WITH_BEAMS: Final = "Wav2Vec2ProcessorWithLM"
_DEFAULTS: Final = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "word_delimiter_token": "|",
}
_logger = logging.getLogger("gptrs")


class Word(Struct, frozen=True):
    """A word that was heard, and its tokens, from the frame `start` to before the frame `end`."""

    text: str
    start: int
    end: int
    token_ids: tuple[int, ...]


class CTCVocabulary(Struct, frozen=True):
    """The tokens of a model by number, and what `Wav2Vec2CTCTokenizer` does with them.

    `blank` stands for silence and parts equal letters, `delimiter` ends a word and is written as
    `space`; `unknown` stands for ids without a token.
    """

    tokens: Mapping[int, str]
    blank: str
    delimiter: str
    space: str
    unknown: str
    lower: bool
    cleans: bool

    def text(self, numbers: Sequence[int]) -> str:
        """Return the text of the best token of each frame."""
        found = "".join(char for char, *_ in self._runs(numbers)).strip()
        found = found.lower() if self.lower else found
        return cleaned(found) if self.cleans else found

    def words(self, numbers: Sequence[int]) -> list[Word]:
        """Return the words of the best token of each frame."""
        words: list[Word] = []
        for is_space, group in groupby(self._runs(numbers), lambda run: run[0] == self.space):
            runs = list(group)
            if not is_space:
                text = "".join(char for char, *_ in runs)
                ids = tuple(number for *_, number in runs)
                text = text.lower() if self.lower else text
                words.append(Word(text, runs[0][1], runs[-1][2], ids))
        return words

    def _runs(self, numbers: Sequence[int]) -> list[tuple[str, int, int, int]]:
        """Return the runs of equal tokens, with their first and end frames, and their token."""
        found: list[tuple[str, int, int, int]] = []
        index = 0
        named = ((self.tokens.get(number, self.unknown), number) for number in numbers)
        for token, group in groupby(named, lambda each: each[0]):
            same = list(group)
            if token != self.blank:
                char = self.space if token == self.delimiter else token
                found.append((char, index, index + len(same), same[0][1]))
            index += len(same)
        return found


def ctc_vocabulary_of(files: ModelSource, name: str) -> CTCVocabulary:
    """Return the vocabulary in the files of a model; ModelError without one, or for another."""
    settings = files.read_json(_CONFIG) or {}
    fields = Fields(settings, f"in `{_CONFIG}`")
    kind = fields.text("tokenizer_class")
    if kind is not None and kind not in _CLASSES:
        raise ModelError(
            f"{quoted(name)} has a tokenizer {shown_value(kind)}, which does not write the text of"
            " frames here",
            hint=f"supported are {listed(_CLASSES)}",
        )
    if fields.get("processor_class") == _WITH_BEAMS or files.has_file("alphabet.json"):
        _logger.info("the language model of the folder is not used: texts are the best tokens")
    special = {**_DEFAULTS, **named_tokens(files)}
    tokens = {number: token for token, number in _stored(files, name, fields).items()}
    for number, token in added_tokens(files):
        if number is not None:
            tokens.setdefault(number, token.content)
    missing = [special[each] for each in _DEFAULTS if special[each] not in tokens.values()]
    first = len(set(tokens.values()))
    for number, token in enumerate(dict.fromkeys(missing), first):
        tokens.setdefault(number, token)
    return CTCVocabulary(
        tokens=tokens,
        blank=special["pad_token"],
        delimiter=special["word_delimiter_token"],
        space=fields.text("replace_word_delimiter_char") or " ",
        unknown=special["unk_token"],
        lower=fields.boolean("do_lower_case", False),
        cleans=fields.boolean(SETTING, False),
    )


def _stored(files: ModelSource, name: str, fields: Fields) -> dict[str, int]:
    """Return the numbers of tokens in vocab.json, of `target_lang` if it has several languages."""
    table: object = files.read_json(_VOCABULARY)
    if table is None:
        raise ModelError(
            f"{quoted(name)} has no `{_VOCABULARY}`, so its tokens have no text",
            hint="copy it from where the model comes from, or save its processor again",
        )
    language = fields.text("target_lang")
    found = cast("Mapping[str, object]", table)
    if language is not None:
        below = found.get(language)
        if not isinstance(below, Mapping):
            raise fields.error("target_lang", f"must be a language of `{_VOCABULARY}`")
        found = cast("Mapping[str, object]", below)
    numbers = {token: value for token, value in found.items() if is_integer(value) and value >= 0}
    if len(numbers) != len(found) or not found:
        raise ModelError(f"`{_VOCABULARY}` of {quoted(name)} must give each token a number >= 0")
    return numbers
