"""The served models by name, and their work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from gptrs.api import ContextLengthError, EngineClosedError, UsageError
from gptrs.api.backends import Backend
from gptrs.plugins.descriptions import DemoModelPlugin
from gptrs.plugins.manager import manager
from gptrs.quoting import listed, quoted
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.generation.generate import GenerationOptions, TokenScores
from gptrs_runtime.generation.scheduled_text import Client
from gptrs_runtime.images.image_prompts import PicturedTokens
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.serving.answers import AnswerStream
from gptrs_runtime.serving.engine import MOST_REQUESTS, Engine
from gptrs_runtime.sources.recommended import first_choice
from gptrs_runtime.tokenization.encoded_text import TextLength
from gptrs_runtime.verbs import Verb
from gptrs_serve.accounts import Account, Ledger
from gptrs_serve.intervention_fields import Intervention
from gptrs_serve.pools import Pool
from gptrs_serve.problems import RequestError, about_field, is_large
from gptrs_serve.residence import Residence
from gptrs_serve.text_calls import TextCalls
from gptrs_serve.token_texts import TokenTexts
from gptrs_serve.vllm_fields import MOST_CUT
from gptrs_serve.watched_runs import Interventions, Watched

RANKING: Final = ("text_classifier", "reranker")
"""The capabilities of rerankers: encoders with a head, language models with a score."""
EMBEDDING: Final = ("text_embedder", "image_text", "image_embedder")
"""The capabilities of embedders: of texts, of texts and images in one space, of images."""
HEARING: Final = ("transcriber", "ctc", "sound_transcriber")
WRITING: Final = ("causal_lm", "seq2seq")
"""The capabilities of models that generate text: after a prompt, or about it."""
SERVED: Final = (*WRITING, *EMBEDDING, "token_classifier", *RANKING, *HEARING)
"""Capabilities: a served model needs at least one of them."""
_MOST_SOURCE: Final = 4096
"""Most tokens that encoder-decoders read and write: T5 has no bound of its own, and reads a text
in one step, whose memory grows with the square of its length."""
_SHORT: Final = 2000
"""Texts of at most so many characters are tokenized in the connections' thread."""


class Served:
    """Models by name: those that generate text, run by one engine, and those that read texts.

    The latter run one call at a time, which may join texts of several clients.
    """

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        engine: Engine | None,
        most_output: int | None = None,
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        self.models = dict(models)
        self.created = int(time.time())
        self.engine = engine
        self.most_output = most_output
        self._texts = WeakKeyDictionary[LoadedModel, TokenTexts]()
        self.residence: Residence | None = None
        """Loads and unloads models; None without `--admin`."""
        self.response_mark = ""
        """Begins the ids of stored responses: tells which of several servers has them."""
        self.interventions: Interventions | None = None
        """Reads and steers hidden states; None without `--interventions`."""
        answers = (lambda: 0) if engine is None else engine.open_answers
        self.ledger = Ledger(most_requests, answers)
        self.calls = TextCalls(self.ledger)
        self.hearings = TextCalls(self.ledger)
        """Calls with sounds, which take long: in their own thread, one after another."""
        self.reading = Pool("reading", self.ledger)
        """Threads that turn texts, conversations and images into tokens."""
        self.forms = Pool("forms", self.ledger)
        self._backends = [model.backend for model in self.models.values()]

    def add(self, name: str, model: LoadedModel) -> None:
        """Serve another model; RequestError if this server cannot serve it."""
        require_served(name, model)
        if not model.capabilities.isdisjoint(WRITING):
            if self.engine is None:
                raise RequestError(
                    f"`{name}` generates text, and this server was started without such a model:"
                    " start it with one"
                )
            self.engine.add(name, model)
        # Last: from here on requests find the model, so all that they need is in place.
        self.models[name] = model

    def remove(self, name: str) -> Callable[[float], None]:
        """Stop serving a model; return a function that ends its requests after that many seconds.

        The function blocks until they have ended; call it in a thread.
        """
        # First: no new request may find the model, whose texts the engine is about to end.
        model = self.models.pop(name)
        if self.interventions is not None:
            self.interventions.forget(model)
        engine = self.engine
        if engine is None or model.capabilities.isdisjoint(WRITING):
            return lambda _: None
        return lambda seconds: engine.remove(name, seconds)

    def _default(self, capability: str) -> str | None:
        """Return the first model with a capability."""
        found = (name for name, each in self.models.items() if capability in each.capabilities)
        return next(found, None)

    def lost(self) -> str | None:
        """Return why nothing can be answered any more; None while all processes are alive.

        A fault of the engine's thread is a reason, too.
        """
        # A dead engine thread raises nowhere: without this check requests would wait forever, and
        # /health say ok.
        fault = None if self.engine is None else self.engine.fault
        if fault is not None:
            return f"the engine has stopped after a {type(fault).__name__}"
        for backend in self._backends:
            reason = backend.lost()
            if reason is not None:
                return reason
        return None

    def named(self, name: str | None, capability: str) -> tuple[str, LoadedModel]:
        """Return a model with a capability, by default the first; RequestError if there is none."""
        chosen = self._default(capability) if name is None else name
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

    def capability(self, name: str | None, kinds: Sequence[str]) -> str:
        """Return the first of `kinds` that the model has; without a name, that any model has.

        If there is none, return the first of `kinds`: `named` then reports what the model offers.
        """
        found = (kind for each in self.called(name) for kind in kinds if kind in each.capabilities)
        return next(found, kinds[0])

    def called(self, name: str | None) -> list[LoadedModel]:
        """Return the models that a request may mean: the one named, else all."""
        return [each for known, each in self.models.items() if name in (None, known)]

    def texts_of(self, model: LoadedModel) -> TokenTexts:
        """Return the texts of the tokens of a model, which may have been unloaded meanwhile."""
        found = self._texts.get(model)
        return self._texts.setdefault(model, TokenTexts(model)) if found is None else found

    def _require_current(self, name: str, model: LoadedModel) -> None:
        """Raise EngineClosedError if a name means another model than when a request was read."""
        # Its prompt may have waited for a form, for threads or for scores. The model that has the
        # name by now may have other tokens.
        if self.models.get(name) is not model:
            raise EngineClosedError(f"the model {quoted(name)} was unloaded")

    async def tokens(
        self, model: LoadedModel, prompt: str | list[int] | Conversation
    ) -> Sequence[int]:
        """Return the tokens of a prompt; ModelError as of `prompt_tokens`, RequestError for others.

        Separate threads handle conversations, which a process renders, and texts that take longer
        than the switch of threads. A prompt that is clearly too long for the model is refused
        before rendering and tokenizing. RequestError for both names the field of the prompt.
        """
        with about_field("messages" if isinstance(prompt, Conversation) else "prompt"):
            return await self._tokens(model, prompt)

    async def _tokens(
        self, model: LoadedModel, prompt: str | list[int] | Conversation
    ) -> Sequence[int]:
        most = longest_prompt(model)
        if "seq2seq" in model.capabilities:
            return await self.reading.run(lambda: _source(model, prompt, most))
        # Many short prompts of one large body are long together.
        is_long = is_large() or (isinstance(prompt, str) and len(prompt) > _SHORT)
        # A thread and back costs more than the tokens of a short text.
        if not is_long and not isinstance(prompt, Conversation):
            return model.prompt_tokens(prompt, most)
        return await self.reading.run(lambda: model.prompt_tokens(prompt, most))

    async def all_tokens(self, model: LoadedModel, text: str) -> Sequence[int]:
        """Return the tokens of a text that will be cut; RequestError for one that is too long."""
        if len(text) > MOST_CUT:
            raise RequestError(
                f"a text that is cut has at most {MOST_CUT} characters, got {len(text)}",
                param="prompt",
                status=413,
            )
        return await self.reading.run(lambda: model.prompt_tokens(text))

    async def see(self, model: LoadedModel, tokens: Sequence[int]) -> None:
        """Compute the vectors of pictures among tokens, one call each; errors as of `calls.alone`.

        The engine would compute them in the step that reads them, while all other texts wait.
        """
        if not isinstance(tokens, PicturedTokens):
            return
        lm = model.image_lm()
        for picture in tokens.pictures:
            if not picture.is_seen(lm):
                await self.calls.alone(partial(picture.vectors, lm))

    def close(self) -> None:
        """End all threads, and the engine."""
        pools = (self.calls, self.hearings, self.reading, self.forms)
        for threads in (*pools, self.residence, self.interventions):
            if threads is not None:
                threads.close()
        if self.engine is not None:
            self.engine.close()

    def account(
        self, model: LoadedModel, prompt: int, asked: int | None, answers: int, logprobs: int | None
    ) -> Account:
        """Return the account of a request whose prompt has that many tokens."""
        reads = "seq2seq" in model.capabilities  # its text has a context of its own
        room = _context(model) - 1 if reads else longest_prompt(model) - prompt
        return Account(prompt, answers, asked, logprobs or 0, room, self.most_output)

    def submit(
        self,
        name: str,
        model: LoadedModel,
        tokens: Sequence[int],
        options: GenerationOptions,
        *,
        max_tokens: int | None,
        answers: int,
        priority: int,
        client: Client,
        max_time: float | None = None,
        watched: Watched | None = None,
        prompts: int = 1,
    ) -> AnswerStream:
        """Ask the engine for answers of at most `max_tokens`; None: up to the context.

        This is one of the `prompts` of a request, to the model that had the name when it was read.
        RequestError for more than one request may ask for; errors as of `Engine.submit`.
        """
        self._require_current(name, model)
        together = answers * prompts
        account = self.account(model, len(tokens), max_tokens, together, options.logprobs)
        assert self.engine is not None  # some model writes texts
        return self.engine.submit(
            tokens,
            options,
            model=name,
            max_tokens=account.tokens_of_answer(),
            answers=answers,
            priority=priority,
            client=client,
            time_limit=max_time,
            watch=None if watched is None else watched.watch,
            reader=None if watched is None else watched.reader,
        )

    async def watched(
        self, model: LoadedModel, asked: Intervention | None, prompt: int
    ) -> Watched | None:
        """Return how answers to a prompt of that many tokens are watched, None if not at all.

        RequestError if interventions are off, or invalid.
        """
        if asked is None:
            return None
        interventions = self.allowed_interventions()
        return await self.reading.run(lambda: interventions.watched(model, asked, prompt))

    def allowed_interventions(self) -> Interventions:
        """Return what reads and steers hidden states; RequestError if the operator did not."""
        if self.interventions is None:
            raise RequestError(
                "this server reads and steers no hidden states: start it with `--interventions`",
                status=403,
                code="no_interventions",
            )
        return self.interventions

    async def prompt_scores(
        self,
        name: str,
        model: LoadedModel,
        tokens: Sequence[int],
        count: int,
        priority: int,
        client: Client,
    ) -> list[TokenScores | None]:
        """Return the scores of each token of a prompt given those before it; None for the first.

        The engine reads them like prompts. Models that cannot continue after a part of a prompt
        run on all of it, in the reading threads.
        """
        assert self.engine is not None
        if len(tokens) == 1:
            return [None]
        self._require_current(name, model)
        if not self.engine.can_score(name):
            return await self.reading.run(lambda: _forward_scores(model, tokens, count))
        stream = self.engine.score(tokens, count, model=name, priority=priority, client=client)
        # Ends the scoring in the engine, too, when the client goes away.
        async with stream:
            return [None, *[score async for piece in stream for score in piece.scores]]

    async def found(
        self,
        verb: Verb,
        model: LoadedModel,
        asked: Mapping[str, Any],
        function: Callable[..., Any] | None = None,
    ) -> tuple[Sequence[Any], int]:
        """Return the results of a task, or of `function` in place of its own, and the tokens read.

        Texts of several requests are joined if the task treats each text separately.
        """

        def work(texts: Sequence[str]) -> tuple[Any, list[TextLength]]:
            lengths: list[TextLength] = []
            given = {**asked, "texts": texts} if verb.each else asked
            found = verb.run(model, given, function, lengths=lengths.extend)
            return found, lengths

        if not verb.each:
            found, lengths = await self.calls.alone(lambda: work(()))
            return found, sum(length.read for length in lengths)
        # Only calls with the same options are joined: a batch has one.
        options = sorted((name, value) for name, value in asked.items() if name != "texts")
        rows = await self.calls.run(
            (model, verb.name, *options),
            asked["texts"],
            lambda texts: list(zip(*work(texts), strict=True)),
        )
        return [row for row, _ in rows], sum(length.read for _, length in rows)


def longest_prompt(model: LoadedModel) -> int:
    """Return the most prompt tokens of a model that generates text."""
    if "seq2seq" in model.capabilities:
        return min(model.seq2seq().source_length, _MOST_SOURCE)
    return model.causal_lm().context_length


def _context(model: LoadedModel) -> int:
    return min(model.seq2seq().context_length, _MOST_SOURCE)


def _source(model: LoadedModel, prompt: str | list[int] | Conversation, most: int) -> Sequence[int]:
    tokens = model.prompt_tokens(prompt, most)
    if len(tokens) > most:
        raise ContextLengthError(
            f"{len(tokens)} tokens do not fit into the {most} that the model reads"
        )
    return tokens


def _forward_scores(
    model: LoadedModel, tokens: Sequence[int], count: int
) -> list[TokenScores | None]:
    logits = model.forward(np.array([tokens]))[0]
    pairs = zip(logits[:-1], tokens[1:], strict=True)
    return [None, *(TokenScores.of(row, token, count) for row, token in pairs)]


# Loading the models of a server, by the names that clients use.


def load_models(
    models: Sequence[str], load: Callable[[str], LoadedModel]
) -> dict[str, LoadedModel]:
    """Load [NAME=]MODEL... with `load`, announcing each on a terminal.

    UsageError for a duplicate name, or a model without a route.
    """
    loaded: dict[str, LoadedModel] = {}
    for given in models:
        name, separator, path = given.partition("=")
        if not (path if separator else given):
            raise UsageError(
                f"`{given}` names no model", hint="write NAME=MODEL, with a path or id"
            )
        if sys.stderr.isatty():  # large ones take a while
            print(f"loading {path if separator else given}", file=sys.stderr, flush=True)
        model = load(path if separator else given)
        name = name if separator else model.name
        if name in loaded or not name:
            raise UsageError(
                f"two models are called `{name}`" if name else f"`{given}` names no model",
                hint="write NAME=MODEL",
            )
        require_served(name, model)
        loaded[name] = model
    return loaded


def about_default(model: LoadedModel) -> str:
    """Return what the bundled model is, and how to serve others."""
    about = {record.name: record.summary for record in manager().records(DemoModelPlugin)}
    facts = ", ".join(filter(None, [about.get(model.name), *model.size()]))
    return (
        f"no model was named: the bundled `{model.name}` is served ({facts});"
        f" name a model that was tuned to chat: {first_choice('chat')}"
    )


def require_served(name: str, model: LoadedModel) -> None:
    """Raise UsageError for a model that no route can use."""
    if model.capabilities.isdisjoint(SERVED):
        raise UsageError(f"`{name}` does not generate, embed, classify or transcribe")


def load_drafts(
    given: Sequence[str], names: Sequence[str], backend: Backend
) -> dict[str, LoadedModel]:
    """Load the drafts [NAME=]MODEL... by the names of their models; UsageError for a second one."""
    drafts: dict[str, LoadedModel] = {}
    for each in given:
        name, separator, path = each.partition("=")
        name = name if separator else names[0]
        if name in drafts:
            raise UsageError(f"`{name}` has two drafts", hint="write NAME=MODEL")
        drafts[name] = load_model(path if separator else each, backend)
    return drafts


def with_adapters(
    loaded: Mapping[str, LoadedModel], given: Sequence[str]
) -> dict[str, LoadedModel]:
    """Add models with adapters, [MODEL:]NAME=DIR; UsageError for unknown or duplicate names."""
    served = dict(loaded)
    for each in given:
        names, _, path = each.partition("=")
        base, separator, name = names.rpartition(":")
        base = base if separator else next(iter(loaded))
        if not name or not path:
            raise UsageError(f"--adapter: `{each}` is not [MODEL:]NAME=DIR")
        if base not in loaded or name in served:
            problem = f"two models are called `{name}`"
            if base not in loaded:
                problem = f"there is no model `{base}` to adapt"
            raise UsageError(f"--adapter: {problem}", hint=f"models are {', '.join(loaded)}")
        served[name] = loaded[base].with_adapter(path, name)
    return served
