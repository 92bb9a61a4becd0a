"""Single tokens as texts, as log-probabilities name them."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.runtime.generation.generate import TokenScores
from gptrs.runtime.loaded_model import LoadedModel

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class TokenTexts:
    """The texts of the tokens of a model; one that is part of a character has that of its entry."""

    def __init__(self, model: LoadedModel) -> None:
        self._tokenizer = model.tokenizer if model.has_tokenizer else None
        self._known: dict[int, str] = {}

    def of(self, token: int) -> str:
        """Return the text of a token; different tokens of a vocabulary have different ones."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._text(token)
        return known

    def _text(self, token: int) -> str:
        if self._tokenizer is None:
            return f"token_id:{token}"
        text = self._tokenizer.decode([token], special=True)
        if _INCOMPLETE in text or not text:
            return self._tokenizer.piece(token) or f"token_id:{token}"
        return text

    def chat(self, scores: Sequence[TokenScores]) -> list[dict[str, object]]:
        """Return scores in the form of chats."""
        return [
            {
                **self._entry(one.token, one.logprob),
                "top_logprobs": [self._entry(token, logprob) for token, logprob in one.top],
            }
            for one in scores
        ]

    def completion(
        self, scores: Sequence[TokenScores | None], tokens: Sequence[int], offset: int
    ) -> dict[str, object]:
        """Return scores in the form of completions; None for a first token, which has none.

        `offset` is where the text of `tokens` begins.
        """
        texts = [self.of(token) for token in tokens]
        offsets: list[int] = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [one.logprob if one else None for one in scores],
            "top_logprobs": [
                {self.of(token): logprob for token, logprob in one.top} if one else None
                for one in scores
            ],
            "text_offset": offsets,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, object]:
        text = self.of(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
