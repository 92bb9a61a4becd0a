"""Small models that read texts and sounds and write texts, in NumPy, with one fault each."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from gptrs.api import ContextLengthError

VOCABULARY, WIDTH, CONTEXT, SOURCE = 13, 6, 24, 16
_RANDOM = np.random.default_rng(0)
TABLE = _RANDOM.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
HEAD = _RANDOM.normal(size=(WIDTH, VOCABULARY)).astype(np.float32)


class State(SimpleNamespace):
    """A vector of each source, and the sum of the vectors of each text."""

    def keep(self, rows):
        """Continue with these rows."""
        self.source, self.sums = self.source[list(rows)], self.sums[list(rows)]


class Writer:
    """Logits of a source and the tokens so far: an encoder-decoder without attention."""

    capabilities = frozenset({"seq2seq"})
    vocab_size, context_length, source_length = VOCABULARY, CONTEXT, SOURCE

    def read_sources(self, tokens, mask):
        """The mean of the vectors of the tokens that count."""
        if tokens.shape[1] > self.source_length:
            raise ContextLengthError("the source is too long")
        return self.begin(self.pooled(TABLE[tokens], mask[..., None]))

    def pooled(self, x, mask):
        return (x * mask).sum(1) / mask.sum(1)

    def begin(self, source):
        return State(source=source, sums=np.zeros_like(source), length=0)

    def write(self, tokens, state):
        """Add tokens to the sums."""
        self.require(state.length + tokens.shape[1])
        sums = state.sums[:, None] + self.running(TABLE[tokens])
        state.length += tokens.shape[1]
        state.sums = sums[:, -1]
        return self.logits(sums, state).astype(np.float32)

    def running(self, x):
        return np.cumsum(x, axis=1)

    def require(self, length):
        if length > self.context_length:
            raise ContextLengthError("the text is too long")

    def logits(self, sums, state):
        return (np.tanh(sums) + state.source[:, None]) @ HEAD


class Hearing(Writer):
    """The same of windows of sound."""

    capabilities = frozenset({"transcriber"})
    mel_bins, frames = WIDTH, 5

    def hear(self, features):
        """The mean over time."""
        return self.begin(features.mean(2))


class Sounds:
    """Logits of the frames of a sound, each of four samples."""

    capabilities = frozenset({"ctc"})
    vocab_size, frame_samples = VOCABULARY, 4

    def frame_count(self, samples):
        return samples // 4

    def score_frames(self, samples, lengths):
        frames = samples[:, : samples.shape[1] // 4 * 4].reshape(len(samples), -1, 4)
        return self.scores(frames, lengths).astype(np.float32)

    def scores(self, frames, lengths):
        return frames @ TABLE[:4, :1] * HEAD[0]


class Masked:
    """Logits at positions, of the mean of a text and the token there."""

    capabilities = frozenset({"masked_lm"})
    vocab_size, context_length = VOCABULARY, CONTEXT

    def predict_tokens(self, tokens, mask, positions):
        x = TABLE[tokens]
        x = np.tanh(x + self.mean(x, mask[..., None]))
        found = self.at(x.reshape(-1, WIDTH), positions) @ HEAD
        return found.astype(np.float32)

    def mean(self, x, mask):
        return (x * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True)

    def at(self, rows, positions):
        return rows[positions]


SOUND = (Writer, Hearing, Sounds, Masked)


def _last_write_again(self, tokens, state):
    """The first token of a step is read as if the text began with it."""
    self.require(state.length + tokens.shape[1])
    state.length += tokens.shape[1]
    sums = self.running(TABLE[tokens])
    state.sums = sums[:, -1]
    return self.logits(sums, state).astype(np.float32)


def _one_state(self, source):
    """All texts of the model share their sums."""
    made = Writer.begin(self, source)
    kept = self.__dict__.setdefault("kept", made)
    kept.source, kept.length = source, 0
    if kept.sums.shape != source.shape:
        kept.sums = made.sums
    return kept


def _drifts(self, sums, state):
    self.calls = getattr(self, "calls", 0) + 1
    return Writer.logits(self, sums, state) + self.calls * 1e-3


def _ignores_keep(self, source):
    state = Writer.begin(self, source)
    state.keep = lambda rows: None
    return state


def _drops_sums(self, source):
    state = Writer.begin(self, source)

    def keep(rows):
        state.source = state.source[list(rows)]

    state.keep = keep
    return state


SOURCES = {
    "a written text in steps is the whole": {
        "begins anew": (Writer, {"write": _last_write_again}),
        "f16": (Writer, {
            "write": lambda self, *given: Writer.write(self, *given).astype(np.float16)}),
        "the last token alone": (Writer, {
            "write": lambda self, *given: Writer.write(self, *given)[:, -1:]}),
        "NaN": (Writer, {
            "logits": lambda self, sums, state: np.full((*sums.shape[:2], VOCABULARY), np.nan)}),
        "the mean of the step": (Hearing, {
            "running": lambda self, x: np.cumsum(x, 1) + x.mean(1, keepdims=True)}),
    },
    "later written tokens change nothing before": {
        "looks ahead": (Writer, {"running": lambda self, x: np.cumsum(x, 1) + x[:, -1:]}),
    },
    "sources in company are as alone": {
        "padding counts": (Writer, {"pooled": lambda self, x, mask: x.mean(1)}),
        "others count": (Writer, {
            "pooled": lambda self, x, mask: Writer.pooled(self, x, mask) + x.mean((0, 1)) * 0.1}),
        "the batch counts": (Hearing, {
            "hear": lambda self, f: self.begin(f.mean(2) * (1 + 0.01 * (len(f) - 1)))}),
    },
    "kept texts go on": {
        "ignores it": (Writer, {"begin": _ignores_keep}),
        "of the source alone": (Hearing, {"begin": _drops_sums}),
    },
    "sources of several texts stay apart": {
        "one state": (Writer, {"begin": _one_state}),
        "drifts": (Hearing, {"logits": _drifts}),
    },
    "refuses texts that are too long": {
        "no limit": (Writer, {"require": lambda self, length: None}),
        "one too many": (Hearing, {
            "require": lambda self, length: Writer.require(self, length - 1)}),
        "any source": (Writer, {
            "read_sources": lambda self, t, m: self.begin(self.pooled(TABLE[t], m[..., None]))}),
    },
    "sounds in company are as alone": {
        "padding counts": (Sounds, {
            "scores": lambda self, x, n: Sounds.scores(self, x, n) + x.mean((1, 2), keepdims=True)
        }),
        "the loudest counts": (Sounds, {
            "scores": lambda self, x, n: Sounds.scores(self, x / np.abs(x).max(), n)}),
        "a frame short": (Sounds, {
            "scores": lambda self, x, n: Sounds.scores(self, x, n)[:, :-1]}),
        "frames of no samples": (Sounds, {"frame_count": lambda self, n: n // 4 + 1}),
        "no frames": (Sounds, {"frame_count": lambda self, n: 0}),
        "classes missing": (Sounds, {
            "scores": lambda self, x, n: Sounds.scores(self, x, n)[..., 1:]}),
    },
    "masked tokens are each alone": {
        "padding counts": (Masked, {"mean": lambda self, x, mask: x.mean(1, keepdims=True)}),
        "in order": (Masked, {"at": lambda self, rows, p: rows[np.sort(p)]}),
        "once each": (Masked, {"at": lambda self, rows, p: rows[np.unique(p)]}),
        "of the first text": (Masked, {
            "at": lambda self, rows, p: rows[p % (len(rows) // 2 or 1)]}),
        "others count": (Masked, {
            "mean": lambda self, x, mask: Masked.mean(self, x, mask) + x.mean() * 0.1}),
    },
}  # fmt: skip
