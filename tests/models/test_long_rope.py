"""LongRoPE past the context that a model was trained on: texts and logits are transformers'."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gptrs
from gptrs.nn import PagedTexts
from models.llama_support import TOLERANCE
from models.models_support import greedy_tokens, torch_logits

torch = pytest.importorskip("torch", reason="parity needs torch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

BORDER, COUNT = 40, 6
"""Tokens of the short context, and new tokens of a text."""
LENGTHS = (5, BORDER - COUNT, BORDER - 3, BORDER - 1, BORDER, BORDER + 1, BORDER + 33)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Phi 3 whose texts of more than 40 tokens have other angles."""
    config = transformers.Phi3Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=200,
        original_max_position_embeddings=BORDER,
        pad_token_id=0,
        eos_token_id=None,
        initializer_range=0.4,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "long_factor": [1.0, 2.5, 4.0, 7.0],
            "short_factor": [1.0, 1.1, 1.2, 1.5],
            "original_max_position_embeddings": BORDER,
        },
    )
    torch.manual_seed(3)
    made = tmp_path_factory.mktemp("longrope") / "m"
    transformers.Phi3ForCausalLM(config).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def expected(folder):
    """Prompts of all lengths, two of which begin alike, and what transformers writes after each."""
    rng = np.random.default_rng(1)
    whole = rng.integers(3, 97, BORDER + 33).tolist()
    prompts = [*(rng.integers(3, 97, length).tolist() for length in LENGTHS), whole[:35], whole]
    return [(prompt, greedy_tokens(folder, prompt, COUNT)) for prompt in prompts]


def options(**more):
    return {"max_tokens": COUNT, "temperature": 0, "ignore_eos": True, **more}


def test_logits_below_and_above(folder, backend_name):
    model = gptrs.load_model(folder, backend=backend_name).causal_lm()
    for length in (BORDER, BORDER + 1, 77):
        tokens = np.random.default_rng(length).integers(3, 97, (2, length))
        wanted = torch_logits(folder, tokens)
        assert np.abs(model.forward(tokens) - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize("chunk", [256, 7])
def test_texts_alone_and_together(folder, backend_name, expected, chunk):
    model = gptrs.load_model(folder, backend=backend_name)
    for prompt, wanted in expected:
        found = gptrs.generate(model, prompt, **options(prefill_chunk=chunk))
        assert list(found.token_ids) == wanted
    prompts = [prompt for prompt, _ in expected]
    together = gptrs.generate_batch(model, prompts, **options(prefill_chunk=chunk))
    assert [list(each.token_ids) for each in together] == [wanted for _, wanted in expected]


def test_guesses_do_not_cross(folder, backend_name):
    """A prompt that repeats itself, whose guesses come true or not."""
    model = gptrs.load_model(folder, backend=backend_name)
    for length in range(BORDER - 5, BORDER + 2, 2):
        prompt = list(itertools.islice(itertools.cycle([5, 9, 33, 41, 7]), length))
        wanted = greedy_tokens(folder, prompt, COUNT)
        guessed = gptrs.generate(model, prompt, **options(prompt_lookup=True))
        assert list(guessed.token_ids) == wanted
        drafted = gptrs.generate(model, prompt, **options(draft=model))
        assert list(drafted.token_ids) == wanted


def test_an_engine_a_prompt_cache_and_no_cache(folder, backend_name, expected, tmp_path):
    model = gptrs.load_model(folder, backend=backend_name)
    with gptrs.Engine(model, token_budget=16, most_running=8) as engine:
        streams = [engine.submit(prompt, **options()) for prompt, _ in expected]
        assert [list(stream.result()[0].token_ids) for stream in streams] == [
            wanted for _, wanted in expected
        ]
    for number, (prompt, wanted) in enumerate(expected[3:6]):
        path = tmp_path / f"{number}.safetensors"
        for _ in range(2):
            other = gptrs.load_model(folder, backend=backend_name)
            found = gptrs.generate(other, prompt, **options(prompt_cache=path))
            assert list(found.token_ids) == wanted
    prompt, wanted = expected[3]
    found = gptrs.generate(model, prompt, **options(use_cache=False))
    assert list(found.token_ids) == wanted


def test_several_texts_and_beams(folder, backend_name, expected):
    model = gptrs.load_model(folder, backend=backend_name)
    prompt, wanted = expected[2]
    several = gptrs.generate_several(model, prompt, 2, **options())
    assert [list(each.token_ids) for each in several] == [wanted] * 2
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        output = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=COUNT, num_beams=3, do_sample=False,
            use_cache=False,
        )  # fmt: skip
    found = gptrs.generate(model, prompt, max_tokens=COUNT, beams=3, ignore_eos=True)
    assert list(found.token_ids) == output[0, len(prompt) :].tolist()


def test_a_shifted_context_comes_below_again(folder, backend_name):
    """A text that loses its middle is the one of the tokens that are left."""
    model = gptrs.load_model(folder, backend=backend_name)
    prompt = np.random.default_rng(8).integers(3, 97, 44).tolist()
    shifted = gptrs.generate(
        model, prompt, max_tokens=20, context=48, context_shift=True, ignore_eos=True
    )
    plain = gptrs.generate(
        model, prompt, max_tokens=20, context=48, context_shift=True, ignore_eos=True,
        use_cache=False,
    )  # fmt: skip
    assert shifted.token_ids == plain.token_ids


def test_texts_in_parts(folder, backend_name):
    model = gptrs.load_model(folder, backend=backend_name).causal_lm()
    tokens = np.random.default_rng(4).integers(3, 97, (2, 60))
    texts, last = PagedTexts(model, 2, 60), np.empty(0)
    for start, end in itertools.pairwise((0, 30, 39, 40, 41, 55, 60)):
        last = texts.append(tokens[:, start:end])
    wanted = model.forward(tokens)[:, -1]
    assert np.abs(last - wanted).max() <= TOLERANCE * np.abs(wanted).max()
