"""The engine: answers any number of concurrent requests to one or several models."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Unpack

from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import EngineBusyError, EngineClosedError, UsageError
from gptrs.quoting import did_you_mean, listed, quoted
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.guessing.draft import require_same_tokens
from gptrs_runtime.generation.keyword_options import generation_options, tells_options
from gptrs_runtime.generation.keywords import OptionFields
from gptrs_runtime.generation.masks_beside import MasksBeside
from gptrs_runtime.generation.model_settings import note_ignored
from gptrs_runtime.generation.options import PREFILL_CHUNK, GenerationOptions
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.generation.watching import RowReader, Watch
from gptrs_runtime.loaded_model import HEAD, LoadedModel
from gptrs_runtime.serving.answers import AnswerStream, Family, families, shared_budget
from gptrs_runtime.serving.lane import EngineLoop, Lane
from gptrs_runtime.text_batches import Prompt

MOST_RUNNING: Final = 64
MOST_REQUESTS: Final = 1024
MOST_ANSWERS: Final = 128
"""Answers to one request."""
MOST_WATCHES: Final = 8
"""Different watches whose texts run at the same time, each with a key/value cache."""


class EngineState(Struct, frozen=True):
    """A snapshot of an engine: running and waiting texts, pages they hold, steps."""

    running: int
    waiting: int
    requests: int
    steps: int
    pages_held: int
    pages_most: int


class Engine:
    """Answers requests to `models`, one or several by name, in its own thread.

    Each answer equals that of `generate` for its prompt and options, bit for bit, regardless of
    other requests. Adapters of one model (`LoadedModel.with_adapter`) step together, other models
    take turns; an encoder-decoder processes the waiting texts as one lot after another. A step
    takes up to `token_budget` tokens: one per running answer, and chunks of prompts. At most
    `most_running` answers run at once, fewer if the key/value cache has no room; other requests
    wait, ordered by priority, then by turns of their clients, then by arrival. No more than
    `most_requests` answers may wait and run. The models share `cache_budget`, `cache_dtype` is as
    in `GenerationOptions`. `prompt_lookup` enables speculative decoding for all answers, `mtp`
    for models with a head for multi-token prediction, `drafts` for models by name.

    An answer starts when the cache has room for its prompt and some more tokens. If the cache runs
    full, the youngest answer is preempted until there is room, which does not change its tokens.

    Requests that wait `most_wait` seconds without starting end with EngineBusyError.

    `close`, or leaving a `with` block, cancels unfinished requests; `drain` waits for them.
    """

    def __init__(
        self,
        models: LoadedModel | Mapping[str, LoadedModel],
        *,
        token_budget: int = PREFILL_CHUNK,
        most_running: int = MOST_RUNNING,
        most_requests: int = MOST_REQUESTS,
        cache_budget: int | str | None = None,
        cache_dtype: str | None = None,
        prompt_lookup: bool = False,
        mtp: bool = False,
        drafts: Mapping[str, LoadedModel] | None = None,
        most_wait: float | None = None,
    ) -> None:
        named = models if isinstance(models, Mapping) else {models.name: models}
        _require_limits(named, token_budget, most_running, most_requests)
        for model in named.values():
            note_ignored(model.name, model.generation_config, model.token_reader().vocab_size)
        found = families(named)
        self._shared = GenerationOptions(
            prefill_chunk=token_budget, cache_budget=cache_budget, cache_dtype=cache_dtype
        )
        self._models: dict[str, LoadedModel] = dict(named)
        self._prompt_lookup = prompt_lookup
        self._mtp = mtp
        if mtp:
            _require_head(named)
        self._drafts = _checked_drafts(named, drafts or {})
        self._masks = MasksBeside()
        self._most_running = most_running
        budgets = self._budgets([each.models[0] for each in found])
        lanes = [
            self._new_lane(family, budget) for family, budget in zip(found, budgets, strict=True)
        ]
        of_name = {name: lane for lane in lanes for name in lane.family.names}
        self._lanes: dict[str, Lane] = {name: of_name[name] for name in named}
        self._most_requests = most_requests
        # Weak, so that requests that have ended need no removal.
        self._requests: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        self._watched: dict[tuple[str, Hashable], Lane] = {}
        """Lanes by their model and watch, the least recently used first."""
        self._watching = threading.Lock()
        self._accepting = True
        # A forked child has no thread of the engine; its calls would wait forever.
        self._process = os.getpid()
        self._loop = EngineLoop(lanes, self._masks, most_wait)
        self._loop.start()
        # The thread refers to the loop, not to the engine, so a forgotten engine is collected and
        # its thread ends.
        self._finalizer = weakref.finalize(self, self._loop.stop)

    def __repr__(self) -> str:
        state = self.state()
        return (
            f"<Engine of {listed(list(self._lanes), 4)}: {state.running} running,"
            f" {state.waiting} waiting>"
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def models(self) -> dict[str, LoadedModel]:
        """The models by name; requests without a model use the first."""
        return dict(self._models)

    def add(self, name: str, model: LoadedModel) -> None:
        """Serve a further model under a `name` that is free; it takes steps of its own.

        Its cache is as large as its share of the budget would be among all that are there now.
        UsageError for a name that is taken; errors as of the constructor.
        """
        self._require_open()
        if name in self._models:
            raise UsageError(f"the engine has a model {quoted(name)} already")
        note_ignored(model.name, model.generation_config, model.token_reader().vocab_size)
        others = [lane.family.models[0] for lane in dict.fromkeys(self._lanes.values())]
        lane = self._new_lane(Family((model,), (name,)), self._budgets([*others, model])[-1])
        self._loop.add(lane)
        # Others read these while they change: new ones replace them.
        self._lanes = {**self._lanes, name: lane}
        self._models = {**self._models, name: model}

    def remove(self, name: str, timeout: float | None = None) -> None:
        """Serve a model no more: new requests are refused, current ones have `timeout` seconds.

        Those that have not ended by then end with EngineClosedError; None waits for all. The memory
        of its cache is free once the caller, too, has dropped the model. UsageError if there is
        none of the name.
        """
        lane = self._lanes[self._named(name)]
        self._lanes = {known: each for known, each in self._lanes.items() if known != name}
        self._models = {known: each for known, each in self._models.items() if known != name}
        self._drafts.pop(name, None)

        def current() -> list[AnswerStream]:
            return [each for each in list(self._requests) if each.model == name and not each.done]

        _wait_until(lambda: not (self._loop.alive and current()), timeout)
        gone = threading.Event()
        with self._watching:
            keys = [key for key in self._watched if key[0] == name]
            watched = [self._watched.pop(key) for key in keys]

        def end() -> None:
            for stream in current():
                for each in (lane, *watched):  # only one of them has it
                    each.end(stream, EngineClosedError(f"the model {quoted(name)} was unloaded"))
            for each in watched:
                self._loop.drop(each)
            if lane not in self._lanes.values():
                self._loop.drop(lane)
            gone.set()

        self._loop.call(end)
        _wait_until(lambda: gone.is_set() or not self._loop.alive, None)

    def open_answers(self) -> int:
        """Return how many answers have not ended."""
        # A copy: the garbage collector may remove members while the set is walked.
        return sum(stream.open for stream in list(self._requests))

    def open_requests(self, name: str) -> int:
        """Return how many requests to a model have not ended."""
        return sum(each.model == name and not each.done for each in list(self._requests))

    @tells_options
    def submit(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        *,
        model: str | None = None,
        answers: int = 1,
        priority: int = 0,
        client: Hashable = None,
        time_limit: float | None = None,
        watch: Watch | None = None,
        reader: RowReader | None = None,
        **fields: Unpack[OptionFields],
    ) -> AnswerStream:
        """Ask for `answers` to a prompt, which is read once; return the stream of their pieces.

        Prompt, options and errors are as for `stream`, and all checks happen before it returns;
        answer `i` equals that of `generate_several`. Requests of one `client`, any value, do not
        delay those of others. After `time_limit` seconds, incomplete answers end and the stream
        raises TimeLimitError. With a `watch`, the model runs in its scope, in steps of its own, and
        `reader` gets the rows of the answers. Settings of the engine itself - cache, element type,
        chunks, files - cannot be options. EngineBusyError if its limit of requests, or of different
        watches, is reached, EngineClosedError if it accepts none, CacheBudgetError if the cache
        would not even hold the text alone.
        """
        name = self._named(model)
        asked, lane = self._models[name], self._lanes[name]
        self._require_open()
        chosen = generation_options(asked, options, fields)
        _require_own(chosen)
        # Beams in generation_config.json are ignored, since texts of requests share steps.
        chosen = replace(chosen, beams=1)
        tokens = asked.prompt_tokens(prompt)
        if watch is None:
            stream = self._stream(name, lane, tokens, self._guessed(name, asked, chosen), answers)
            stream.time_limit = time_limit
            return self._begun(lane, stream, priority, client)
        # Held until the lane has the request: one without any may be dropped.
        with self._watching:
            lane = self._watched_lane(name, watch)
            stream = self._stream(name, lane, tokens, replace(chosen, steps_at_once=1), answers)
            stream.time_limit = time_limit
            for text in stream.texts:
                text.reader = reader
            return self._begun(lane, stream, priority, client)

    def _watched_lane(self, name: str, watch: Watch) -> Lane:
        """Return the lane of a model for an equal watch; EngineBusyError if too many are in use."""
        model, key = self._models[name], (name, watch.key)
        if "seq2seq" in model.capabilities:
            raise UsageError(
                f"the values of {quoted(name)} cannot be read or changed: it is an encoder-decoder"
            )
        lane = self._watched.pop(key, None)
        if lane is None:
            idle = [known for known, each in self._watched.items() if not each.requests_open]
            if len(self._watched) >= MOST_WATCHES and not idle:
                raise EngineBusyError(
                    f"texts of {MOST_WATCHES} different watches run, which is the most allowed",
                    hint="try again later",
                )
            if len(self._watched) >= MOST_WATCHES:
                self._drop(self._watched.pop(idle[0]))
            budget = self._budgets([model] * MOST_WATCHES)[0]
            lane = self._new_lane(Family((model,), (name,)), budget, watch)
            self._loop.add(lane)
        self._watched[key] = lane
        return lane

    def _drop(self, lane: Lane) -> None:
        self._loop.call(lambda: self._loop.drop(lane))

    def can_score(self, model: str | None = None) -> bool:
        """Return whether `score` works for a model: not with states, nor with a short context."""
        return self._lanes[self._named(model)].can_score

    def score(
        self,
        tokens: Sequence[int],
        count: int,
        *,
        model: str | None = None,
        priority: int = 0,
        client: Hashable = None,
    ) -> AnswerStream:
        """Score each of at least 2 tokens after those before it, in steps like those of prompts.

        The only piece of the stream has the scores of all tokens after the first, each with the
        `count` likeliest ones. Raise as `submit` does; UsageError if `can_score` is False.
        """
        name = self._named(model)
        lane = self._lanes[name]
        self._require_open()
        if not lane.can_score or len(tokens) < 2:
            raise UsageError(
                f"{len(tokens)} tokens cannot be scored by `{name}` in the engine",
                hint="run a model with a state or a short context on all of them: `model.forward`",
            )
        stream = self._stream(name, lane, tokens[:-1], GenerationOptions(max_tokens=1), 1)
        stream.texts[0].to_score(tokens[1:], count)
        return self._begun(lane, stream, priority, client)

    def _budgets(self, models: Sequence[LoadedModel]) -> list[int | None]:
        return shared_budget(models, self._shared.cache_budget, self._shared.cache_dtype)

    def _new_lane(self, family: Family, budget: int | None, watch: Watch | None = None) -> Lane:
        options = replace(self._shared, cache_budget=budget)
        # Whatever guesses, caches of models with states make room for it.
        first = family.models[0]  # all of a family are adapters of one model
        guesses = watch is None and any(
            self._guessed(name, first, options).guesses for name in family.names
        )
        options = replace(options, prompt_lookup=guesses)
        return Lane(family, options, self._most_running, self._masks, watch)

    def _every_lane(self) -> list[Lane]:
        return [*dict.fromkeys(self._lanes.values()), *list(self._watched.values())]

    def _begun(
        self, lane: Lane, stream: AnswerStream, priority: int, client: Hashable
    ) -> AnswerStream:
        self._requests.add(stream)
        lane.requests.add(stream)
        self._loop.call(lambda: _begin(lane, stream, priority, client))
        # Checked after the call is queued: if the thread ended in between, nobody would run it.
        if not self._loop.alive:
            stream.end(EngineClosedError("the engine ended"))
            stream.wake()
        return stream

    def _guessed(
        self, name: str, model: LoadedModel, options: GenerationOptions
    ) -> GenerationOptions:
        """Return the options of a request with what the engine guesses ahead by."""
        draft = self._drafts.get(name)
        if "seq2seq" in model.capabilities:  # nothing of its text is in its source
            return options
        mtp = self._mtp and draft is None and options.draft is None and _has_head(model)
        if draft is None and not (self._prompt_lookup or mtp):
            return options
        return replace(
            options,
            prompt_lookup=options.prompt_lookup or self._prompt_lookup,
            mtp=options.mtp or mtp,
            draft=draft if options.draft is None else options.draft,
        )

    def state(self) -> EngineState:
        """Return a snapshot of the engine."""
        lanes = self._every_lane()
        pages = [lane.cache_pages() for lane in lanes]
        return EngineState(
            running=sum(lane.running for lane in lanes),
            waiting=sum(lane.waiting for lane in lanes),
            requests=self._open_requests(),
            steps=self._loop.steps,
            pages_held=sum(held for held, _ in pages),
            pages_most=sum(most for _, most in pages),
        )

    @property
    def most_running(self) -> int:
        """How many answers run at once at most."""
        return self._most_running

    def running_texts(self) -> list[tuple[str, GeneratedText]]:
        """Return the texts that have begun and not ended, each with the name of its model."""
        streams = sorted(list(self._requests), key=lambda stream: stream.submitted)
        return [
            (stream.model, text)
            for stream in streams
            if not stream.done
            for text in stream.texts
            if text.has_begun and not text.ended
        ]

    @property
    def fault(self) -> Exception | None:
        """The error that ended the thread of the engine; None unless it failed."""
        return self._loop.fault

    @property
    def accepts(self) -> bool:
        """Whether new requests are accepted, as far as there is room."""
        return self._accepting and self._loop.alive

    def refuse(self) -> None:
        """Accept no more requests; the current ones continue."""
        self._accepting = False

    def drain(self, timeout: float | None = None) -> bool:
        """Accept no more requests, and wait until all have ended; False after `timeout` seconds."""
        self.refuse()
        return _wait_until(lambda: not (self._loop.alive and self._open_requests()), timeout)

    def close(self) -> None:
        """Accept no more requests, cancel all, and end the thread after the current step."""
        self.refuse()
        self._finalizer()

    def _named(self, name: str | None) -> str:
        """Return the name of a model, the first one by default."""
        if name is None and self._lanes:
            return next(iter(self._lanes))
        if name is None or name not in self._lanes:
            raise UsageError(
                f"there is no model{f' {quoted(name)}' if name else ''} in the engine",
                hint=f"{did_you_mean(name or '', list(self._lanes))}there are"
                f" {listed(list(self._lanes), 8)}",
            )
        return name

    def _require_open(self) -> None:
        if os.getpid() != self._process:
            raise EngineClosedError(
                "the engine runs in the process that this one was forked from",
                hint="make an engine after the fork",
            )
        if not self.accepts:
            raise EngineClosedError("the engine accepts no more requests")
        if self.open_answers() >= self._most_requests:
            busy = EngineBusyError(
                f"the engine has {self._most_requests} answers that have not ended, which is the"
                " most it takes",
                hint="try again later",
            )
            # With several models, room appears when the first of them ends an answer.
            lanes = dict.fromkeys(self._lanes.values())
            found = [seconds for lane in lanes if (seconds := lane.seconds_for(1)) is not None]
            busy.retry_after = min(found, default=busy.retry_after)
            raise busy

    def _open_requests(self) -> int:
        return sum(not stream.done for stream in list(self._requests))

    def _stream(
        self,
        name: str,
        lane: Lane,
        tokens: Sequence[int],
        options: GenerationOptions,
        answers: int,
    ) -> AnswerStream:
        if not 1 <= answers <= MOST_ANSWERS:
            raise UsageError(f"a request has 1 to {MOST_ANSWERS} answers, asked for {answers}")
        model = self._models[name]
        setup = GenerationSetup(model, options)
        texts = [setup.new_text(tokens, stream=number) for number in range(answers)]
        for text in texts:
            text.family = lane.family.number(model)
        lane.check(texts[0])

        def cancel(stream: AnswerStream) -> None:  # as it names the engine, a stream keeps it alive
            self._loop.call(lambda: lane.end(stream))

        stream = AnswerStream(texts, cancel)
        stream.model = name
        return stream


def _wait_until(met: Callable[[], bool], timeout: float | None) -> bool:
    """Wait until a condition is met; False after `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    while not met():
        if end is not None and time.monotonic() >= end:
            return False
        # Polled: ends of requests have no condition to wait for, and this is used at shutdown only.
        time.sleep(0.01)
    return True


def _begin(lane: Lane, stream: AnswerStream, priority: int, client: Hashable) -> None:
    try:
        lane.add(stream, priority, client)
    except Exception as error:
        lane.end(stream, error)


def _checked_drafts(
    models: Mapping[str, LoadedModel], drafts: Mapping[str, LoadedModel]
) -> dict[str, LoadedModel]:
    """Return drafts by the names of their models; UsageError for one that does not suit."""
    for name, draft in drafts.items():
        if name not in models:
            raise UsageError(
                f"a draft is given for {quoted(name)}, which is not a model of the engine",
                hint=f"there are {listed(list(models), 8)}",
            )
        if HEAD in draft.capabilities:
            draft.head_for(models[name])
        else:
            require_same_tokens(models[name], draft)
    return dict(drafts)


def _require_head(models: Mapping[str, LoadedModel]) -> None:
    """Raise UsageError if no model has a head for multi-token prediction."""
    if not any(map(_has_head, models.values())):
        raise UsageError(
            f"none of {listed(list(models), 8)} has a head for multi-token prediction",
            hint="leave out --mtp; --prompt-lookup or --draft guess for any model",
        )


def _has_head(model: LoadedModel) -> bool:
    """Return whether a model has a head, which knows it without adapters."""
    writes = "causal_lm" in model.capabilities
    return writes and model.base is None and model.draft_head() is not None


def _require_limits(
    models: Mapping[str, LoadedModel], token_budget: int, most_running: int, most_requests: int
) -> None:
    if not models:
        raise UsageError("an engine has one model at least")
    if most_running < 1 or most_requests < 1:
        raise UsageError(
            "an engine runs one text and takes one request at least, got"
            f" {most_running} and {most_requests}"
        )
    # Each running text takes a token per step, so at least half is left for prompts.
    if token_budget < 2 * most_running:
        raise UsageError(
            f"{most_running} texts at once leave too little for prompts in steps of"
            f" {token_budget} tokens",
            hint=f"raise the token budget to {2 * most_running}, or let fewer run at once",
        )


def _require_own(options: GenerationOptions) -> None:
    """Raise UsageError for options that do not belong to a request."""
    stated = {
        "use_cache": not options.use_cache,
        "prompt_cache": options.prompt_cache is not None,
        "cache_budget": options.cache_budget is not None,
        "cache_dtype": options.cache_dtype is not None,
        "prefill_chunk": options.prefill_chunk != PREFILL_CHUNK,
    }
    if options.beams is not None and options.beams > 1:
        raise UsageError(
            "an engine has no beams: its texts grow a token in each step",
            hint="leave `beams` out, or call `gptrs.generate`",
        )
    for name, is_stated in stated.items():
        if is_stated:
            raise UsageError(
                f"`{name}` is not an option of a request: all texts of an engine share its cache",
                hint="say it when the engine is made, as far as it has it",
            )
