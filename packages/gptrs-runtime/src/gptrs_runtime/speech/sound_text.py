"""Transcribe speech by models that hear raw sound and write: long ones in parts cut in silence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from gptrs.capture.shape_buckets import bucket
from gptrs.progress import SoundProgress
from gptrs_runtime.generation.logits_processors import ProcessorChain, built_in_processors
from gptrs_runtime.generation.model_settings import (
    configured_max_tokens,
    configured_sampling,
    configured_suppression,
    note_unsupported,
)
from gptrs_runtime.generation.sampling import Sampler
from gptrs_runtime.generation.source_settings import first_token
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Segment, Transcription
from gptrs_runtime.speech.frame_text import SoundForm, normalized, require_frames

PART_SECONDS: Final = 30.0
"""Seconds of the longest part."""
_EARLIEST: Final = 2 / 3
"""A part ends behind this share of it, where the sound is quietest."""
_QUIET_SECONDS: Final = 0.1
"""How long it is quiet there, at least."""


def transcribe_sounds(
    model: LoadedModel,
    samples: np.ndarray,
    form: SoundForm,
    *,
    timestamps: bool,
    progress: SoundProgress | None,
    part_seconds: float = PART_SECONDS,
) -> Transcription:
    """Return the text of samples f32 [N] at the rate of `form`, with a segment for each part.

    Without `timestamps` the whole is one segment. UsageError for a sound that is too short.
    """
    seconds = samples.size / form.rate
    require_frames(model, model.sound_transcriber().frame_count(samples.size), samples.size, form)
    note_unsupported(model.name, model.generation_config)
    segments: list[Segment] = []
    for start, end in quiet_parts(samples, form.rate, round(part_seconds * form.rate)):
        if progress is not None:
            progress(start / form.rate, seconds)
        tokens = _written(model, samples[start:end], form, len(segments))
        text = model.tokenizer.decode(tokens).strip() if model.has_tokenizer else ""
        first, last = (round(at / form.rate, 3) for at in (start, end))
        segments.append(Segment(first, last, text, tuple(tokens)))
    if progress is not None:
        progress(seconds, seconds)
    joined = " ".join(each.text for each in segments if each.text)
    if not timestamps:
        ids = tuple(token for each in segments for token in each.token_ids)
        segments = [Segment(0.0, round(seconds, 3), joined, ids)]
    return Transcription(joined, None, seconds, tuple(segments))


def quiet_parts(samples: np.ndarray, rate: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last places of parts of at most `most` samples, cut where it is quiet."""
    start, quiet = 0, max(1, round(_QUIET_SECONDS * rate))
    while samples.size - start > most:
        first = start + round(most * _EARLIEST)
        loud = np.square(samples[first : start + most].astype(np.float64))
        sums = np.concatenate([[0.0], np.cumsum(loud)])
        width = min(quiet, loud.size)
        place = int(np.argmin(sums[width:] - sums[:-width]))
        end = first + place + (width + 1) // 2
        yield start, end
        start = end
    yield start, samples.size


def _written(model: LoadedModel, samples: np.ndarray, form: SoundForm, stream: int) -> list[int]:
    """Return the tokens of one part, without the one that ends them."""
    hearer, settings = model.sound_transcriber(), model.generation_config
    if hearer.frame_count(samples.size) < 1:
        return []
    samples = normalized(samples) if form.normalizes else samples
    # Programs are compiled for a size: one serves all sounds of up to a second, two, four, ...
    room = bucket(samples.size, form.rate)
    state = hearer.hear_sounds(np.pad(samples, (0, room - samples.size))[None], [samples.size])
    given, tokens = [first_token(model)], list[int]()
    most = configured_max_tokens(settings, len(given)) or hearer.context_length
    most = min(most, hearer.context_length - len(given))
    sampling = configured_sampling(settings)
    ends, suppression = model.eos_tokens, configured_suppression(settings)
    sampler = Sampler(sampling, stream)
    chain = ProcessorChain(built_in_processors(sampling, suppression, ends, len(given)), given)
    last = given[0]
    while len(tokens) < most:
        logits = hearer.write(np.array([[last]]), state)[0, -1]
        last = sampler.choose(chain(logits.copy()))
        if last in ends:
            break
        tokens.append(last)
        chain.append(last)
    return tokens
