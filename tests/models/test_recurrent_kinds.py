"""Kinds that keep states of their texts: the same tokens in any company, chunks, shared pages."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import partial
from random import Random

import numpy as np
import pytest

import gptrs
from gptrs.errors import ModelError
from gptrs.nn import PagedTexts
from gptrs_models.llama_kinds import read_config
from gptrs_models.mamba2 import Mamba2Config
from gptrs_runtime.generation.guessing import guesser
from gptrs_runtime.generation.guessing.draft import Odds, drafted
from gptrs_runtime.generation.guessing.guesser import Guess, Guesser
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.libraries.write import compile_library
from gptrs_runtime.serving.engine import Engine
from models.llama_support import assert_close, edit_config, save_llama, some_tokens
from models.models_support import assert_greedy, torch_logits
from support.guesses import guess_any_length
from support.library_modules import module_of

pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "lfm2": (
        "Lfm2",
        {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    ),
}
MAMBA: dict[str, object] = {"state_size": 6, "conv_kernel": 3, "use_bias": True}
MAMBA2: dict[str, object] = {
    **{"num_heads": 6, "head_dim": 10, "hidden_size": 30, "n_groups": 3, "state_size": 5},
    **{"conv_kernel": 3, "use_bias": True, "chunk_size": 16},
}
KINDS["mamba"] = ("Mamba", MAMBA)
KINDS["qwen3_next"] = (
    "Qwen3Next",
    {
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 4},
        **{"linear_key_head_dim": 6, "linear_value_head_dim": 8, "num_experts_per_tok": 2},
        **{"moe_intermediate_size": 24, "shared_expert_intermediate_size": 20, "head_dim": 8},
        "layer_types": ["linear_attention", "full_attention"],
    },
)
KINDS["mamba2"] = ("Mamba2", MAMBA2)
GREEDY = gptrs.Sampling(temperature=0)


QUICK = ("lfm2", "mamba")
"""Kinds that are not `exhaustive`: what others do with their states, one of these does."""


def _kinds() -> list[object]:
    return [
        pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.exhaustive) for kind in KINDS
    ]


@pytest.fixture(scope="module", params=_kinds())
def folder(request, tmp_path_factory):
    kind, settings = KINDS[request.param]
    return save_llama(tmp_path_factory.mktemp("recurrent") / request.param, kind, **settings)


@pytest.fixture
def model(folder, backend_name):
    if folder.name not in QUICK and backend_name == "ref":
        pytest.skip("a token at a time takes long here, and pages are the same on every backend")
    return gptrs.load_model(folder, backend=backend_name)


def _options(**settings) -> gptrs.GenerationOptions:
    return gptrs.GenerationOptions(12, GREEDY, ignore_eos=True, **settings)


def _alone(model, prompt: list[int], count: int = 12) -> list[int]:
    """Greedy tokens by whole texts, without any cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model.forward(np.array([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


WIDER: dict[str, object] = {"tie_word_embeddings": False, "expand": 3, "intermediate_size": 96}
AWKWARD: list[tuple[str, dict[str, object]]] = [
    ("Mamba", {**MAMBA, "time_step_rank": 5, "hidden_act": "gelu"}),
    ("Mamba", {**MAMBA, "time_step_rank": 5, "hidden_act": "gelu", **WIDER}),
    ("FalconMamba", {**MAMBA, "time_step_rank": 5, "mixer_rms_eps": 1e-2}),
    ("Mamba2", {**MAMBA2, "hidden_act": "gelu", "chunk_size": 7, "tie_word_embeddings": True}),
    (
        "Mamba2",
        {
            **{**MAMBA2, "expand": 3, "num_heads": 18, "head_dim": 5, "n_groups": 1},
            **{"hidden_size": 30, "use_bias": False, "use_conv_bias": False, "conv_kernel": 5},
        },
    ),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("kind", "settings"), AWKWARD)
def test_logits_and_greedy_tokens_of_state_spaces(tmp_path, backend_name, kind, settings):
    folder = save_llama(tmp_path / "m", kind, **settings)
    model = gptrs.load_model(folder, backend=backend_name)
    tokens = some_tokens(2, 40)
    assert_close(model.forward(tokens), torch_logits(folder, tokens))
    prompt = tokens[0, :9].tolist()
    found = gptrs.generate(model, prompt, max_tokens=48, sampling=GREEDY, ignore_eos=True)
    assert_greedy(partial(torch_logits, folder), prompt, found.token_ids, 48)


@pytest.mark.parametrize("written", ["[0.01, 0.5]", "[0.01, Infinity]"])
def test_the_time_step_of_mamba2_has_limits(tmp_path, written):
    folder = save_llama(tmp_path / "m", "Mamba2", **MAMBA2)
    tokens = some_tokens(2, 20)
    unlimited = gptrs.load_model(folder, backend="ref").forward(tokens)
    config = folder / "config.json"
    whole = '[\n    0.0,\n    {\n      "__float__": "Infinity"\n    }\n  ]'
    assert whole in config.read_text()
    config.write_text(config.read_text().replace(whole, written))
    found = gptrs.load_model(folder, backend="ref").forward(tokens)
    assert np.abs(found - unlimited).max() > 1e-3
    limits = [float(end) for end in written.strip("[]").split(",")]
    edit_config(folder, time_step_limit=limits)
    assert_close(found, torch_logits(folder, tokens))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"expand": 4}, "`expand` of a `mamba2` model times `hidden_size` must be 60"),
        ({"n_groups": 4}, "`n_groups` of a `mamba2` model must divide the 6 heads"),
        ({"num_heads": 3, "head_dim": 3, "hidden_size": 9, "expand": 1}, "must be even, and is 9"),
        ({"time_step_limit": [0.1]}, "`time_step_limit` of a `mamba2` model must be a list of two"),
        ({"time_step_limit": [0, -1]}, "must be a number >= 0, found `-1`"),
        ({"quantization_config": {}}, "is supported as"),
    ],
)
def test_settings_of_mamba2_that_are_refused(settings, problem):
    with pytest.raises(ModelError, match=problem):
        Mamba2Config.from_settings({**MAMBA2, **settings})


@pytest.mark.whole
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"use_sliding_window": True}, "`use_sliding_window` of a `qwen3_next` model is supported"),
        ({"linear_num_value_heads": 24}, "`linear_num_value_heads`.*must be a multiple of 16"),
        ({"linear_num_value_heads": 16, "linear_num_key_heads": 16}, None),
        (
            {
                **{"linear_num_key_heads": 3, "linear_num_value_heads": 3},
                "linear_value_head_dim": 3,
            },
            "`linear_value_head_dim`.*must be even",
        ),
        ({"layer_types": ["linear_attention"]}, "must have one word for each of 48 layers"),
        (
            {"layer_types": ["sliding_attention"] * 48},
            "must be of `linear_attention`, `full_attention`",
        ),
        ({"num_experts": 0}, "`num_experts` of a `qwen3_next` model must be an integer >= 1"),
    ],
)
def test_settings_of_qwen3_next_that_are_refused(settings, problem):
    with nullcontext() if problem is None else pytest.raises(ModelError, match=problem):
        read_config({"model_type": "qwen3_next", **settings})


def test_delta_nets_without_causality_are_refused(tmp_path):
    kind, settings = KINDS["qwen3_next"]
    folder = save_llama(tmp_path / "m", kind, **settings)
    edit_config(folder, architectures=["Qwen3NextModel"], use_bidirectional_attention=True)
    with pytest.raises(ModelError, match="a `qwen3_next` model that is not causal"):
        gptrs.load_model(folder, backend="ref")


def test_prompts_in_chunks_among_decoded_tokens(model):
    lm = model.causal_lm()
    texts, wholes = PagedTexts(lm, 4, 64), some_tokens(4, 64)
    forward = lm.forward(wholes)
    for step in range(12):
        starts = list(texts.lengths)
        counts = [5 if (step + row) % 3 else 1 for row in range(4)]
        rows = zip(wholes, starts, counts, strict=True)
        logits = texts.append([whole[start : start + count] for whole, start, count in rows])
        ends = [length - 1 for length in texts.lengths]
        assert_close(logits, forward[np.arange(4), ends])
    assert min(texts.lengths) > 40


@pytest.mark.parametrize("begin", [40, 64, 70])
def test_a_prompt_that_begins_as_another(model, begin):
    """It finds pages of one that has ended, also within a page, and goes on in its own way."""
    one, other = (row.tolist() for row in some_tokens(2, 80))
    both = [one, [*one[:begin], *other[begin:]], one[:begin], [*one, 5]]
    for prompt in both:
        found = gptrs.stream(model, prompt, _options(prefill_chunk=9))
        list(found)
        assert list(found.generation.token_ids) == _alone(model, prompt)


def test_a_batch_and_forks_are_as_if_alone(model):
    rows = zip(some_tokens(3, 50), (50, 3, 33), strict=True)
    prompts = [row[:length].tolist() for row, length in rows]
    found = gptrs.generate_batch(model, prompts, _options(prefill_chunk=7))
    for prompt, each in zip(prompts, found, strict=True):
        assert list(each.token_ids) == _alone(model, prompt)


def _guessed(monkeypatch, texts: list[list[int]], vocab_size: int) -> None:
    """Guess up to nine tokens of each text, of which the first few are right."""
    random = Random(3)

    def guess(_, candidates, __, room):
        found: list[Guess | None] = []
        for each in candidates:
            known = each.guesses.lookup._tokens
            whole = next(text for text in texts if text[: len(known)] == known)
            count = min(random.randint(0, 9), each.most, room)
            tokens = whole[len(known) : len(known) + count]
            room -= len(tokens)
            for at in range(random.randint(0, len(tokens)), len(tokens)):
                tokens[at] = (tokens[at] + 1) % vocab_size
            found.append(Guess(tokens, Odds(1, 2)) if tokens else None)
        return found

    monkeypatch.setattr(Guesser, "guess", guess)


def test_wrong_guesses_change_nothing(model, monkeypatch):
    """Within a page and across two, alone, in company, and after a prompt that is cached."""
    vocab_size = model.causal_lm().vocab_size
    rows = zip(some_tokens(3, 50), (50, 3, 31), strict=True)
    prompts = [row[:length].tolist() for row, length in rows]
    fields = {"max_tokens": 40, "temperature": 0.6, "seed": 4, "ignore_eos": True}
    plain = [gptrs.generate(model, prompt, **fields).token_ids for prompt in prompts]
    wholes = [[*prompt, *tokens] for prompt, tokens in zip(prompts, plain, strict=True)]
    _guessed(monkeypatch, wholes, vocab_size)
    for _ in range(2):
        for prompt, tokens in zip(prompts, plain, strict=True):
            found = gptrs.generate(model, prompt, **fields, prompt_lookup=True)
            assert found.token_ids == tokens
            assert 0 < found.guesses.accepted < found.guesses.proposed
    with Engine(model, prompt_lookup=True) as engine:
        streams = [engine.submit(prompt, **fields) for prompt in prompts]
        found = [stream.result()[0] for stream in streams]
    assert [each.token_ids for each in found] == plain
    assert sum(each.guesses.accepted for each in found) > 10


class _Turns:
    """Makes the least likely token the likeliest one now and then, which no draft expects."""

    def __call__(self, tokens, logits):
        return -logits if len(tokens) % 5 == 0 else logits


def test_a_draft_with_states_takes_back_its_own_guesses(model, folder, monkeypatch):
    """Each of its guesses is what the same model writes next, also after guesses that failed."""
    fields = {"max_tokens": 16, "temperature": 0.0, "ignore_eos": True}
    fields["logits_processors"] = [_Turns()]
    prompt = some_tokens(1, 29)[0].tolist()
    plain = gptrs.generate(model, prompt, **fields)
    guess_any_length(monkeypatch, 5)
    guesses = []

    def noted(wishes, vocab_size):
        found = drafted(wishes, vocab_size)
        guesses.extend((list(wishes[0].text.context.tokens), guess) for guess in found)
        return found

    monkeypatch.setattr(guesser, "drafted", noted)
    draft = gptrs.load_model(folder, backend=model.backend.name)
    found = gptrs.generate(model, prompt, **fields, draft=draft)
    assert found.token_ids == plain.token_ids
    assert 0 < found.guesses.accepted < found.guesses.proposed
    for known, guess in guesses:
        assert guess == _alone(model, known, len(guess))


@pytest.mark.parametrize("dtype", ["bf16", "q8"])
def test_narrow_caches_stay_close(model, dtype):
    lm = model.causal_lm()
    tokens = some_tokens(2, 40)
    wide = lm.forward(tokens)[:, -1]
    element = {"bf16": gptrs.ir.dtypes.bf16, "q8": gptrs.ir.dtypes.si8}[dtype]
    texts = PagedTexts(lm, 2, 40, element)
    texts.append(tokens[:, :20])
    found = texts.append(tokens[:, 20:])
    assert np.abs(found - wide).max() <= 0.05 * np.abs(wide).max()
    assert np.abs(found - wide).max() > 0


def test_a_step_that_is_interrupted_is_not_done_twice(model, monkeypatch):
    """A state that a step has changed is not the one that it began with."""
    prompt = some_tokens(1, 20)[0].tolist()
    setup = GenerationSetup(model, _options())
    scheduler, text = setup.new_scheduler(most_texts=1), setup.new_text(prompt)
    scheduler.add(text)
    scheduler.step()
    scheduler.step()
    cache = setup.cache
    assert cache is not None
    whole = cache._lm.step

    def broken(*arguments):
        whole(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(cache._lm, "step", broken)
    with pytest.raises(KeyboardInterrupt):
        scheduler.step()
    monkeypatch.undo()
    seen: list[np.ndarray] = []
    monkeypatch.setattr(cache._lm, "step", lambda *step: seen.append(whole(*step)) or seen[-1])
    while scheduler.busy:
        scheduler.step()
    tokens = text.generation().token_ids
    assert list(tokens) == _alone(model, prompt)
    last = model.forward(np.array([[*prompt, *tokens[:-1]]]))[0, -1]
    assert_close(seen[-1][0], last)


def test_whole_texts_for_other_formats(model):
    lm, tokens = model.causal_lm(), some_tokens(2, 21)
    with gptrs.use_backend(model.backend):
        found = lm.computation().function(gptrs.tensor(tokens))["logits"].numpy()
    assert_close(found, lm.forward(tokens))


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_library_has_the_same_states(model, folder, tmp_path):
    if model.backend.name != "numba":
        pytest.skip("numba writes libraries")
    made = compile_library(folder, tmp_path / "out", name="lm", backend="numba", wheel="1")
    lm = module_of(made, tmp_path / "installed")
    ours, cache = PagedTexts(model.causal_lm(), 2, 60), lm.Cache(lm.Model(), 60, 2)
    for step in ([list(range(45)), [4]], [[5], [6]], [[7, 8], list(range(40))]):
        np.testing.assert_array_equal(cache.append(step), ours.append(step))
    if folder.name != "lfm2":  # which keeps what its convolutions see of each position
        with pytest.raises(ValueError, match="have a state"):
            cache.truncate(3)
    cache.truncate(0)
    assert cache.length() == 0
