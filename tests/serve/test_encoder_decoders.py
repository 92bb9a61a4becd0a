"""Encoder-decoders in the engine and over HTTP: texts about a source, alone and among others."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import gptrs
from gptrs_runtime.load import load_model
from serve.clients import http, post
from serve.conftest import serving

WORDS = ["<pad>", "</s>", "<unk>", "translate:", "the", "cat", "sat", "le", "chat", "est", "assis"]
WIDTH, INNER = 16, 24
TEXTS = ["translate: the cat sat", "the cat", "translate: cat cat sat the"]


def save_tiny_t5(folder):
    """A T5 of a layer, with random weights."""
    shapes = {"shared.weight": (len(WORDS), WIDTH)}
    for stack, parts in (("encoder", ["SelfAttention"]),
                         ("decoder", ["SelfAttention", "EncDecAttention"])):  # fmt: skip
        block = f"{stack}.block.0.layer"
        for number, part in enumerate(parts):
            shapes |= {f"{block}.{number}.{part}.{name}.weight": (WIDTH, WIDTH) for name in "qkvo"}
            shapes[f"{block}.{number}.layer_norm.weight"] = (WIDTH,)
        shapes[f"{block}.0.SelfAttention.relative_attention_bias.weight"] = (8, 2)
        shapes[f"{block}.{len(parts)}.DenseReluDense.wi.weight"] = (INNER, WIDTH)
        shapes[f"{block}.{len(parts)}.DenseReluDense.wo.weight"] = (WIDTH, INNER)
        shapes[f"{block}.{len(parts)}.layer_norm.weight"] = (WIDTH,)
        shapes[f"{stack}.final_layer_norm.weight"] = (WIDTH,)
    folder.mkdir()
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors")
    config = {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": len(WORDS), "d_model": WIDTH, "d_kv": 8, "num_heads": 2, "d_ff": INNER,
        "num_layers": 1, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16, "decoder_start_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.add_special_tokens(WORDS[:3])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return load_model(save_tiny_t5(tmp_path_factory.mktemp("t5") / "t5"), backend="ref")


@pytest.fixture(scope="module")
def address(t5, model):
    with serving({"t5": t5, "tiny": model}, prompt_lookup=True) as (address, _):
        yield address


def test_texts_of_an_engine_are_those_of_generate(t5):
    with gptrs.Engine(t5) as engine:
        asked = [
            engine.submit(text, max_tokens=6, temperature=0.9, seed=n, answers=2)
            for n, text in enumerate(TEXTS)
        ]
        found = [[made.token_ids for made in stream.result()] for stream in asked]
        late = engine.submit(TEXTS[0], max_tokens=4, temperature=0)
        cancelled = engine.submit(TEXTS[1], max_tokens=6, temperature=0)
        cancelled.cancel()
        assert (
            late.result()[0].token_ids
            == gptrs.generate(t5, TEXTS[0], max_tokens=4, temperature=0).token_ids
        )
        assert engine.state().pages_held == 0
    for number, text in enumerate(TEXTS):
        told = gptrs.generate_several(t5, text, 2, max_tokens=6, temperature=0.9, seed=number)
        assert found[number] == [made.token_ids for made in told]


def test_completions_are_texts_about_their_prompt(address, t5):
    greedy = {"max_tokens": 6, "temperature": 0}
    told = [gptrs.generate(t5, text, **greedy).text for text in TEXTS]
    made = post(address, "/v1/completions", {"model": "t5", "prompt": TEXTS, **greedy}).json()
    assert [choice["text"] for choice in made["choices"]] == told
    assert made["usage"]["prompt_tokens"] == sum(len(text.split()) + 1 for text in TEXTS)
    body = {"model": "t5", "prompt": TEXTS[0], "stream": True, **greedy}
    text = http.post(f"{address}/v1/completions", json=body).text
    chunks = [json.loads(line[6:]) for line in text.strip().split("\n\n")[:-1]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == told[0]
    ollama = {"model": "t5", "prompt": TEXTS[0], "stream": False,
              "options": {"num_predict": 6, "temperature": 0}}  # fmt: skip
    assert post(address, "/api/generate", ollama).json()["response"] == told[0]
    first = post(address, "/v1/completions", {"prompt": TEXTS[0], **greedy}).json()
    assert first["model"] == "t5"
    listed = http.get(f"{address}/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["t5", "tiny"]


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "cannot do this"),
        ("completions", {"prompt": "the", "echo": True, "logprobs": 1}, "t5"),
        ("completions", {"prompt": "the", "regex": "a"}, "does not continue them"),
        ("completions", {"prompt": "the " * 4096}, "do not fit"),
    ],
)
def test_refusals(address, path, fields, message):
    answer = post(address, f"/v1/{path}", {"model": "t5", "max_tokens": 2, **fields})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
