"""Checks of models that write texts from a source: encoder-decoders of texts and of sounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.capture.execute import use_backend
from gptrs.errors import ContextLengthError
from gptrs.nn.decoder_cache import DecoderState
from gptrs.plugins.capabilities import Seq2SeqLM, SoundTranscriber, Transcriber, capabilities_of
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.plugin_kits.encoders import sounds_for
from gptrs_conformance.plugin_kits.model_subject import Model, ReadsTokens, tokens_of
from gptrs_conformance.plugin_kits.subject import KitCheck, absent, require_close, require_error

_SOURCES = 3
_WRITTEN = 21
"""Tokens of a written text: more than one power of two of positions."""


class _Writes(ReadsTokens, Protocol):
    def write(self, tokens: np.ndarray, state: DecoderState) -> np.ndarray:
        """Append tokens to texts."""
        ...


class _Writer(Struct, frozen=True):
    """A model that writes, and how it reads three sources of the kit."""

    model: _Writes
    read: Callable[[Sequence[int]], DecoderState]
    """Reads sources, by number, as one batch."""
    other_padding: Callable[[Sequence[int]], DecoderState] | None = None
    """The same with other padding, which must not matter."""

    def texts(self, count: int = _SOURCES) -> np.ndarray:
        """Return tokens to write."""
        return tokens_of(self.model, count, seed=5, most=_WRITTEN)


def _writer(subject: Model, backend: Backend) -> _Writer:
    made = subject.made(backend)
    claimed = capabilities_of(made)
    if "seq2seq" in claimed:
        return _of_texts(cast("Seq2SeqLM", made))
    if "transcriber" in claimed:
        model = cast("Transcriber", made)
        shape = (_SOURCES, model.mel_bins, model.frames)
        features = np.random.default_rng(6).normal(size=shape).astype(np.float32)
        return _Writer(model, lambda rows: model.hear(features[list(rows)]))
    if "sound_transcriber" in claimed:
        return _of_sounds(cast("SoundTranscriber", made))
    raise absent("it writes no texts from a source")


def _of_texts(model: Seq2SeqLM) -> _Writer:
    length = min(_WRITTEN, model.source_length)
    # At least one token, and three different lengths where the model allows it.
    lengths = [length, max(length // 2, 1), max(length // 4, 1)]
    tokens = np.random.default_rng(7).integers(0, model.vocab_size, (_SOURCES, length))
    mask = np.arange(length) < np.array(lengths)[:, None]
    other = np.where(mask, tokens, (tokens + 1) % model.vocab_size)

    def reading(given: np.ndarray) -> Callable[[Sequence[int]], DecoderState]:
        def read(rows: Sequence[int]) -> DecoderState:
            longest = max(lengths[row] for row in rows)
            return model.read_sources(given[list(rows), :longest], mask[list(rows), :longest])

        return read

    return _Writer(model, reading(tokens), reading(other))


def _of_sounds(model: SoundTranscriber) -> _Writer:
    sounds, lengths = sounds_for(model.frame_count)
    other = sounds.copy()
    for row, length in enumerate(lengths):
        other[row, length:] = 1

    def reading(given: np.ndarray) -> Callable[[Sequence[int]], DecoderState]:
        def read(rows: Sequence[int]) -> DecoderState:
            chosen = [lengths[row] for row in rows]
            return model.hear_sounds(given[list(rows), : max(chosen)], chosen)

        return read

    return _Writer(model, reading(sounds), reading(other))


def a_written_text_in_steps_is_the_whole(subject: Model, backend: Backend) -> None:
    """Logits of a text written token by token, or in two parts, are those of the whole."""
    with use_backend(backend):
        writer = _writer(subject, backend)
        tokens = writer.texts(1)
        whole = writer.model.write(tokens, writer.read([0]))
        wanted = (*tokens.shape, writer.model.vocab_size)
        if whole.dtype != np.float32 or whole.shape != wanted:
            raise CheckFailure(
                f"logits are {whole.dtype}{list(whole.shape)}, not f32{list(wanted)}"
            )
        if not np.isfinite(whole).all():
            raise CheckFailure("logits are not finite")
        length = tokens.shape[1]
        for cut in sorted({1, max(length // 2, 1)}):
            state, at = writer.read([0]), 0
            for size in (cut, *[1] * (length - cut)):
                found = writer.model.write(tokens[:, at : at + size], state)
                what = f"after {cut} tokens and one by one to {at + size}:"
                require_close(found[0], whole[0, at : at + size], what)
                at += size


def later_written_tokens_change_nothing_before(subject: Model, backend: Backend) -> None:
    """Logits of a written text do not depend on the tokens after them."""
    with use_backend(backend):
        writer = _writer(subject, backend)
        tokens = writer.texts(1)
        cut = tokens.shape[1] // 2
        other = tokens.copy()
        other[:, cut:] = (other[:, cut:] + 1) % writer.model.vocab_size
        first, second = (writer.model.write(each, writer.read([0])) for each in (tokens, other))
        require_close(second[0, :cut], first[0, :cut], f"with other tokens from {cut} on, it")


def sources_in_company_are_as_alone(subject: Model, backend: Backend) -> None:
    """Texts of three sources of unequal lengths, in one batch, have the logits of each alone."""
    with use_backend(backend):
        writer = _writer(subject, backend)
        tokens, rows = writer.texts(), range(_SOURCES)
        batch = writer.model.write(tokens, writer.read(rows))
        for row in rows:
            alone = writer.model.write(tokens[row : row + 1], writer.read([row]))
            require_close(batch[row], alone[0], f"source {row} of three:")
        if writer.other_padding is not None:
            found = writer.model.write(tokens, writer.other_padding(rows))
            require_close(found, batch, "with other padding of the sources, it")


def kept_texts_go_on(subject: Model, backend: Backend) -> None:
    """Texts that are repeated, dropped and reordered between steps, as beams are, go on."""
    with use_backend(backend):
        writer = _writer(subject, backend)
        tokens = writer.texts()
        cut = tokens.shape[1] // 2
        if not cut:
            raise absent("its context has one token")
        whole = writer.model.write(tokens, writer.read(range(_SOURCES)))
        state = writer.read(range(_SOURCES))
        writer.model.write(tokens[:, :cut], state)
        kept = [2, 0, 0]
        state.keep(kept)
        found = writer.model.write(tokens[kept, cut:], state)
        for row, source in enumerate(kept):
            require_close(found[row], whole[source, cut:], f"text {source}, kept as text {row}:")


def sources_of_several_texts_stay_apart(subject: Model, backend: Backend) -> None:
    """A text is not changed by one that is read and written between its steps."""
    with use_backend(backend):
        writer = _writer(subject, backend)
        tokens = writer.texts()
        cut = max(tokens.shape[1] // 2, 1)
        wanted = writer.model.write(tokens[:1], writer.read([0]))
        state = writer.read([0])
        writer.model.write(tokens[:1, :cut], state)
        writer.model.write(tokens[1:2], writer.read([1]))
        if cut < tokens.shape[1]:
            found = writer.model.write(tokens[:1, cut:], state)
            require_close(found[0], wanted[0, cut:], "after another text between its steps, it")
        again = writer.model.write(tokens[:1], writer.read([0]))
        if again.tobytes() != wanted.tobytes():
            raise CheckFailure("a text gives other logits after another text")


def refuses_texts_that_are_too_long(subject: Model, backend: Backend) -> None:
    """ContextLengthError for one token more than the context, and for a longer source."""
    with use_backend(backend):
        writer = _writer(subject, backend)
        limit = writer.model.context_length
        tokens = tokens_of(writer.model, 1, most=limit)
        longer = np.concatenate([tokens, tokens[:, :1]], axis=1)
        kinds = (ContextLengthError,)
        if limit > _LONGEST_FILLED:
            raise absent(f"its context of {limit} tokens is too long to fill here")
        require_error(
            lambda: writer.model.write(longer, writer.read([0])), f"{limit + 1} tokens", kinds
        )
        state = writer.read([0])
        writer.model.write(tokens[:, : limit - 1], state)
        require_error(
            lambda: writer.model.write(tokens[:, :2], state), "two tokens at the last one", kinds
        )
        if "seq2seq" in capabilities_of(writer.model):
            model = cast("Seq2SeqLM", writer.model)
            if model.source_length <= _LONGEST_FILLED:
                source = np.zeros((1, model.source_length + 1), np.int64)
                require_error(
                    lambda: model.read_sources(source, np.ones_like(source, bool)),
                    f"a source of {source.shape[1]} tokens",
                    kinds,
                )


_LONGEST_FILLED = 4096
"""Tokens of a context that is filled; models without a limit name a large number."""

CHECKS: Sequence[KitCheck[Model]] = (
    a_written_text_in_steps_is_the_whole,
    later_written_tokens_change_nothing_before,
    sources_in_company_are_as_alone,
    kept_texts_go_on,
    sources_of_several_texts_stay_apart,
    refuses_texts_that_are_too_long,
)
"""The checks of models that write texts from a source."""
