"""The models that are served, by name, and what each is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from gptrs.quoting import listed
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.embedding.embed import embed
from gptrs_runtime.forward import class_label
from gptrs_runtime.generation.generate import GenerationOptions, TokenScores
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Entity, Ranked
from gptrs_runtime.serving.answers import AnswerStream
from gptrs_runtime.serving.engine import MOST_REQUESTS, Engine
from gptrs_runtime.text_classes.classify import text_logits
from gptrs_runtime.text_classes.rank import rank
from gptrs_runtime.text_classes.scores import class_scores
from gptrs_runtime.text_classes.tag import tag
from gptrs_runtime.tokenization.encoded_text import LongTexts, TextLength
from gptrs_serve.problems import RequestError
from gptrs_serve.text_calls import TextCalls
from gptrs_serve.token_texts import TokenTexts

RANKING: Final = ("text_classifier", "reranker")
"""The capabilities of rerankers: encoders with a head, language models with a score."""
SERVED: Final = ("causal_lm", "text_embedder", "token_classifier", *RANKING)
"""Capabilities; a model with one of these at least can be served."""
_SHORT: Final = 2000
"""Characters of a text that the thread of the connections reads by itself."""


class Served:
    """Models by name: those that write texts, run by one engine, and those that read texts.

    The latter run one call at a time, in which texts of several clients are joined.
    """

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        engine: Engine | None,
        most_output: int,
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        self.models = dict(models)
        self.created = int(time.time())
        self.engine = engine
        self._most_output = most_output
        self._texts = {name: TokenTexts(model) for name, model in self.models.items()}
        self.calls = TextCalls(most_requests)
        self._backends = [model.backend for model in self.models.values()]

    @cached_property
    def _default(self) -> dict[str, str]:
        """The first model of each capability."""
        found: dict[str, str] = {}
        for name, model in self.models.items():
            for capability in model.capabilities:
                found.setdefault(capability, name)
        return found

    def lost(self) -> str | None:
        """Return why nothing can be answered any more, None while all processes are there."""
        for backend in self._backends:
            reason = backend.lost()
            if reason is not None:
                return reason
        return None

    def named(self, name: str | None, capability: str) -> tuple[str, LoadedModel]:
        """Return a model of a capability, the first one without a name; RequestError if none."""
        chosen = self._default.get(capability) if name is None else name
        if chosen is None or chosen not in self.models:
            shown = "" if name is None else f" called {name[:80]!r}"
            raise RequestError(
                f"there is no model{shown}; there are {listed(self.models, 8)}",
                status=404,
                param="model",
                code="model_not_found",
            )
        model = self.models[chosen]
        if capability not in model.capabilities:
            raise RequestError(
                f"`{chosen}` cannot do this: it offers {', '.join(sorted(model.capabilities))}",
                param="model",
                code="model_not_supported",
            )
        return chosen, model

    def texts_of(self, name: str) -> TokenTexts:
        """Return the texts of the tokens of a model."""
        return self._texts[name]

    async def tokens(
        self, model: LoadedModel, prompt: str | list[int] | Conversation
    ) -> Sequence[int]:
        """Return the tokens of a prompt; UsageError and ModelError as of `prompt_tokens`.

        A thread reads conversations, which a process renders, and texts that take longer than the
        way there and back.
        """
        is_long = isinstance(prompt, str) and len(prompt) > _SHORT
        if not is_long and not isinstance(prompt, Conversation):
            return model.prompt_tokens(prompt)
        return await asyncio.to_thread(model.prompt_tokens, prompt)

    def most_tokens(self, model: LoadedModel, prompt: int, asked: int | None) -> int:
        """Return how many tokens may follow a prompt: those asked for, else what there is room for.

        RequestError if more are asked for than the server allows.
        """
        if asked is None:
            return max(1, min(self._most_output, model.causal_lm().context_length - prompt))
        if asked > self._most_output:
            raise RequestError(
                f"this server writes {self._most_output} tokens at most, asked for {asked}",
                param="max_tokens",
            )
        return asked

    def submit(
        self,
        name: str,
        tokens: Sequence[int],
        options: GenerationOptions,
        *,
        max_tokens: int,
        answers: int,
        priority: int,
    ) -> AnswerStream:
        """Ask the engine; errors are those of `Engine.submit`."""
        assert self.engine is not None  # some model writes texts
        return self.engine.submit(
            tokens,
            options,
            model=name,
            max_tokens=max_tokens,
            answers=answers,
            priority=priority,
        )

    async def prompt_scores(
        self, model: LoadedModel, tokens: Sequence[int], count: int
    ) -> list[TokenScores | None]:
        """Return the scores of each token of a prompt after those before it; the first has none."""

        def work() -> list[TokenScores | None]:
            logits = model.forward(np.array([tokens]))[0]
            scores = (
                TokenScores.of(row, token, count)
                for row, token in zip(logits[:-1], tokens[1:], strict=True)
            )
            return [None, *scores]

        return await asyncio.to_thread(work)

    async def ranked(
        self,
        model: LoadedModel,
        query: str,
        documents: Sequence[str],
        top: int | None,
        *,
        may_cut: bool,
    ) -> tuple[list[Ranked], int]:
        """Return the documents, the best first, and how many tokens were read."""
        lengths: list[TextLength] = []
        found = await self.calls.alone(
            lambda: rank(model, query, documents, top, truncate=may_cut, lengths=lengths.extend)
        )
        return found, sum(length.read for length in lengths)

    async def class_scores(
        self, model: LoadedModel, texts: Sequence[str], *, may_cut: bool
    ) -> tuple[list[str], list[np.ndarray], int]:
        """Return the names of the classes, the scores of each text, f64 [classes], and how many
        tokens were read.
        """

        def work(texts: Sequence[str]) -> list[tuple[np.ndarray, int]]:
            lengths: list[TextLength] = []
            long = LongTexts(may_cut, lengths.extend)
            logits = text_logits(model, texts, long=long)
            scores = class_scores(model.config, logits.shape[1])(logits)
            return _with_read(scores, lengths)

        found = await self.calls.run((model, "classes", may_cut), texts, work)
        names = [class_label(model.config, index) for index in range(len(found[0][0]))]
        return names, [scores for scores, _ in found], sum(read for _, read in found)

    async def entities(
        self, model: LoadedModel, texts: Sequence[str], aggregation: str
    ) -> list[list[Entity]]:
        """Return the names in each text."""
        key = (model, "tags", aggregation)
        return await self.calls.run(key, texts, lambda texts: tag(model, texts, aggregation))

    async def vectors(
        self, model: LoadedModel, texts: Sequence[str], *, may_cut: bool
    ) -> tuple[list[np.ndarray], int]:
        """Return the vector of each text, f32 [D], and how many tokens were read."""

        def work(texts: Sequence[str]) -> list[tuple[np.ndarray, int]]:
            lengths: list[TextLength] = []
            vectors = embed(model, texts, truncate=may_cut, lengths=lengths.extend)
            return _with_read(vectors, lengths)

        found = await self.calls.run((model, "vectors", may_cut), texts, work)
        return [vector for vector, _ in found], sum(read for _, read in found)


def _with_read(rows: np.ndarray, lengths: Sequence[TextLength]) -> list[tuple[np.ndarray, int]]:
    """Return a row of each text, with how many tokens of it were read."""
    return [(row, length.read) for row, length in zip(rows, lengths, strict=True)]
