"""Real models: the logits of a text do not depend on company, chunks, pages found, or threads."""

from __future__ import annotations

import random
import sys
from typing import cast

import numpy as np
import pytest

from gptrs.ir import dtypes
from gptrs.nn import CausalLMModule
from gptrs.nn.captured_once import closure_of
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.manager import manager
from gptrs_models.llama_kinds import KINDS, read_config
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.paged_cache import PagedCache
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.scheduler import Scheduler
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.load import load_model
from runtime.generation.tiny_lms import VARIANTS, VOCABULARY, save_tiny_lm

GROUPS = 1
"""Of each variant and dtype."""
OTHER_NUMBERS = {
    "gpt2 untied", "llama of llama3", "llama of biases", "llama tied", "mistral of yarn",
    "ministral3",
}  # fmt: skip
"""Variants that are like another one in all that rows of a step share: they are `exhaustive`."""


class SeenLogits:
    """A logits processor that compares: after equal tokens the logits must be the same.

    `tolerance` relative to the largest logit, 0 for equal bits.
    """

    def __init__(self, tolerance):
        self.tolerance = tolerance
        self.known = {}
        self.compared = 0

    def __call__(self, tokens, logits):
        known = self.known.setdefault(tokens.tobytes(), logits.copy())
        self.compared += 1
        if self.tolerance:
            assert np.abs(known - logits).max() <= self.tolerance * np.abs(known).max()
        else:
            assert known.tobytes() == logits.tobytes(), f"after {len(tokens)} tokens"
        return logits


class Company:
    """Groups of random texts of one model, which begin alike now and then."""

    def __init__(self, folder, backend_name, seed):
        self.rng = random.Random(seed)
        numba = backend_name == "numba"
        self.models = [load_model(folder, backend_name, n) for n in ((2, 1) if numba else (None,))]
        # Delta nets divide by the norms of small vectors, which makes the rounding of BLAS larger.
        tolerance = 1e-4 if self.models[0].kind == "qwen3_next" else 1e-5
        self.seen = SeenLogits(0 if numba else tolerance)
        # Where bits differ anyway, a smaller type makes the difference large.
        self.cache_dtypes = (dtypes.f32, dtypes.bf16, dtypes.f16, dtypes.si8)
        self.cache_dtypes = self.cache_dtypes if numba else self.cache_dtypes[:1]
        self.shared = self._tokens(90)

    def _tokens(self, count):
        return [self.rng.randrange(VOCABULARY) for _ in range(count)]

    def prompt(self):
        start = self.shared[: self.rng.choice([0, 0, 20, 40, 70])]
        return [*start, *self._tokens(self.rng.choice([1, 2, 5, 12, self.rng.randint(1, 70)]))]

    def require_same(self):
        """One group: all texts together, then each by itself, anew and once more."""
        prompts = [self.prompt() for _ in range(self.rng.randint(2, 5))]
        counts = [self.rng.randint(1, 4) for _ in prompts]
        model, *others = self.models
        cache_dtype = self.rng.choice(self.cache_dtypes)
        cache = new_cache(model, cache_dtype)
        self.generate(model, cache, self.rng.choice([3, 17, 256]), prompts, counts)
        together = self.seen.compared
        for text in zip(prompts, counts, strict=True):
            self.generate(model, new_cache(model, cache_dtype), 256, *([part] for part in text))
            self.generate(model, cache, 256, *([part] for part in text))
        for other in others:
            self.generate(other, new_cache(other, cache_dtype), 64, prompts, counts)
        assert self.seen.compared == together * (3 + len(others))
        assert len(self.seen.known) <= together, "there are as many contexts as before"
        self.seen = SeenLogits(self.seen.tolerance)

    def generate(self, model, cache, chunk, prompts, counts):
        sampling = Sampling(temperature=0.9, seed=4)
        options = GenerationOptions(
            sampling=sampling, ignore_eos=True, logits_processors=[self.seen]
        )
        setup = GenerationSetup(model, options)
        scheduler = Scheduler(cache, chunk=chunk)
        for text in zip(prompts, counts, strict=True):
            scheduler.add(setup.new_text(*text))
        while scheduler.busy:
            scheduler.step()


def new_cache(model, dtype):
    return PagedCache(model.causal_lm(), model.backend, dtype, None)


def test_every_kind_of_language_model_is_among_them():
    kinds = {kind for kind, _ in VARIANTS.values()}
    known = {manager().model_factory(kind).__module__ for kind in kinds}
    for record in manager().records(ModelPlugin):
        name = manager().model_factory(record.name).__module__
        if record.distribution == "gptrs-models" and name not in known:
            assert not defines_language_model(sys.modules[name]), record.name


def defines_language_model(module):
    found = (value for value in vars(module).values() if isinstance(value, type))
    own = (kind for kind in found if kind.__module__ == module.__name__)
    return any(issubclass(kind, CausalLMModule) and "states" in vars(kind) for kind in own)


def test_everything_that_relatives_of_llama_do_otherwise_in_attention_is_among_them():
    variants = [{"model_type": kind, **settings} for kind, settings in VARIANTS.values()]
    found = [_switches(settings) for settings in variants if settings["model_type"] in KINDS]
    for kind in KINDS:
        switches = _switches({"model_type": kind, **_NEEDED.get(kind, {})})
        assert switches <= set().union(*found), kind


_NEEDED = {
    "gpt_neo": {"attention_layers": ["global", "local"] * 12},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 128},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2},
}
"""What a kind does not do without."""


def _switches(settings):
    """What is done otherwise than in Llama where rows of a step meet or know their place."""
    config = read_config(settings)
    names = config.names
    done = {
        "window": config.sliding_window,
        "two rotary embeddings": config.sliding_rope,
        "layers without rotary embedding": config.unrotated_layers,
        "part of a head": config.rope.rotated < 1,
        "interleaved": config.interleaved,
        "positions": names.positions,
        "sines": config.sines,
        "linear biases": config.alibi and not config.alibi_rounded,
        "rounded linear biases": config.alibi_rounded,
        "joined": names.qkv and not (config.qkv_groups or config.qkv_shards),
        "groups": config.qkv_groups,
        "shards": config.qkv_shards,
        "norm over all heads": config.head_norm == "width",
        "limit of scores": config.softcap,
    }
    return {name for name, switched in done.items() if switched}


def _variants():
    """Each variant on both dtypes; of every eighth variant one dtype is not `exhaustive`."""
    for place, variant in enumerate(VARIANTS):
        for i, dtype in enumerate(("f32", "bf16")):
            slow = (place + 8 * i) % 16 or variant in OTHER_NUMBERS
            yield pytest.param(variant, dtype, marks=[pytest.mark.exhaustive] if slow else [])


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.usefixtures("without_amx")
@pytest.mark.parametrize(("variant", "dtype"), list(_variants()))
def test_a_text_among_others_is_the_text_alone(tmp_path, backend, variant, dtype):
    folder = save_tiny_lm(tmp_path / "m", variant, getattr(dtypes, dtype))
    company = Company(folder, backend.name, f"{variant} {dtype}")
    for _ in range(GROUPS):
        company.require_same()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_later_process_can_find_the_steps_of_every_kind(tmp_path, variant):
    model = load_model(save_tiny_lm(tmp_path / "m", variant, dtypes.f32), backend="ref")
    module = cast("CausalLMModule", model.causal_lm())
    assert closure_of(module.states) is not None
