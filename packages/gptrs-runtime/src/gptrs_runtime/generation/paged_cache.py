"""The KV cache of a model: the pool that assigns pages, and the buffers that hold them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from typing_extensions import override

from gptrs.backend.contract import Backend
from gptrs.capture.backend_calls import steps_at_once
from gptrs.errors import CacheBudgetError
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.greedy_steps import Chosen, greedy_steps
from gptrs.nn.layers import WATCHER
from gptrs.nn.page_buffers import PageBuffers
from gptrs.nn.ragged_step import PAGE_SIZE, RaggedStep, ragged_step
from gptrs.plugins.capabilities import CausalLM, ImageLM, RepeatingLM
from gptrs_runtime.generation.pages.page_pool import PageCopy, PagePool, TextPages
from gptrs_runtime.generation.step_times import StepShapes, group_layouts
from gptrs_runtime.generation.text_cache import GreedyRow, Placed, Row, RowStates, TextCache
from gptrs_runtime.images.image_prompts import has_pictures, seen
from gptrs_runtime.loaded_model import LoadedModel

if TYPE_CHECKING:
    from gptrs.nn.causal_lm import CausalLMModule, Layers
    from gptrs.nn.draft_head import DraftHead

STATES: Final = 8
"""States of a page for texts with guesses: those after one token and up to 7 guessed ones."""
RunsStep = Callable[[RaggedStep, PageBuffers], np.ndarray]
"""Runs a step on the pages of a cache; returns its logits."""

LONG: Final = 1 << 32
"""Added to the family of a text longer than its model's short context."""


class PagedCache(TextCache):
    """The pages of all texts of `lm`, which share common prefixes; a `TextCache`.

    `budget` is in bytes, None for the default of `group_layouts`; `steps_at_once` is how many
    greedy steps form one run, for models that support it, after `single_steps` single ones. Layers
    with states keep `states` of a page, so that as many tokens less one can be guessed. Texts
    are lost (`TextPages.lost`; admit them again) when an interrupt, or a fork while another thread
    changes pages, leaves them in an unknown state. Threads wait for each other.

    If the model has a `short_context`, a text that exceeds it is read again in one step, and shares
    pages only with other such texts.
    """

    chunked = True
    grows = True
    tells_states = True

    def __init__(
        self,
        lm: CausalLM,
        backend: Backend,
        dtype: DType,
        budget: int | None,
        *,
        steps_at_once: int = 1,
        single_steps: int = 0,
        states: int = 1,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.states = states
        self.buffers: PageBuffers = self._new_buffers(lm, dtype)
        groups = self.buffers.groups
        self._layouts = group_layouts(
            lm,
            groups,
            [self.buffers.page_bytes(number) for number in range(len(groups))],
            budget,
        )
        self._expect()
        self._lm = lm
        self._sees = hasattr(lm, "mixed_step")
        """Whether the model reads images."""
        self.short_context = cast("int | None", getattr(lm, "short_context", None))
        self._shapes = StepShapes(backend)
        self._steps_at_once = steps_at_once
        self._single_steps = single_steps
        """How many decode steps run singly before the first group."""
        if self.keeps_states:
            self.most_guessed = states - 1
        self.pool = self._new_pool()
        _every_cache.add(self)

    @property
    def keeps_states(self) -> bool:
        """Whether layers have states; a page has the last `states` of them."""
        return any(group.whole for group in self.buffers.groups)

    @override
    def require(self, positions: int, step: int) -> None:
        self.pool.limits(positions, self._longest(positions, step))

    @override
    def admit(
        self,
        tokens: Sequence[int],
        positions: int,
        step: int,
        source: Sequence[int] = (),
        family: int = 0,
    ) -> TextPages | None:
        """Admit a text without a source; cached pages of its prefix are reused."""
        with self._consistent():
            if self._is_long(len(tokens)):
                family |= LONG
            step = self._longest(positions, step)
            admitted = self.pool.admit(tokens, positions, step, family)
            if admitted is None:
                return None
            text, copies = admitted
            self._copy(copies)
        return text

    @override
    def grow(self, text: TextPages, positions: int, step: int) -> bool:
        """Let a text grow to `positions`; return False, changing nothing, if there is no room."""
        with self._consistent():
            return self.pool.grow(text, positions, self._longest(positions, step))

    @override
    def run(self, rows: Sequence[Row]) -> np.ndarray:
        """Append tokens to texts; return logits f32 [R, V] after the last one and after each
        guessed token."""
        with self._reading(rows) as (rows, step):
            logits = self._method(rows, step)(step, self.buffers)
        return logits[: _scored(rows)]

    @override
    def run_placed(self, rows: Sequence[Row]) -> Placed:
        with self._reading(rows) as (rows, step):
            places = [(row.text.length, len(row.tokens)) for row in rows]
            logits = self._method(rows, step)(step, self.buffers)
        return Placed(logits[: _scored(rows)], len(step.tokens), places)

    @override
    def run_stated(
        self, rows: Sequence[Row], wanted: tuple[Layers, ...]
    ) -> tuple[np.ndarray, list[RowStates]]:
        lm = cast("CausalLMModule", self._lm)
        found: list[RowStates] = []
        with self._reading(rows) as (rows, step):
            logits, states = lm.stated_step(step, self.buffers, wanted)
            counts = [len(row.tokens) + len(row.guess) for row in rows]
            for row, end, count in zip(rows, accumulate(counts), counts, strict=True):
                parts = [each[end - count : end] for each in states]
                found.append(RowStates(row.text.length, parts))
        return logits[: _scored(rows)], found

    @contextmanager
    def _reading(self, rows: Sequence[Row]) -> Generator[tuple[Sequence[Row], RaggedStep]]:
        """Scope in which the model reads the tokens of rows; yields the rows, whole, and their
        step."""
        with self._lock:
            with self._consistent():
                if self.short_context is not None:
                    rows = [self._whole(row) for row in rows]
                for text, tokens, guess, after, _ in rows:
                    self._copy(self.pool.extend(text, len(tokens) + after + len(guess)))
                step = self._shapes.padded(_step(rows))
            with self._changing():
                # Committed only after a complete run: pages of a failed step hold arbitrary keys
                # and values, and the index must not offer them.
                yield rows, step
            with self._consistent():
                for row in rows:
                    self.pool.commit(row.text, row.tokens)
            self._single_steps -= all([len(row.tokens) == 1 for row in rows])

    def _method(self, rows: Sequence[Row], step: RaggedStep) -> RunsStep:
        """Return how the model runs the step of rows: only models that read images get pictures."""
        return self._mixed_step if self._sees and has_pictures(step.tokens) else self._lm.step

    @property
    @override
    def steps_at_once(self) -> int:
        """Most steps of `run_greedy`; 1 with states, which cannot roll back tokens after an end."""
        if self._single_steps > 0:
            return 1
        can = cast("bool", getattr(self._lm, "repeats_steps", False)) and not self.keeps_states
        return self._steps_at_once if can else 1

    @override
    def run_greedy(self, rows: Sequence[GreedyRow], count: int) -> Chosen:
        """Append a token to each text, then its likeliest successor `count` times; return the
        latter."""
        lm = cast("RepeatingLM", self._lm)
        rooms = [min(row.room, count) for row in rows]
        with self._lock:
            with self._consistent():
                for row, room in zip(rows, rooms, strict=True):
                    self._copy(self.pool.extend(row.text, room))
                step = self._shapes.padded(_step([Row(row.text, [row.token]) for row in rows]))
            ends = [row.ends for row in rows]
            steps = greedy_steps(step, rooms, ends, count, self._steps_at_once)
            with self._changing():
                chosen = lm.greedy_steps(steps, self.buffers)
            with self._consistent():
                for row in rows:
                    self.pool.commit(row.text, [row.token])
        return Chosen(chosen.tokens[:count, : len(rows)], chosen.logits[:count, : len(rows)])

    @override
    def keep(self, text: TextPages, tokens: Sequence[int]) -> None:
        """Append the accepted tokens of a guess that the last step has read."""
        if tokens:
            with self._consistent():
                self.pool.commit(text, tokens)

    def _is_long(self, length: int) -> bool:
        """Return whether a text of `length` tokens has the keys and values of a long text."""
        return self.short_context is not None and length > self.short_context

    def _longest(self, positions: int, step: int) -> int:
        """Return the most tokens per step of a text of `positions`."""
        short = self.short_context
        return step if short is None or positions <= short else max(step, short + 1)

    def _whole(self, row: Row) -> Row:
        """Return the row extended to all tokens of its text if its pages are unusable."""
        text, is_long = row.text, self._is_long(row.text.length + len(row.tokens))
        if not row.tokens or is_long == bool(text.family & LONG):
            return row
        known = list(text.tokens)
        if known:
            self._copy(self.pool.rewind(text, 0))
        text.family ^= LONG
        return row._replace(tokens=[*known, *row.tokens])

    def _mixed_step(self, step: RaggedStep, buffers: PageBuffers) -> np.ndarray:
        lm = cast("ImageLM", self._lm)
        tokens, vectors, given = seen(lm, step.tokens)
        return lm.mixed_step(step._replace(tokens=tokens), vectors, given, buffers)

    @override
    def fork(self, text: TextPages) -> TextPages | None:
        """Return another text that shares the same pages."""
        with self._consistent():
            return self.pool.fork(text)

    @override
    def rewind(self, text: TextPages, length: int) -> None:
        """Truncate to the first `length` tokens, or to none if a window has released their
        pages."""
        with self._consistent():
            self._copy(self.pool.rewind(text, length))

    @override
    def release(self, text: TextPages) -> None:
        """Release the pages of a text; other texts can find them until they are evicted."""
        with self._consistent():
            if not text.lost:
                self.pool.release(text)

    @property
    def context_length(self) -> int:
        """Most positions of a text."""
        return self._lm.context_length

    def kept_pages(self, group: int, length: int) -> int:
        """Return how many pages of a group a text of `length` positions still needs."""
        return -(-length // PAGE_SIZE) - self._layouts[group].first_seen(length, PAGE_SIZE)

    def page_types(self, group: int) -> list[TensorType]:
        """Return the types of a page of a group, [1, K, S, D]: keys and values in turn."""
        return [TensorType.of(part) for part in self.buffers.read(group, 0)]

    def read_pages(self, text: TextPages) -> list[list[np.ndarray]]:
        """Return the contents of a text's pages for each group: keys and values of its layers.

        Arrays are [n, K, S, D], for the last n pages, which the next position sees.
        """
        found: list[list[np.ndarray]] = []
        with self._lock:
            for number, table in enumerate(text.tables):
                ends = [min(text.length, PAGE_SIZE * (n + 1)) for n in range(len(table))]
                pages = [
                    self.buffers.read(number, page, end - 1)
                    for page, end in zip(table, ends, strict=True)
                    if page
                ]
                found.append([np.concatenate(parts) for parts in zip(*pages, strict=True)])
        return found

    def add_pages(self, tokens: Sequence[int], groups: Sequence[Sequence[np.ndarray]]) -> None:
        """Add external pages, as returned by `read_pages`, to the cache if there is room."""
        pages = -(-len(tokens) // PAGE_SIZE)
        with self._consistent():
            family = LONG if self._is_long(len(tokens)) else 0
            text = self.pool.restore(tokens, [pages - len(parts[0]) for parts in groups], family)
            if text is None:
                return
            self._resize()
            for number, parts in enumerate(groups):
                for index, page in enumerate(page for page in text.tables[number] if page):
                    self.buffers.write(number, page, [part[index : index + 1] for part in parts])
            # Commit, then release: the pages stay cached for the next prompt.
            self.pool.commit(text, tokens)
            self.pool.release(text)

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        self._resize()
        for number, source, target in copies:
            self.buffers.copy(number, source, target)

    def _resize(self) -> None:
        if self.buffers.pages != self.pool.counts:
            self.buffers.resize(self.pool.counts)

    @contextmanager
    def _consistent(self) -> Generator[None]:
        """Scope that excludes other threads, and resets the cache if an interrupt leaves it
        inconsistent."""
        with self._lock:
            try:
                yield
            except CacheBudgetError:  # raised before any change
                raise
            except BaseException:
                self._reset()
                raise

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Scope of a model run: reset the cache if it fails after changing state that cannot be
        recomputed."""
        try:
            self._resize()
            yield
        except BaseException:
            # A repeated step would start from states that it already changed.
            if self.keeps_states or not self.buffers.usable:
                self._reset()
            raise

    def after_fork(self) -> None:
        """Reset the cache in a child if another thread was changing it during the fork."""
        # The child has only the forking thread. A free lock means that no thread was changing the
        # cache; a held lock may belong to a thread that the child lacks.
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return
        self._lock = threading.RLock()
        self._reset()

    def _reset(self) -> None:
        self.pool.abandon()
        self.pool, self.buffers = self._new_pool(), self._new_buffers(self._lm, self.dtype)
        self._expect()

    def _expect(self) -> None:
        self.buffers.expect([layout.most_pages + 1 for layout in self._layouts])

    def _new_pool(self) -> PagePool:
        return PagePool(self._layouts, PAGE_SIZE)

    def _new_buffers(self, lm: CausalLM, dtype: DType) -> PageBuffers:
        specs = lm.cache_specs()
        pages = [1] * len({spec.window for spec in specs})
        # A model without states need not know of the argument.
        if self.states > 1 and any(spec.per_page for spec in specs):
            return lm.new_buffers(pages, dtype, self.states)
        return lm.new_buffers(pages, dtype)


_caches: WeakKeyDictionary[LoadedModel, tuple[object, PagedCache]] = WeakKeyDictionary()
_caches_lock = ForkSafeLock()
_every_cache: WeakSet[PagedCache] = WeakSet()


def _after_fork() -> None:
    for cache in list(_every_cache):
        cache.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def paged_cache(
    model: LoadedModel, dtype: DType, budget: int | None, states: int = 1
) -> PagedCache:
    """Return the cache shared by all generations of `model` with the same settings.

    It keeps at least `states` states of a page, for models with states.

    While something watches the modules, it is a cache of its own: a hook may change keys and values
    that others would find by their prefix, and it reads every token.
    """
    if WATCHER.get() is not None:
        return own_cache(model, dtype, budget, states)
    asked = (dtype, budget)
    with _caches_lock:
        known = _caches.get(model)
        # Models without states use one cache whether or not tokens are guessed.
        if known is None or known[0] != asked or known[1].most_guessed < states - 1:
            known = (asked, own_cache(model, dtype, budget, states))
            _caches[model] = known
    return known[1]


class HeadCache(PagedCache):
    """The key/value cache of a draft head, whose rows have guides."""

    def __init__(self, head: DraftHead, backend: Backend, dtype: DType) -> None:
        super().__init__(cast("CausalLM", head), backend, dtype, None)
        self.head = head

    def run_guided(self, rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
        """Append tokens to texts; return the logits f32 [R, V] and guides f32 [R, C] after each
        row, as `run` orders them."""
        with self._reading(rows) as (rows, step):
            given = [row.guides for row in rows if row.guides is not None]
            guides = np.zeros((len(step.tokens), given[0].shape[1]), np.float32)
            np.concatenate(given, out=guides[: sum(map(len, given))])
            logits, own = self.head.guided_step(step, guides, self.buffers)
        count = _scored(rows)
        return logits[:count], own[:count]


_heads: WeakKeyDictionary[LoadedModel, tuple[DraftHead, DType, HeadCache]] = WeakKeyDictionary()


def head_cache(owner: LoadedModel, head: DraftHead, dtype: DType) -> HeadCache:
    """Return the cache that all generations with the draft head `head`, of `owner`, share."""
    with _caches_lock:
        known = _heads.get(owner)
        if known is None or known[0] is not head or known[1] is not dtype:
            known = head, dtype, HeadCache(head, owner.backend, dtype)
            _heads[owner] = known
    return known[2]


def own_cache(model: LoadedModel, dtype: DType, budget: int | None, states: int = 1) -> PagedCache:
    """Return a new cache for texts that share no keys and values with others of `model`."""
    # A loop of several steps would need all weights at once.
    steps = 1 if model.streamer is not None else steps_at_once(model.backend)
    return PagedCache(
        model.causal_lm(),
        model.backend,
        dtype,
        budget,
        steps_at_once=steps,
        single_steps=model.backend.single_steps_first,
        states=states,
    )


def _step(rows: Sequence[Row]) -> RaggedStep:
    """Return the step of rows: each guessed token is a separate text on the same pages.

    A step writes all keys and values of a layer before reading any, so a token sees earlier ones,
    and its logits equal those of a step with only this token, independent of the guesses.
    """
    parts: list[tuple[TextPages, Sequence[int], int]] = []
    for text, tokens, guess, after, _ in rows:
        if tokens:
            parts.append((text, tokens, text.length))
        first = text.length + len(tokens) + after
        parts += [(text, (token,), first + offset) for offset, token in enumerate(guess)]
    return ragged_step(
        [np.array(tokens, np.int64) for _, tokens, _ in parts],
        [start for _, _, start in parts],
        [
            _tables([text.tables[number] for text, _, _ in parts])
            for number in range(len(rows[0].text.tables))
        ],
    )


def _scored(rows: Sequence[Row]) -> int:
    """Return how many of the logits of a step are of rows: the others are padding."""
    return sum([bool(row.tokens) + len(row.guess) for row in rows])


def _tables(tables: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the pages of texts, si32 [B, W]."""
    made = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(made, tables, strict=True):
        row[: len(table)] = table
    return made
