"""Checks of models that read whole texts, sounds and images: company and padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.capture.execute import use_backend
from gptrs.plugins.capabilities import (
    CTCModel,
    ImageClassifier,
    ImageEmbedder,
    MaskedLM,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
    capabilities_of,
)
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.plugin_kits.model_subject import Model, ReadsTokens, able, tokens_of
from gptrs_conformance.plugin_kits.subject import KitCheck, absent, require_close

_EDGE = 64
"""Pixels of the edge of an image, where config.json states none."""
_LONGEST = 1 << 24
"""Samples of a sound, which should have a frame long before."""


def _encoders(
    made: object, capabilities: frozenset[str]
) -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Return what the model computes of tokens and a mask, by capability."""
    found: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {}
    if "text_embedder" in capabilities:
        found["text_embedder"] = cast("TextEmbedder", made).encode
    if "token_classifier" in capabilities:
        found["token_classifier"] = cast("TokenClassifier", made).classify_tokens
    if "text_classifier" in capabilities:
        classify = cast("TextClassifier", made).classify_texts
        found["text_classifier"] = lambda ids, mask: classify(ids, np.zeros_like(ids), mask)
    return found


def padding_changes_nothing(subject: Model, backend: Backend) -> None:
    """Vectors of a text encoder: in company, and with other tokens as padding."""
    with use_backend(backend):
        made = subject.made(backend)
        runs = _encoders(made, capabilities_of(made))
        if not runs:
            raise absent("it is not an encoder of texts")
        model = cast("ReadsTokens", made)
        rows = tokens_of(model, 2)
        length = rows.shape[1]
        short = max(length // 3, 1)
        mask = np.ones((2, length), bool)
        mask[0, short:] = False
        other = rows.copy()
        other[0, short:] = (other[0, short:] + 1) % model.vocab_size
        for name, run in runs.items():
            found, changed = run(rows, mask), run(other, mask)
            alone = run(rows[:1, :short], np.ones((1, short), bool))
            end = None if name == "text_classifier" else short
            require_close(found[0][:end], alone[0][:end], f"`{name}`: a padded text")
            require_close(changed[0][:end], alone[0][:end], f"`{name}`: other padding")


def masked_tokens_are_each_alone(subject: Model, backend: Backend) -> None:
    """Predictions at some positions, in any order, are those at all positions."""
    with use_backend(backend):
        model = able(subject, backend, "masked_lm", MaskedLM)
        rows = tokens_of(model, 2)
        length = rows.shape[1]
        short = max(length // 2, 1)
        mask = np.ones((2, length), bool)
        mask[1, short:] = False
        # Of the second text without its padding, whose predictions mean nothing.
        known: np.ndarray = np.flatnonzero(mask)
        whole = model.predict_tokens(rows, mask, known)
        _require_scores(whole, (len(known), model.vocab_size), "predictions")
        chosen = [len(known) - 1, 0, len(known) // 2, 0]
        found = model.predict_tokens(rows, mask, known.take(chosen))
        require_close(found, whole[chosen], "predictions at some positions")
        for row, end, wanted in ((0, length, whole[:length]), (1, short, whole[length:])):
            cut = rows[row : row + 1, :end], mask[row : row + 1, :end]
            alone = model.predict_tokens(*cut, np.array(range(end)))
            require_close(wanted, alone, f"predictions of text {row} in company")


def sounds_in_company_are_as_alone(subject: Model, backend: Backend) -> None:
    """Frames of a sound do not depend on other sounds, nor on what pads it."""
    with use_backend(backend):
        model = able(subject, backend, "ctc", CTCModel)
        sounds, lengths = sounds_for(model.frame_count)
        batch = model.score_frames(sounds, lengths)
        frames = [model.frame_count(length) for length in lengths]
        if batch.shape[1] < max(frames):
            raise CheckFailure(f"{max(frames)} frames are counted, {batch.shape[1]} are scored")
        _require_scores(batch, (len(lengths), batch.shape[1], model.vocab_size), "scores of frames")
        other = sounds.copy()
        for row, length in enumerate(lengths):
            other[row, length:] = 1
        padded = model.score_frames(other, lengths)
        for row, (length, count) in enumerate(zip(lengths, frames, strict=True)):
            alone = model.score_frames(sounds[row : row + 1, :length], [length])[0, :count]
            require_close(batch[row, :count], alone, f"sound {row} in company:")
            require_close(padded[row, :count], alone, f"sound {row} with other padding:")


def sounds_for(frame_count: Callable[[int], int]) -> tuple[np.ndarray, list[int]]:
    """Return sounds f32 [3, N] for `frame_count`, and their lengths: of 8 frames, of 3, of 1."""
    if frame_count(0) != 0:
        raise CheckFailure(f"a sound of no samples has {frame_count(0)} frames, expected 0")
    lengths: list[int] = []
    for frames in (8, 3, 1):
        low, high = 0, 1
        while frame_count(high) < frames:
            low, high = high, 2 * high
            if high > _LONGEST:
                raise CheckFailure(f"{low} samples have fewer than {frames} frames")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if frame_count(middle) >= frames else (middle, high)
        lengths.append(high)
    return np.random.default_rng(4).normal(size=(3, lengths[0])).astype(np.float32), lengths


def _require_scores(found: np.ndarray, shape: tuple[int, ...], what: str) -> None:
    if found.dtype != np.float32 or found.shape != shape:
        raise CheckFailure(f"{what} are {found.dtype}{list(found.shape)}, not f32{list(shape)}")
    if not np.isfinite(found).all():
        raise CheckFailure(f"{what} are not finite")


def images_in_company_are_as_alone(subject: Model, backend: Backend) -> None:
    """Scores and vectors of images do not depend on the batch."""
    with use_backend(backend):
        made = subject.made(backend)
        runs: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
        if "image_classifier" in capabilities_of(made):
            runs["image_classifier"] = cast("ImageClassifier", made).classify
        if "image_embedder" in capabilities_of(made):
            runs["image_embedder"] = cast("ImageEmbedder", made).embed_images
        if not runs:
            raise absent("it reads no images")
        stated = subject.settings.get("image_size")
        edge = stated if isinstance(stated, int) else _EDGE
        shape = (3, cast("ImageClassifier", made).channels, edge, edge)
        images = np.random.default_rng(2).normal(size=shape).astype(np.float32)
        for name, run in runs.items():
            batch = run(images)
            for row in range(3):
                alone = run(images[row : row + 1])
                require_close(batch[row], alone[0], f"`{name}`: image {row} of three:")


CHECKS: Sequence[KitCheck[Model]] = (
    padding_changes_nothing,
    masked_tokens_are_each_alone,
    sounds_in_company_are_as_alone,
    images_in_company_are_as_alone,
)
"""The checks of models that read texts, sounds and images whole."""
