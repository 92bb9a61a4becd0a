"""`gptrs.quantize` and `load_model(weights=..)`: what is written is what the errors say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptrs
from fuzzing import tiny_gguf
from gptrs.checkpoint.params import Params
from gptrs.errors import GptrsError, ModelError, UsageError
from gptrs.nn.layers import Linear
from gptrs_runtime.quantizing.quantizing_source import QuantizingSource
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.made_tensors import MadeTensors
from runtime.tiny_resnet import save_tiny_resnet

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = np.arange(12)[np.newaxis] % 90
TYPES = ("q8", "q4", "q4_asym", "int8")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Llama with an untied head, in bf16."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
        tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def logits(path: Path, **options: Any) -> np.ndarray:
    return gptrs.load_model(path, backend="ref", **options).forward(TOKENS)


@pytest.mark.parametrize("type", TYPES)
def test_a_folder_has_the_errors_that_are_told(llama: Path, tmp_path: Path, type: str) -> None:
    out = tmp_path / "out"
    steps: list[tuple[int, int]] = []
    report = gptrs.quantize(
        llama, out, type, progress=lambda done, total, _: steps.append((done, total))
    )
    assert steps[-1][0] == steps[-1][1]
    source, copy = find_model(llama).weights, find_model(out).weights
    assert isinstance(copy, MadeTensors)
    assert set(copy.names()) == set(source.names())
    assert {each.name for each in report.quantized} == {
        name for name in source.names() if copy.quantized(name)
    }
    assert len(report.quantized) == 7
    for each in report.quantized:
        exact = source.load(each.name).astype(np.float32)
        difference = copy.load(each.name) - exact
        assert each.max_error == pytest.approx(np.abs(difference).max(), rel=1e-6)
        relative = np.linalg.norm(difference) / np.linalg.norm(exact)
        assert each.relative_rms == pytest.approx(relative, rel=1e-4)
    for name in report.kept:
        np.testing.assert_array_equal(copy.load(name), source.load(name))
    stated = {"q8": 8.5, "q4": 4.5, "q4_asym": 4.625}.get(type)
    assert stated is None or report.bits_per_weight == stated
    exact, found = logits(llama), logits(out)
    assert np.abs(found - exact).max() < (0.1 if "8" in type else 0.8) * np.abs(exact).max()


@pytest.mark.parametrize("precision", ["int8", "f32"])
@pytest.mark.parametrize("type", ["q8", "q4", "int8", "gguf"])
def test_products_have_the_errors_that_are_told(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str, precision: str
) -> None:
    monkeypatch.setenv("GPTRS_NUMBA_PRECISION", precision)
    backend = gptrs.get_backend("numba")
    backend = backend.with_precision(backend.quantized_precision())
    out = tmp_path / ("out.gguf" if type == "gguf" else "out")
    report = gptrs.quantize(llama, out, "q8" if type == "gguf" else type)
    assert report.precision == precision
    source, copy = find_model(llama).weights, find_model(out).weights
    of_layer = [each for each in report.quantized if each.name.endswith("down_proj.weight")]
    (told,) = of_layer
    outputs, inputs = told.shape
    params = Params(copy, backend=backend)
    for scope in told.name.split(".")[:-1]:
        params = params / scope
    layer = Linear(params, inputs, outputs, bias=False)
    x = np.random.default_rng(1).standard_normal((300, inputs)).astype(np.float32)
    with gptrs.use_backend(backend):
        found = layer(gptrs.tensor(x)).numpy()
    exact = x @ source.load(told.name).astype(np.float32).T
    relative = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert told.product_rms == pytest.approx(relative, rel=0.15)
    assert report.product_rms == pytest.approx(
        np.average(
            [each.product_rms for each in report.quantized],
            weights=[np.prod(each.shape) for each in report.quantized],
        )
    )


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning")
@pytest.mark.parametrize("type", TYPES)
def test_transformers_computes_the_same(llama: Path, tmp_path: Path, type: str) -> None:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    gptrs.quantize(llama, tmp_path / "out", type, rounding="nearest")
    # Version 0.20 makes no room for packed zero points unless it decodes them at once.
    decoded = transformers.CompressedTensorsConfig(dequantize=True)
    options = {"quantization_config": decoded} if type == "q4_asym" else {}
    model = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, **options
    )
    with torch.no_grad():
        theirs = model(torch.as_tensor(TOKENS)).logits.numpy()
    # Decoded at once, weights are computed in f16, the type of the scales.
    limit = 1e-2 if options else 1e-5
    assert np.abs(logits(tmp_path / "out") - theirs).max() < limit * np.abs(theirs).max()


def test_groups_and_patterns(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = gptrs.quantize(llama, out, "q4", group=64, keep=["*.mlp.*", "*k_proj*"])
    assert {each.name.split(".")[-2] for each in report.quantized} == {"q_proj", "v_proj", "o_proj"}
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["weights"]["group_size"] == 64
    assert set(config["ignore"]) == {
        "lm_head", *(f"model.layers.0.{name}_proj" for name in
                     ("mlp.gate", "mlp.up", "mlp.down", "self_attn.k")),
    }  # fmt: skip
    with pytest.raises(UsageError, match="not empty"):
        gptrs.quantize(llama, out)
    gptrs.quantize(llama, out, "q8", force=True)
    again = gptrs.quantize(out, tmp_path / "again", "q4", group=0)
    assert again.bits_per_weight == pytest.approx(4.25, abs=0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"type": "q3"}, "q3"),
        ({"group": 12}, "12"),
        ({"keep": ["nothing*"]}, "nothing"),
        ({"keep": ["*"]}, "no weights that can be quantized"),
        ({"rounding": "best"}, "best"),
    ],
)
def test_what_cannot_be_done_is_refused(
    llama: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(GptrsError, match=said):
        gptrs.quantize(llama, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["m.gptrschk", "m.safetensors", "m.onnx", "m.ptir"])
def test_a_folder_is_not_called_like_a_file(llama: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}` is called like a file"):
        gptrs.quantize(llama, tmp_path / name, "q8")
    assert not (tmp_path / name).exists()


def test_layers_that_are_stored_turned_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="inputs, outputs"):
        gptrs.quantize("demo", tmp_path / "out")


@pytest.mark.parametrize(("type", "most"), [("q8", 0.012), ("q4", 0.2)])
def test_weights_are_quantized_at_load(type: str, most: float) -> None:
    """The demo model is a GPT-2 with a tied head: its layers are stored turned."""
    exact = gptrs.load_model(backend="ref").forward(TOKENS)
    model = gptrs.load_model(backend="ref", weights=type)
    found = model.forward(TOKENS)
    assert model.weight_type == type
    assert 0 < np.abs(found - exact).max() < most * np.abs(exact).max()
    decoded = {name: tensor.numpy() for name, tensor in model.parameters().items()}
    table = decoded["transformer.wte.weight"]
    plain = gptrs.load_model(backend="ref").parameters()["transformer.wte.weight"].numpy()
    assert 0 < np.abs(table - plain).max() < 0.01 * np.abs(plain).max()


def test_a_backend_gets_the_same_of_parts_and_of_values(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that rounds no activations."""
    monkeypatch.setenv("GPTRS_NUMBA_PRECISION", "f32")
    model = gptrs.load_model(llama, backend="ref", weights="q4")
    assert isinstance(model.weights, QuantizingSource)
    decoded = gptrs.load_model(llama, backend="numba", weights="q4").forward(TOKENS)
    np.testing.assert_allclose(model.forward(TOKENS), decoded, rtol=0, atol=1e-4)


def test_a_model_without_weights_to_quantize_is_refused(tmp_path: Path) -> None:
    """It said of itself that it was quantized."""
    folder = save_tiny_resnet(tmp_path / "m")
    with pytest.raises(ModelError, match="`m` has no weights that can be quantized to `q8`"):
        gptrs.load_model(folder, backend="ref", weights="q8")


def test_weights_that_are_quantized_already_are_refused(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf.llama())
    with pytest.raises(UsageError, match="quantized already"):
        gptrs.load_model(path, backend="ref", weights="q4")
    with pytest.raises(UsageError, match="budget"):
        gptrs.load_model(llama, backend="ref", weights="q4", weight_budget="50%")
    with pytest.raises(UsageError, match="q5"):
        gptrs.load_model(llama, backend="ref", weights="q5")
