"""A language model of NumPy whose logits tell which tokens it found in which pages."""

from __future__ import annotations

import numpy as np

from gptrs.ir import dtypes
from gptrs.nn import CacheSpec
from gptrs.nn.cache_spec import cache_groups
from gptrs.nn.greedy_steps import Chosen
from gptrs.nn.ragged_step import PAGE_SIZE
from gptrs_backend_ref.backend import RefBackend

VOCABULARY = 50


class FakeBuffers:
    """Pages of tokens, -1 where nothing was written."""

    def __init__(self, specs, pages):
        self.groups = cache_groups(specs)
        self.dtype = dtypes.f32
        self.usable = True
        self.pages = (0,) * len(pages)
        self.pools = [np.full((0, PAGE_SIZE), -1) for _ in pages]
        self.resize(pages)

    def page_bytes(self, group):
        return 1000

    def expect(self, pages):
        assert len(pages) == len(self.pages)

    def resize(self, pages):
        for number, count in enumerate(pages):
            assert count >= self.pages[number]
            more = np.full((count - self.pages[number], PAGE_SIZE), -1)
            self.pools[number] = np.concatenate([self.pools[number], more])
        self.pages = tuple(pages)

    def copy(self, group, source, target):
        self.pools[group][target] = self.pools[group][source]


class FakeLM:
    """Layers with these windows; `fails` may hold an error to raise in the middle of a step."""

    context_length = 200
    vocab_size = VOCABULARY

    def __init__(self, windows=(None,)):
        self.windows = windows
        self.steps = []
        self.greedy = []
        self.fails: BaseException | None = None
        self.loses_pages = False

    def cache_specs(self):
        return [CacheSpec(1, 1, window) for window in self.windows]

    def new_buffers(self, pages, dtype=dtypes.f32):
        return FakeBuffers(self.cache_specs(), pages)

    def forward(self, tokens):
        windows = [group.window for group in cache_groups(self.cache_specs())]
        return np.stack(
            [[_logits(_seen(row[: end + 1], windows)) for end in range(len(row))] for row in tokens]
        )

    def step(self, step, buffers):
        self.steps.append(step)
        rows = slice(0, step.row_starts[-1])
        for pool, slots in zip(buffers.pools, step.slots, strict=True):
            assert (slots[rows] >= PAGE_SIZE).all(), "page 0 belongs to no text"
            assert len(set(slots[rows].tolist())) == rows.stop
            assert not slots[rows.stop :].any()
            pool.reshape(-1)[slots[rows]] = step.tokens[rows]
            if self.fails is not None:
                error, self.fails = self.fails, None
                buffers.usable = not self.loses_pages
                raise error
        return np.stack([self._logits(step, buffers, text) for text in range(len(step.lengths))])

    repeats_steps = True

    def greedy_steps(self, steps, buffers):
        """Run one step after another, as a program would."""
        rows, ends, limit = steps
        self.greedy.append(steps)
        most, texts = rows.positions.shape
        chosen = Chosen(np.zeros((most, texts), np.int64), np.zeros((most, texts), np.float32))
        tokens, ended = rows.tokens, np.zeros(texts, bool)
        for number in range(limit):
            step = rows._replace(
                tokens=tokens,
                positions=rows.positions[number],
                lengths=rows.lengths[number],
                slots=tuple(slots[number] for slots in rows.slots),
            )
            logits = self._repeated(step, buffers)
            tokens = chosen.tokens[number] = logits.argmax(-1)
            chosen.logits[number] = logits.max(-1)
            ended |= (tokens[:, None] == ends).any(1)
            if ended.all():
                break
        return chosen

    def _repeated(self, step, buffers):
        """Run a step in which texts without room write to page 0."""
        for pool, slots in zip(buffers.pools, step.slots, strict=True):
            written = slots[slots >= PAGE_SIZE]
            assert len(set(written.tolist())) == len(written)
            pool.reshape(-1)[slots] = step.tokens
            if self.fails is not None:
                error, self.fails = self.fails, None
                buffers.usable = not self.loses_pages
                raise error
        return np.stack([self._logits(step, buffers, text) for text in range(len(step.lengths))])

    def _logits(self, step, buffers, text):
        length = int(step.lengths[text])
        seen = []
        for pool, table, group in zip(buffers.pools, step.page_tables, buffers.groups, strict=True):
            tokens = pool[table[text]].reshape(-1)
            first = 0 if group.window is None else max(0, length - group.window)
            seen.append(tokens[first:length])
        return _logits(seen)


def _seen(tokens, windows):
    """The tokens that the layers of each window see after `tokens`."""
    return [tokens if window is None else tokens[-window:] for window in windows]


def _logits(seen):
    """Logits that any other tokens would change."""
    words = np.concatenate([[len(tokens), *tokens] for tokens in seen]).astype(np.uint32)
    random = np.random.default_rng(words)
    return random.normal(0, 3, VOCABULARY).astype(np.float32)


class FakeBackend(RefBackend):
    """A backend that is never asked to compile."""

    name = "fake"


class PaddedBackend(FakeBackend):
    """One that wants powers of two."""

    def padded_size(self, size):
        return 1 << (size - 1).bit_length()


class LoopingBackend(PaddedBackend):
    """One that takes several steps in one run."""

    steps_at_once = 5


class FakeModel:
    """A loaded model as a generation sees it."""

    name = "fake"
    eos_tokens = frozenset({0})
    has_tokenizer = False
    load_seconds = 0.0
    capabilities = frozenset({"causal_lm"})
    base = adapter = streamer = None

    def __init__(self, windows=(None,), backend=None):
        self.generation_config = {}
        self.lm = FakeLM(windows)
        self.backend = backend or FakeBackend()

    def causal_lm(self):
        return self.lm

    token_reader = causal_lm
