"""A small language model with one fault each."""

from __future__ import annotations

import numpy as np

from gptrs import functionals as F
from gptrs.api.models import CausalLMModule, ConfigFields, Params, nn
from gptrs_conformance.checks import models as kit_model
from gptrs_conformance.plugin_kits import models

SETTINGS = {"vocab_size": kit_model.VOCABULARY, "context": kit_model.CONTEXT}


class Tiny(kit_model.Model):
    """The model of the kit of backends, with settings."""

    def __init__(self, vocab_size, context, params):
        CausalLMModule.__init__(self, context, vocab_size)
        width = kit_model.WIDTH
        self.tokens = nn.Embedding(params / "tokens", vocab_size, width)
        self.positions = nn.Embedding(params / "positions", context, width)
        layers = range(kit_model.LAYERS)
        self.layers = [kit_model.Block(params / "layers" / layer) for layer in layers]


def load(settings, params):
    """Build the model from its settings."""
    fields = ConfigFields(settings, "tiny")
    return Tiny(fields.integer("vocab_size"), fields.integer("context"), params)


def tiny_model(change=lambda kind, settings, params: load(settings, params)):
    """The model, built by `change` from the class, settings and weights."""
    return models.Model(
        load=lambda settings, params: change(Tiny, settings, params),
        settings={"model_type": "tiny", **SETTINGS},
        params=lambda backend: Params(kit_model.Source(), backend=backend),
    )


def _with(**members):
    """A fault that replaces methods of the model."""

    def build(kind, settings, params):
        model = load(settings, params)
        model.__class__ = type("Faulty", (kind,), members)
        return model

    return build


def _no_positions(self, step, caches):
    """The positions begin anew in each step."""
    starts = F.take(step.positions, F.arange(1))
    yield from Tiny.states(self, step._replace(positions=step.positions - starts), caches)


def _first_position(self, step, caches):
    """Every token is at the first position."""
    yield from Tiny.states(self, step._replace(positions=step.positions * 0), caches)


def _clipped_positions(self, step, caches):
    positions = F.minimum(step.positions, 12)
    yield from Tiny.states(self, step._replace(positions=positions), caches)


def _mixes(self, step, caches):
    """Each state has a part of the mean over the step."""
    states = list(Tiny.states(self, step, caches))
    yield from states
    last = states[-1]
    yield last + F.mean(last, axis=0, keepdims=True) * 0.1


def _raw_settings(kind, settings, params):
    return kind(**{name: settings[name] for name in SETTINGS}, params=params)


def _drifts(self, tokens):
    self.count = getattr(self, "count", 0) + 1
    return Tiny.forward(self, tokens) + np.float32(self.count * 1e-3)


def _half(self, tokens):
    return Tiny.forward(self, tokens).astype(np.float16)


def _dirty(self, step, buffers):
    """What lies in the pages counts."""
    found = Tiny.step(self, step, buffers)
    page = int(step.page_tables[0].max())
    return found + np.float32(buffers.read(0, page)[0].mean() * 0.5)


def _remembers(self, step, buffers):
    """The state is kept beside the pages."""
    known = self.__dict__.setdefault("sums", {})
    before = known.get(id(buffers), 0.0) if int(step.positions[0]) else 0.0
    known[id(buffers)] = before + float(step.tokens.sum())
    return Tiny.step(self, step, buffers) + np.float32(known[id(buffers)] * 1e-3)


def _whole_remembers(self, tokens):
    sums = np.cumsum(tokens, axis=1)[..., None]
    return Tiny.forward(self, tokens) + np.float32(sums * 1e-3)


def _cut(self, tokens):
    return Tiny.forward(self, tokens[:, -self.context_length :])


def _looks_ahead(self, tokens):
    found = Tiny.forward(self, tokens)
    return found + np.float32(tokens.mean(axis=1)[:, None, None] * 0.01)


def _by_batch(self, tokens):
    return Tiny.forward(self, tokens) * np.float32(1 + 0.01 * (len(tokens) - 1))


def _blind(self, tokens):
    found = Tiny.forward(self, tokens)
    found[tokens == tokens.max()] = np.nan
    return found


def _one_class_short(self, tokens):
    return Tiny.forward(self, tokens)[..., :-1]


def _last_row_first(self, tokens):
    return Tiny.forward(self, tokens)[::-1]


def _scaled_states(self, tokens):
    return {name: state * 1.01 for name, state in Tiny.hidden_states(self, tokens).items()}


def _flat_states(self, tokens):
    found = Tiny.hidden_states(self, tokens)
    return {name: state.reshape(-1, state.shape[-1]) for name, state in found.items()}


def _leaks(self, step, buffers):
    """The first text of a step is in the logits of all."""
    found = Tiny.step(self, step, buffers)
    return found + found[:1] * np.float32(0.01) * (len(found) > 1)


MODELS = {
    "claims what it has": {"nothing": _with(capabilities=frozenset({"tea"}))},
    "gives the same again": {
        "drifts": _with(forward=_drifts), "f16": _with(forward=_half),
        "NaN": _with(forward=_blind), "a class short": _with(forward=_one_class_short),
    },
    "a text in steps is the whole": {
        "positions begin anew": _with(states=_no_positions),
        "the mean of the step": _with(states=_mixes),
    },
    "positions count": {
        "ignored": _with(states=_first_position),
        "clipped": _with(states=_clipped_positions),
    },
    "hidden states end in the logits": {
        "scaled": _with(hidden_states=_scaled_states), "flat": _with(hidden_states=_flat_states),
    },
    "later tokens change nothing before": {"looks ahead": _with(forward=_looks_ahead)},
    "texts in company are as alone": {
        "the size of the batch": _with(forward=_by_batch),
        "another order": _with(forward=_last_row_first),
        "the first text": _with(step=_leaks),
        "the mean of the step": _with(states=_mixes),
    },
    "used pages are as new": {"old pages count": _with(step=_dirty)},
    "saved pages go on": {
        "a state beside the pages": _with(step=_remembers, forward=_whole_remembers)
    },
    "ends at its context": {
        "cut": _with(forward=_cut),
        "no limit": _with(_require_context=lambda self, length: None),
    },
    "refuses awkward settings": {"errors of Python": _raw_settings},
}  # fmt: skip


class Encoder:
    """A vector of each token, with the mean of its text."""

    capabilities = frozenset({"text_embedder"})
    context_length, vocab_size = 20, 11

    def __init__(self):
        self.table = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)

    def encode(self, tokens, mask):
        x = self.table[tokens]
        return x + self.mean(x, mask[..., None])

    def mean(self, x, mask):
        return (x * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True)


class Pixels:
    """The means of the channels."""

    capabilities = frozenset({"image_classifier"})
    channels, processor = 3, "none"

    def classify(self, images):
        return images.mean((2, 3))


def other_model(kind, **members):
    """A model of another capability, with other members."""
    made = type("Faulty", (kind,), members)
    return models.Model(load=lambda settings, params: made(), params=lambda backend: None)


OTHERS = {
    "padding changes nothing": {
        "padding counts": (Encoder, {"mean": lambda self, x, mask: x.mean(1, keepdims=True)}),
        "others count": (Encoder, {"mean": lambda self, x, mask: x.mean((0, 1), keepdims=True)}),
    },
    "images in company are as alone": {
        "the batch counts": (Pixels, {"classify": lambda self, x: x.mean((2, 3)) - x.mean()}),
    },
}
