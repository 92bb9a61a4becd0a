"""`gptrs quantize` and `--weights`: what is said of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec import Struct
from safetensors.numpy import save_file

from gptrs.checkpoint.formats.mapped_tensors import MappedTensors

WIDTH, INNER, VOCAB = 32, 64, 40


class _Shape(Struct, frozen=True):
    rows: int
    columns: int


def _bert(folder):
    """A BERT of one layer."""
    generator = np.random.default_rng(0)
    layer = "encoder.layer.0."
    matrices = {
        "embeddings.word_embeddings": _Shape(VOCAB, WIDTH),
        "embeddings.position_embeddings": _Shape(16, WIDTH),
        "embeddings.token_type_embeddings": _Shape(2, WIDTH),
        f"{layer}attention.self.query": _Shape(WIDTH, WIDTH),
        f"{layer}attention.self.key": _Shape(WIDTH, WIDTH),
        f"{layer}attention.self.value": _Shape(WIDTH, WIDTH),
        f"{layer}attention.output.dense": _Shape(WIDTH, WIDTH),
        f"{layer}intermediate.dense": _Shape(INNER, WIDTH),
        f"{layer}output.dense": _Shape(WIDTH, INNER),
    }
    tensors = {}
    for name, shape in matrices.items():
        drawn = generator.normal(0, 0.2, (shape.rows, shape.columns))
        tensors[f"{name}.weight"] = drawn.astype(np.float32)
        if "embeddings" not in name:
            tensors[f"{name}.bias"] = np.zeros(shape.rows, np.float32)
    for name in ("embeddings", f"{layer}attention.output", f"{layer}output"):
        tensors[f"{name}.LayerNorm.weight"] = np.ones(WIDTH, np.float32)
        tensors[f"{name}.LayerNorm.bias"] = np.zeros(WIDTH, np.float32)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "bert", "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": INNER, "max_position_embeddings": 16,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_encoder_is_quantized_and_reported(gptrs, tmp_path, monkeypatch):
    monkeypatch.setattr(MappedTensors, "view", lambda *_: pytest.fail("a mapped file is read"))
    source, out = _bert(tmp_path / "bert"), tmp_path / "out"
    result = gptrs("quantize", source, out, "--type", "q4")
    assert result.code == 0
    assert result.err.endswith("% off on average, for normal inputs\n")
    assert f"wrote {out}: bert model, 6 tensors in q4 of 4.50 bits a weight" in result.out
    assert "encoder.layer.0" in result.out
    report = gptrs("quantize", source, out, "--keep", "*query*", "--force", "--json").json
    assert (report["type"], len(report["quantized"])) == ("q4", 5)
    assert all(0.01 < each["relative_rms"] < 0.2 for each in report["quantized"])
    assert report["precision"] == "f32"
    assert 0.01 < report["product_rms"] < 0.2
    assert "encoder.layer.0.attention.self.query.weight" in report["kept"]
    shown = gptrs("inspect", out, "--json").json
    assert shown["totals"]["tensors"] == len(report["kept"]) + 5


def test_rounding_of_inputs_is_told(gptrs, tmp_path, monkeypatch):
    monkeypatch.setenv("GPTRS_BACKEND", "numba")
    source, out = _bert(tmp_path / "bert"), tmp_path / "out"
    told = gptrs("quantize", source, out, "--type", "q8")
    assert "rounded to 8 bits, too; `--precision f32` does not round them" in told.err
    report = gptrs("quantize", source, out, "--force", "--json").json
    assert report["precision"] == "int8"


def test_what_is_wrong_is_said(gptrs, tmp_path):
    source = _bert(tmp_path / "bert")
    for options, code, said in (
        (("--type", "q7"), 2, "q7"),
        (("--group", "9"), 2, "groups of 9"),
        (("--keep", "x*"), 2, "x*"),
    ):
        result = gptrs("quantize", source, tmp_path / "out", *options)
        assert result.code == code
        assert said in result.err
    assert gptrs("quantize", "demo", tmp_path / "out").code != 0
    assert not (tmp_path / "out").exists()


def test_a_precision_that_a_backend_lacks_is_refused(gptrs):
    options = ("generate", "--prompt", "the", "--max-tokens", "1", "--backend", "ref")
    assert gptrs(*options, "--precision", "f32").code == 0
    assert gptrs(*options, "--precision", "bf16").code == 0
    result = gptrs(*options, "--precision", "int8")
    assert result.code == 2
    assert "no precision `int8`" in result.err


def test_weights_of_a_command_are_quantized(gptrs):
    options = ("--prompt", "the cat", "--max-tokens", "2", "--greedy", "--backend", "ref", "--json")
    assert gptrs("generate", *options, "--weights", "q8").json["token_ids"]
    result = gptrs("generate", *options, "--weights", "q5")
    assert result.code == 2
    assert "q5" in result.out


def test_a_file_for_llama_cpp(gptrs, tmp_path):
    out = tmp_path / "demo.gguf"
    result = gptrs("quantize", "demo", out)
    assert result.code == 0
    assert "gpt2 model, 25 tensors in q4" in result.out
    assert "llama.cpp knows no such tokenizer" in result.err
    report = gptrs(
        "quantize", "demo", out, "--to", "gguf", "--type", "f16", "--force", "--json"
    ).json
    assert (report["format"], report["files"], report["quantized"]) == ("gguf", ["demo.gguf"], [])
    assert len(report["kept"]) == 76
    plain = gptrs("quantize", "demo", out, "--type", "f16", "--force").out
    assert "gpt2 model, 76 tensors, none quantized, " in plain
    assert len(report["notes"]) == 1
    for options, said in (((), "exists"), (("--to", "hf", "--type", "f16"), "convert --dtype f16")):
        refused = gptrs("quantize", "demo", out, *options)
        assert refused.code == 2
        assert said in refused.err
