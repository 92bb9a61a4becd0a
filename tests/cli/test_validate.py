"""`gptrs validate`: each capability beside transformers, agreeing and not."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from functionals.temporary import implemented
from fuzzing import tiny_gguf
from gptrs import functionals as F
from gptrs.checkpoint.formats.tensor_archive import write_archive
from models.image_models import save_image_model
from models.llama_support import save_llama
from models.models_support import save_gpt2
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_resnet import PREPROCESSOR, save_tiny_resnet

FIELDS = {
    "schema",
    *("model", "kind", "backend", "reference", "inputs", "tolerance", "agrees", "output"),
    *("images", "top1", "top5", "cosine", "greedy", "layers", "first_layer", "timings"),
}
ERRORS = {
    *("name", "type", "max_error", "mean_error", "range", "relative_max_error"),
    *("relative_mean_error", "agrees"),
}
RESNET = {
    "layer_type": "basic",
    "embedding_size": 8,
    "hidden_sizes": [8, 12],
    "depths": [1, 1],
    "image_size": 32,
}


def test_without_torch_the_error_says_what_to_install(gptrs, model_directory, monkeypatch):
    monkeypatch.delitem(sys.modules, "gptrs_cli.validate.torch_reference", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = gptrs("validate", "--model", model_directory)
    assert result.code == 4
    assert "the reference `torch` needs torch and transformers" in result.err
    assert "pip install 'pillow>=" in result.err
    assert "'torch>=" in result.err


def test_where_pillow_alone_is_missing_that_is_said(gptrs, model_directory, monkeypatch):
    monkeypatch.setattr(importlib, "import_module", _no_pillow)
    result = gptrs("validate", "--model", model_directory)
    assert result.code == 4
    assert "Pillow alone is missing" in result.err


_import_module = importlib.import_module


def _no_pillow(name: str, package: str | None = None):
    if name != "gptrs_cli.validate.torch_reference":
        return _import_module(name, package)
    raise ModuleNotFoundError(f"No module named 'PIL' ({name})", name="PIL")


@contextmanager
def wrong_for_large_elements() -> Iterator[str]:
    """Scope of a `gelu` that is right for elements up to 30."""

    def clipped(x, approximate="none"):
        return F.gelu(F.minimum(x, 30.0), approximate)

    with implemented("gelu", {"clipped": clipped}):
        yield "gelu=clipped"


def with_large_elements_in_layer_1(folder: Path, weight: str) -> Path:
    """Save a model anew whose layer 1 gives `gelu` elements far above 30; `weight` makes them."""
    tensors = load_file(folder / "model.safetensors")
    (name,) = [name for name in tensors if name.endswith(weight)]
    save_file(
        {**tensors, name: tensors[name] * 100}, folder / "model.safetensors", {"format": "pt"}
    )
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("validate") / "gpt2")


@pytest.mark.skipif(not find_spec("transformers"), reason="transformers is the reference")
class TestBesideTorch:
    def test_a_language_model_agrees(self, gptrs, gpt2, backend):
        run = ("validate", "--model", gpt2, "--backend", backend.name, "--max-tokens", 8)
        result = gptrs(*run, "--per-layer", "--inputs", 3, "--json")
        assert result.code == 0, result.err
        fields = result.json
        assert fields.keys() == FIELDS
        assert (fields["kind"], fields["backend"]) == ("gpt2", backend.name)
        assert fields["reference"].keys() == {"torch", "transformers"}
        assert fields["inputs"] == [f"random input 0[{row}]" for row in range(3)]
        assert fields["output"].keys() == ERRORS
        assert fields["output"]["type"] == "f32[3, 32, 97]"
        assert 0 < fields["output"]["relative_max_error"] < 1e-4
        assert fields["output"]["mean_error"] < fields["output"]["max_error"]
        assert fields["output"]["range"] > 1
        assert (fields["top1"], fields["top5"], fields["cosine"]) == (1, 1, None)
        assert fields["greedy"] == {"tokens": 8, "equal": 8, "gap": 0, "agrees": True}
        assert [layer["name"] for layer in fields["layers"]] == ["embeddings", "layer.0", "layer.1"]
        assert fields["agrees"]
        assert fields["first_layer"] is None

    def test_a_wrong_layer_is_named_and_the_exit_code_tells(self, gptrs, tmp_path):
        folder = save_gpt2(tmp_path / "gpt2")
        with_large_elements_in_layer_1(folder, "h.1.mlp.c_fc.weight")
        assert gptrs("validate", "--model", folder, "--max-tokens", 0).code == 0
        with wrong_for_large_elements() as override:
            run = ("validate", "--model", folder, "--max-tokens", 0, "--override", override)
            result = gptrs(*run, "--per-layer")
            assert result.code == 1
            rows = {line.split()[0]: line.split()[4] for line in result.out.splitlines()[1:5]}
            assert rows == {
                **{"logits": "BEYOND", "embeddings": "ok", "layer.0": "ok", "layer.1": "BEYOND"}
            }
            assert "first state beyond the tolerance: layer.1" in result.out
            assert "`gpt2` DISAGREES with `torch` on random input 0[0]" in result.err
            fields = gptrs(*run, "--per-layer", "--json").json
            assert (fields["agrees"], fields["first_layer"]) == (False, "layer.1")
            assert gptrs(*run).code == 1
            assert gptrs(*run, "--tolerance", 0.9).code == 0

    def test_a_llama_agrees_in_a_table(self, gptrs, tmp_path):
        folder = save_llama(tmp_path / "llama", max_position_embeddings=40)
        result = gptrs("validate", "--model", folder, "--tokens", "5,9,2,11")
        assert result.code == 0
        header, row, empty, *lines = result.out.splitlines()
        assert header.split()[:2] == ["COMPARED", "MAX"]
        assert row.split()[0] == "logits"
        assert row.endswith("ok      f32[1, 4, 97]")
        assert lines == [
            "the best is the same: 100.00%; the best five: 100.00%",
            "greedy tokens: all 32 are the same",
        ]
        assert empty == ""
        assert "`llama` agrees with `torch` on tokens; tolerance 0.0001 of the" in result.err

    def test_images_are_prepared_by_both(self, gptrs, tmp_path):
        image = pytest.importorskip("PIL.Image", reason="images need Pillow")
        folder = save_image_model(tmp_path / "resnet", "ResNet", **RESNET)
        made_up = gptrs("validate", "--model", folder, "--per-layer", "--json")
        assert made_up.code == 0, made_up.err
        fields = made_up.json
        assert (fields["images"], fields["greedy"]) == (None, None)
        assert fields["output"]["type"] == "f32[2, 7]"
        assert [layer["name"] for layer in fields["layers"]] == ["embeddings", "layer.0", "layer.1"]

        pixels = np.random.default_rng(2).integers(0, 256, (50, 70, 3), np.uint8)
        cat, other = tmp_path / "cat.png", tmp_path / "other.npy"
        image.fromarray(pixels).save(cat)
        write_archive(other, {"x": np.ones((2, 3, 32, 32), np.float32)})
        refused = gptrs("validate", "--model", folder, "--input", cat, "--json")
        assert refused.code == 3
        assert "transformers cannot load" in refused.json["message"]
        settings = folder / "preprocessor_config.json"
        settings.write_text(json.dumps(PREPROCESSOR))
        run = ("validate", "--model", folder, "--input", other, "--input", cat, "--json")
        fields = gptrs(*run).json
        assert fields["agrees"]
        assert fields["inputs"] == [f"{other}[0]", f"{other}[1]", str(cat)]
        assert fields["images"]["type"] == "f32[1, 3, 32, 32]"
        assert fields["images"]["relative_max_error"] < 1e-6

    def test_an_embedder_agrees_by_its_vectors(self, gptrs, tmp_path):
        folder = save_tiny_bert(tmp_path / "bert")
        result = gptrs("validate", "--model", folder, "--prompt", "the cat sat", "--per-layer")
        assert result.code == 0, result.err
        assert result.out.splitlines()[1].split()[0] == "vectors"
        assert "least cosine of two vectors: 1.0000000" in result.out
        with_large_elements_in_layer_1(folder, "layer.1.intermediate.dense.weight")
        with wrong_for_large_elements() as override:
            run = ("validate", "--model", folder, "--override", override, "--per-layer")
            fields = gptrs(*run, "--json").json
        assert fields["first_layer"] == "layer.1"
        assert fields["cosine"] < 1

    def test_weights_of_other_names_are_refused(self, gptrs, tmp_path):
        result = gptrs("validate", "--model", save_tiny_resnet(tmp_path / "m"))
        assert result.code == 3
        assert "transformers finds no weights for" in result.err
        assert "compare a folder that transformers saved" in result.err

    def test_a_gguf_file_agrees(self, gptrs, tmp_path):
        pytest.importorskip("gguf", reason="transformers reads such files with it")
        file = tmp_path / "tiny.gguf"
        # transformers needs these keys, which llama.cpp may leave out.
        more = {"llama.vocab_size": 40, "llama.attention.head_count_kv": 2}
        file.write_bytes(tiny_gguf.llama(("Q8_0",), more=more))
        run = ("validate", "--model", file, "--backend", "ref", "--max-tokens", 4)
        result = gptrs(*run, "--precision", "f32", "--tokens", "1,2,3", "--json")
        assert result.code == 0, result.err
        assert (result.json["agrees"], result.json["greedy"]["equal"]) == (True, 4)

    def test_a_checkpoint_file_is_refused(self, gptrs, gpt2, tmp_path):
        file = tmp_path / "m.gptrschk"
        assert gptrs("convert", gpt2, file).code == 0
        result = gptrs("validate", "--model", file)
        assert result.code == 3
        assert f"`{file}` is a file that transformers does not read" in result.err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--tolerance", "-1"), "a tolerance is a number >= 0, got -1"),
            (("--inputs", "0"), "invalid value for '--inputs'"),
            (("--tokens", "97"), "token 97 is not in the vocabulary of 97 tokens"),
        ],
    )
    def test_wrong_options_are_usage_errors(self, gptrs, gpt2, options, message):
        result = gptrs("validate", "--model", gpt2, *options)
        assert result.code == 2
        assert message in result.err
