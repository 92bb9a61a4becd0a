"""The tokens in log-probabilities: their texts, bytes and offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

from msgspec import Struct

from gptrs_runtime.generation.generate import TokenScores
from gptrs_runtime.generation.text_stream import TokenOffsets
from gptrs_runtime.loaded_model import LoadedModel


class Rows:
    """A list of an answer, each of whose rows is made as it is written.

    All at once would take ten times the memory of the scores that they show.
    """

    def __init__(self, make: Callable[[Any], object], of: Sequence[Any]) -> None:
        self._make = make
        self._of = of

    def __iter__(self) -> Iterator[object]:
        return map(self._make, self._of)


class Scored(Struct, frozen=True):
    """The scores of `tokens`, None for a first one, whose offsets in the text are `places`."""

    scores: Sequence[TokenScores | None]
    tokens: Sequence[int]
    places: Sequence[int]

    def before(self, other: Scored | None) -> Scored:
        """Return these and those of the tokens that follow."""
        if other is None:
            return self
        joined = ([*getattr(self, name), *getattr(other, name)] for name in self.__struct_fields__)
        return Scored(*joined)


class TokenTexts:
    """The texts of a model's tokens, in OpenAI's notation.

    Bytes that are not UTF-8 appear as `\\xe2\\x80`; in completions, such a text begins with
    `bytes:`. A token without text is `token_id:` and its number.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._tokenizer = model.tokenizer if model.has_tokenizer else None
        self._known: dict[int, tuple[str, list[int] | None, bool]] = {}
        """Per token: its text, its bytes in an answer, and whether the text is whole."""
        self._special: frozenset[str] = frozenset()
        """The special tokens that answers show."""
        self._by_number = False
        """Whether all tokens are called `token_id:` and their number."""

    def shown(self, special: frozenset[str], *, by_number: bool) -> TokenTexts:
        """Return the texts of tokens of an answer that shows `special` ones."""
        made = copy(self)
        made._known, made._special, made._by_number = {}, special, by_number
        return made

    def chat(self, scores: Sequence[TokenScores], name: str = "content") -> dict[str, object]:
        """Return scores in the format of chats; the joined `bytes` of an answer are its text."""
        return {name: Rows(self._row, scores)}

    def with_ids(self, scores: Sequence[TokenScores], name: str) -> dict[str, object]:
        """Return scores in the format of llama.cpp: that of chats, with the ids of tokens."""

        def row(scored: TokenScores) -> dict[str, object]:
            top = [{"id": each[0], **self._entry(*each)} for each in scored.top]
            entry = self._entry(scored.token, scored.logprob)
            return {"id": scored.token, **entry, "top_logprobs": top}

        return {name: Rows(row, scores)}

    def completion(self, found: Scored | None) -> dict[str, object] | None:
        """Return scores in the format of completions."""
        if found is None:
            return None
        return {
            "tokens": Rows(self._named, found.tokens),
            "token_logprobs": [one.logprob if one else None for one in found.scores],
            "top_logprobs": Rows(self._top, found.scores),
            "text_offset": found.places,
        }

    def by_ids(self, found: Scored) -> Rows:
        """Return the scores of a prompt in vLLM's format: by the ids of tokens, with their ranks.

        A rank is known of the likeliest tokens only.
        """

        def row(scored: TokenScores | None) -> dict[str, object] | None:
            if scored is None:
                return None
            ranks = {token: rank for rank, (token, _) in enumerate(scored.top, 1)}
            return {
                str(token): {
                    "logprob": logprob,
                    "rank": ranks.get(token),
                    "decoded_token": self._of(token)[0],
                }
                for token, logprob in {scored.token: scored.logprob, **dict(scored.top)}.items()
            }

        return Rows(row, found.scores)

    def places(self, text: str | None, tokens: Sequence[int]) -> list[int]:
        """Return the offsets of a prompt's tokens in `text`, or in their own text if it is None."""
        if self._tokenizer is None:
            return [0] * len(tokens)
        if text is None:
            offsets = self._offsets(special=True)
            return [offsets.push(token) for token in tokens]
        places = self._tokenizer.offsets(text)
        return places if len(places) == len(tokens) else [0] * len(tokens)  # of an empty text

    def new_answer(self, prompt: str) -> AnswerText:
        """Return the empty text of an answer that follows `prompt`."""
        return AnswerText(self, prompt, self._offsets(special=self._special))

    def left_out(self, token: int) -> str | None:
        """Return the leading space of a token that is lost at the beginning of a text.

        None if the token is invisible in the text.
        """
        if self._tokenizer is None or not self._shown(token, special=self._special):
            return None
        begins = self._shown(token, special=self._special).startswith(b" ")
        text = self._tokenizer.decode([token], special=self._special)
        return " " if begins and not text.startswith(" ") else ""

    def _offsets(self, *, special: bool | frozenset[str]) -> TokenOffsets:
        tokenizer = self._tokenizer
        return TokenOffsets(
            lambda tokens: tokenizer.decode(tokens, special=special) if tokenizer else "",
            lambda token: self._shown(token, special=special),
            tokenizer.open_ends if tokenizer else (),
        )

    def _shown(self, token: int, *, special: bool | frozenset[str]) -> bytes:
        """Return the bytes of a token in a text."""
        if self._tokenizer is None:
            return b""
        if not isinstance(special, bool):
            special = bool(special) and self._tokenizer.token_text(token) in special
        return self._tokenizer.token_bytes(token, special=special) or b""

    def _row(self, scores: TokenScores) -> dict[str, object]:
        likeliest = [self._entry(token, logprob) for token, logprob in scores.top]
        return {**self._entry(scores.token, scores.logprob), "top_logprobs": likeliest}

    def _top(self, scores: TokenScores | None) -> dict[str, float] | None:
        """Return the likeliest tokens by text; of two with the same text, the likelier keeps it."""
        if scores is None:
            return None
        found: dict[str, float] = {}
        for token, logprob in scores.top:
            name = self._named(token)
            # `top` is sorted, so the likelier one comes first and keeps the name. JSON objects
            # cannot have one key twice.
            found[_numbered(token) if name in found else name] = logprob
        return found

    def _named(self, token: int) -> str:
        text, _, is_whole = self._of(token)
        return text if is_whole else f"bytes:{text}"

    def _entry(self, token: int, logprob: float) -> dict[str, object]:
        text, shown, _ = self._of(token)
        return {"token": text, "logprob": logprob, "bytes": shown}

    def _of(self, token: int) -> tuple[str, list[int] | None, bool]:
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._made(token)
        return known

    def _made(self, token: int) -> tuple[str, list[int] | None, bool]:
        text = self._tokenizer.token_text(token) if self._tokenizer else None
        if text is None:
            return _numbered(token), None, True
        shown = list(self._shown(token, special=self._special))
        if self._by_number:
            return _numbered(token), shown, True
        # Byte-level tokens may hold a part of a character, whose text has U+FFFD in its place.
        is_whole = text.encode() == self._shown(token, special=True)
        return text, shown, is_whole


def _numbered(token: int) -> str:
    return f"token_id:{token}"


class AnswerText:
    """The text of an answer as it comes, with the offsets of its tokens.

    If it is echoed, `prompt` precedes it: then the space that a text loses at its
    beginning is restored.
    """

    def __init__(self, texts: TokenTexts, prompt: str, offsets: TokenOffsets) -> None:
        self._texts = texts
        self._begin = len(prompt)
        self._come = len(prompt)
        self._offsets = offsets
        self._space: str | None = None if prompt else ""
        """The restored space; None before the first token."""
        self._put = ""
        """The same, until there is text to prepend it to."""
        self._waiting: list[tuple[TokenScores, int]] = []

    def add(
        self, text: str, tokens: Sequence[int], scores: Sequence[TokenScores], *, ends: bool
    ) -> tuple[str, Scored | None]:
        """Return the new text, and the scores of tokens that begin in the text so far, if any.

        Tokens after a stop string count as at the end of the text.
        """
        for number, token in enumerate(tokens):
            before = len(self._space or "")
            if self._space is None:
                self._space = self._texts.left_out(token)
                self._put = self._space or ""
            if scores:
                place = self._begin + before + self._offsets.push(token)
                self._waiting.append((scores[number], place))
        if text:
            text, self._put = self._put + text, ""
        self._come += len(text)
        return text, self._told(ends)

    def _told(self, ends: bool) -> Scored | None:
        """Return the scores of waiting tokens whose offsets have been reached."""
        # Text is withheld while it may become a stop string; scores ahead of it would show what is
        # about to be cut.
        told = [each for each in self._waiting if ends or each[1] <= self._come]
        if not told:
            return None
        self._waiting = self._waiting[len(told) :]
        places = [min(place, self._come) for _, place in told]
        scores = [one for one, _ in told]
        return Scored(scores, [one.token for one in scores], places)
