"""A stored output layer that the config ties: a copy of the table is one weight, others are two."""

from __future__ import annotations

import json
from typing import cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gptrs
from gptrs.api.models import Module
from models.llama_support import assert_close, made_llama
from models.models_support import save_gpt2
from models.seq2seq_models import save_seq2seq

transformers = pytest.importorskip("transformers", reason="parity needs transformers")
torch = pytest.importorskip("torch", reason="parity needs torch")


def _llama(kind: str):
    return lambda folder: made_llama(folder, kind, tie_word_embeddings=True)


def _bert(folder):
    sizes = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 1}
    more = {"num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(**sizes, **more)
    torch.manual_seed(3)
    transformers.BertForMaskedLM(config).save_pretrained(folder)


KINDS = {
    "llama": (_llama("Llama"), "lm_head", "model.embed_tokens", "CausalLM"),
    "qwen3": (_llama("Qwen3"), "lm_head", "model.embed_tokens", "CausalLM"),
    "gemma": (_llama("Gemma"), "lm_head", "model.embed_tokens", "CausalLM"),
    "gpt2": (save_gpt2, "lm_head", "transformer.wte", "CausalLM"),
    "t5": (lambda folder: save_seq2seq(folder, "t5"), "lm_head", "shared", "Seq2SeqLM"),
    "bart": (lambda folder: save_seq2seq(folder, "bart"), "lm_head", "model.shared", "Seq2SeqLM"),
    "bert": (
        _bert,
        "cls.predictions.decoder",
        "bert.embeddings.word_embeddings",
        "MaskedLM",
    ),
}
"""What saves a tied model; the names of head and table; the class of transformers."""


@pytest.mark.whole
@pytest.mark.parametrize("change", [0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_head_is_tied_as_in_transformers(tmp_path, kind, change):
    save, head, table, form = KINDS[kind]
    folder, text = tmp_path / "model", np.arange(4, 15)[None]
    save(folder)
    path = folder / "model.safetensors"
    stored = load_file(path)
    stored[f"{head}.weight"] = np.array(stored[f"{table}.weight"])
    stored[f"{head}.weight"][-1, -1] += change
    save_file(stored, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["tie_word_embeddings"]
    theirs = getattr(transformers, f"AutoModelFor{form}").from_pretrained(folder).eval()
    shape = stored[f"{table}.weight"].shape
    tables = sum(each.shape == shape for each in theirs.parameters())
    model = gptrs.load_model(folder, backend="ref")
    with torch.no_grad():
        if form == "Seq2SeqLM":
            module = model.seq2seq()
            ours = module.write(text, module.read_sources(text, text > 0))
            expected = theirs(torch.tensor(text), decoder_input_ids=torch.tensor(text)).logits
        else:
            module = model.causal_lm() if form == "CausalLM" else model.masked_lm()
            ours = model.forward(text)
            expected = theirs(torch.tensor(text)).logits
    assert_close(ours, expected.numpy())
    held = cast("Module", module).named_tensors()
    found = {id(each.source) for _, each in held if each.shape == shape}
    assert len(found) == tables == 1 + (change > 0)
