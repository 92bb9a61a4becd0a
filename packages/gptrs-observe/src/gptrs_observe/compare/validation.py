"""Compare a model with a reference implementation: outputs, greedy tokens, hidden states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from gptrs.errors import ModelError, UsageError
from gptrs.nn.page_buffers import PagedTexts
from gptrs.plugins.capabilities import CausalLM
from gptrs.plugins.references import Reference
from gptrs.quoting import listed
from gptrs_observe.compare.agreement import Agreement, agreement, least_cosine, share, top_agreement
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.model_inputs import Batch

MADE_UP_TOKENS: Final = 32
"""Tokens per random text, if no text is given."""


class ValidationOptions(Struct, frozen=True):
    """Options of a comparison: the tolerance is a share of the range of the numbers.

    Language models generate `max_tokens` greedy tokens, or up to the end of their context.
    """

    tolerance: float = 1e-4
    max_tokens: int = 32
    per_layer: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < math.inf:
            raise UsageError(f"a tolerance is a number >= 0, got {self.tolerance:g}")


class GreedyAgreement(Struct, frozen=True):
    """Of `count` greedy tokens, the first `equal` match the reference.

    `gap`: at the first difference, the logit of the reference's token minus that of our token,
    relative to the range of the logits; 0 if they agree.
    """

    count: int
    equal: int
    gap: float


class Validation(Struct, frozen=True):
    """The result of a comparison; fields that do not apply to the model are None or empty.

    `output` is of the logits, or of the vectors of a text embedder. `top1` and `top5` are shares of
    the best classes or tokens that both have in common, `cosine` is the least one of two vectors.
    """

    tolerance: float
    output: Agreement
    images: Agreement | None
    top1: float | None
    top5: float | None
    cosine: float | None
    greedy: GreedyAgreement | None
    layers: tuple[Agreement, ...]

    def holds(self, found: Agreement) -> bool:
        """Return whether all errors are within the tolerance."""
        return found.relative_max_error <= self.tolerance

    @property
    def greedy_holds(self) -> bool:
        """Whether the tokens are the same, or differ where two are equally good.

        The logits of both tokens may be off by the tolerance.
        """
        return self.greedy is None or self.greedy.gap <= 2 * self.tolerance

    @property
    def first_layer(self) -> Agreement | None:
        """The first hidden state beyond the tolerance."""
        return next((layer for layer in self.layers if not self.holds(layer)), None)

    @property
    def agrees(self) -> bool:
        """Whether everything is within the tolerance."""
        compared = [self.output, *self.layers, *([self.images] if self.images else [])]
        return self.greedy_holds and all(map(self.holds, compared))


def validate(
    model: LoadedModel, reference: Reference, batch: Batch, options: ValidationOptions
) -> Validation:
    """Run both on the same inputs, as the model prepares them, and compare.

    ModelError if the model cannot be compared, or the shapes of the results differ.
    """
    inputs = model.checked_inputs(batch.array)
    ours, theirs = _output(model, inputs), reference.output(inputs)
    embeds = not model.has_logits
    output = agreement("vectors" if embeds else "logits", ours, theirs)
    writes = "causal_lm" in model.capabilities
    return Validation(
        tolerance=options.tolerance,
        output=output,
        images=_images(reference, batch),
        top1=None if embeds else top_agreement(ours, theirs, 1),
        top5=None if embeds else top_agreement(ours, theirs, 5),
        cosine=least_cosine(ours, theirs) if embeds else None,
        greedy=_greedy(model.causal_lm(), reference, inputs[0], options) if writes else None,
        layers=_layers(model, reference, inputs) if options.per_layer else (),
    )


def _output(model: LoadedModel, inputs: np.ndarray) -> np.ndarray:
    if model.has_logits:
        return model.forward(inputs)
    return model.text_embedder().encode(inputs, np.ones(inputs.shape, bool))


def _images(reference: Reference, batch: Batch) -> Agreement | None:
    """Compare the pixels of image files with those of the reference's processor."""
    if not batch.images:
        return None
    theirs = np.stack([reference.image(path) for path in batch.images.values()])
    return agreement("images", batch.array[[*batch.images]], theirs)


def _layers(model: LoadedModel, reference: Reference, inputs: np.ndarray) -> tuple[Agreement, ...]:
    ours, theirs = model.hidden_states(inputs), reference.hidden_states(inputs)
    if len(ours) != len(theirs):
        raise ModelError(
            f"the hidden states cannot be compared: `{model.name}` has {len(ours)} of them here,"
            f" {len(theirs)} in the reference"
        )
    pairs = zip(ours.items(), theirs, strict=True)
    return tuple(agreement(name, state, other) for (name, state), other in pairs)


def _greedy(
    lm: CausalLM, reference: Reference, prompt: np.ndarray, options: ValidationOptions
) -> GreedyAgreement | None:
    count = min(options.max_tokens, lm.context_length - len(prompt))
    if count < 1:
        return None
    logits = reference.greedy(prompt, count)
    theirs = logits.argmax(axis=-1)
    ours = _greedy_tokens(lm, prompt, count)
    differs = np.flatnonzero(ours != theirs)
    if not differs.size:
        return GreedyAgreement(count, count, 0.0)
    first = int(differs[0])
    row = logits[first].astype(np.float64)
    # Only the first difference counts: after it, the texts differ and so do their logits.
    gap = share(row[theirs[first]] - row[ours[first]], row.max() - row.min())
    return GreedyAgreement(count, first, gap)


def _greedy_tokens(lm: CausalLM, prompt: np.ndarray, count: int) -> np.ndarray:
    """Return the next tokens [count], one decode step each, with a cache."""
    texts, tokens = PagedTexts(lm, 1, len(prompt) + count), list[int]()
    logits = texts.append([prompt])
    while True:
        tokens.append(int(logits[0].argmax()))
        if len(tokens) == count:
            return np.array(tokens)
        logits = texts.append([tokens[-1:]])


# Values of two runs, and the first value that differs.


class TraceComparison(Struct, frozen=True):
    """The agreement of each value that both have, in the order of computation."""

    tolerance: float
    """Tolerance, relative to the range of the reference."""
    values: tuple[Agreement, ...]
    alone: tuple[str, ...]
    """Values missing in the other run."""

    def holds(self, value: Agreement) -> bool:
        """Return whether all errors are within the tolerance."""
        return value.relative_max_error <= self.tolerance

    @property
    def first_mismatch(self) -> Agreement | None:
        """The first value beyond the tolerance."""
        return next((value for value in self.values if not self.holds(value)), None)

    def up_to_mismatch(self) -> TraceComparison:
        """Return the comparison up to the first mismatch."""
        first = self.first_mismatch
        if first is None:
            return self
        kept = self.values[: self.values.index(first) + 1]
        return TraceComparison(self.tolerance, kept, self.alone)


def compare_traces(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], tolerance: float
) -> TraceComparison:
    """Compare values by name; UsageError if none is in common, ModelError if shapes differ.

    Images inside our models are channels-last; they are compared channels-first.
    """
    common = [name for name in ours if name in theirs]
    if not common:
        raise UsageError(
            f"nothing to compare: none of {listed(ours)} is among {listed(theirs)}",
            hint="trace the same modules in both runs",
        )
    values = [
        agreement(name, _aligned(ours[name], theirs[name].shape), theirs[name]) for name in common
    ]
    alone = tuple(name for name in ours if name not in theirs)
    return TraceComparison(tolerance, tuple(values), alone)


def _aligned(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if value.shape != shape and value.ndim == 4:
        channels_first = np.moveaxis(value, -1, 1)
        return channels_first if channels_first.shape == shape else value
    return value
