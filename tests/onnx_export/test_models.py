"""Models and programs as ONNX files: `gptrs convert`, run again by us and by ONNX Runtime."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

onnx = pytest.importorskip("onnx", reason="these tests write ONNX models")
torch = pytest.importorskip("torch", reason="models with random weights are made by torch")
transformers = pytest.importorskip("transformers", reason="models are made by transformers")

import gptrs_onnx  # noqa: E402
from gptrs import get_backend  # noqa: E402
from gptrs.api.importers import OutgoingModel  # noqa: E402
from gptrs.api.programs import run_program, specialize  # noqa: E402
from gptrs.errors import UnsupportedError  # noqa: E402
from gptrs.ir import parse_program  # noqa: E402
from gptrs_cli.main import main  # noqa: E402
from gptrs_runtime.load import load_model  # noqa: E402
from gptrs_runtime.outgoing_model import outgoing_model, outgoing_program  # noqa: E402

BATCH, LENGTH = 2, 5
TEXT = {"vocab_size": 64, "max_position_embeddings": 64, "initializer_range": 0.3}
BLOCKS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
MODELS = {
    "bert": ("Bert", "BertModel", {**TEXT, **BLOCKS}),
    "classes": ("Bert", "BertForSequenceClassification", {**TEXT, **BLOCKS, "num_labels": 3}),
    "words": ("Bert", "BertForMaskedLM", {**TEXT, **BLOCKS}),
    "tags": ("Bert", "BertForTokenClassification", {**TEXT, **BLOCKS, "num_labels": 3}),
    "gpt2": (
        "GPT2",
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64},
    ),
    "llama": ("Llama", "LlamaForCausalLM", {**TEXT, **BLOCKS, "num_key_value_heads": 2}),
    "windows": (
        "Mistral",
        "MistralForCausalLM",
        {**TEXT, **BLOCKS, "num_key_value_heads": 2, "sliding_window": 3},
    ),
    "vit": (
        "ViT",
        "ViTForImageClassification",
        {**BLOCKS, "image_size": 32, "patch_size": 8, "initializer_range": 0.3, "num_labels": 5},
    ),
    "resnet": (
        "ResNet",
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
    ),
    "regnet": (
        "RegNet",
        "RegNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
    ),
    "convnext": (
        "ConvNext",
        "ConvNextForImageClassification",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "initializer_range": 0.3},
    ),
    "mobilenet": ("MobileNetV2", "MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}),
}


def saved(folder: Path, name: str) -> Path:
    """Save a model with random weights."""
    config, kind, settings = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, kind)(getattr(transformers, f"{config}Config")(**settings)).eval()
    made.save_pretrained(folder / name)
    return folder / name


def made_up(model: OutgoingModel) -> dict[str, np.ndarray]:
    """Return inputs: random numbers, and masks with padding in the second text."""
    rng = np.random.default_rng(0)
    sizes = {"batch": BATCH, "sequence": LENGTH}
    inputs: dict[str, np.ndarray] = {}
    for each in model.inputs:
        shape = [sizes.get(str(size), size) for size in each.shape or ()]
        if each.dtype.is_float:
            inputs[each.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            inputs[each.name] = rng.integers(0, 50, shape)
    if "attention_mask" in inputs:
        inputs["attention_mask"] = np.array([[1] * LENGTH, [1, 1, 1, 0, 0]])
    if "token_type_ids" in inputs:
        inputs["token_type_ids"] = np.array([[0, 0, 1, 1, 1]] * BATCH)
    return inputs


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same_bits_after_a_round_trip(name: str, tmp_path: Path) -> None:
    folder, file = saved(tmp_path, name), tmp_path / "out.onnx"
    model = load_model(folder, backend="ref")
    edge = {"height": 32, "width": 32} if model.takes_images else {}
    outgoing = outgoing_model(model, edge)
    assert gptrs_onnx.export(outgoing, file) == [file, tmp_path / "out.onnx.data"]
    onnx.checker.check_model(str(file), full_check=True)
    inputs = made_up(outgoing)
    weights = [each.whole() for each in outgoing.weights]
    arrays = dict(zip(outgoing.program.inputs, [*inputs.values(), *weights], strict=True))
    program = specialize(outgoing.program, dict(enumerate((BATCH, LENGTH))))
    (wanted,) = run_program(program, arrays, get_backend("ref"))
    (found,) = gptrs_onnx.load(file, "ref")(**inputs).values()
    assert found.tobytes() == wanted.tobytes()
    require_equal_to_the_model(model, inputs, wanted)
    runtime = pytest.importorskip("onnxruntime", reason="a peer that runs the file")
    (elsewhere,) = runtime.InferenceSession(str(file)).run(None, inputs)
    np.testing.assert_allclose(elsewhere, wanted, atol=2e-5 * np.abs(wanted).max())


def require_equal_to_the_model(model, inputs: dict[str, np.ndarray], wanted: np.ndarray) -> None:
    """Compare with the model as `gptrs` runs it, on the rows that are no padding."""
    if "attention_mask" not in inputs:
        (given,) = inputs.values()
        direct = model.forward(given)
    else:
        tokens, mask = inputs["input_ids"], inputs["attention_mask"] != 0
        if "text_classifier" in model.capabilities:
            classes = model.text_classifier()
            direct = classes.classify_texts(tokens, inputs["token_type_ids"], mask)
        elif "token_classifier" in model.capabilities:
            direct = model.token_classifier().classify_tokens(tokens, mask)
        elif "masked_lm" in model.capabilities:
            places = np.arange(tokens.size)
            direct = model.masked_lm().predict_tokens(tokens, mask, places).reshape(wanted.shape)
        else:
            direct = model.text_embedder().encode(tokens, mask)
    np.testing.assert_allclose(direct, wanted, atol=2e-5 * np.abs(wanted).max())


def test_the_command_writes_models_and_says_what_they_hold_for(tmp_path, capsys) -> None:
    folder, file = saved(tmp_path, "bert"), tmp_path / "m.onnx"
    assert main(["convert", str(folder), str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["format"] == "onnx"
    assert told["limits"] == ["sequence <= 64"]
    assert told["files"] == [str(file), f"{file}.data"]
    assert main(["convert", str(folder), str(file)]) == 2
    assert "exists; `--force` replaces it" in capsys.readouterr().err
    assert main(["convert", str(folder), str(file), "--force"]) == 0
    assert main(["convert", str(folder), str(tmp_path / "n.onnx"), "--symbol", "width=3"]) == 2
    assert "has no size 'width' to choose" in capsys.readouterr().err.replace("`", "'")
    assert not (tmp_path / "n.onnx").exists()


def test_images_are_written_at_the_size_that_is_asked_for(tmp_path, capsys) -> None:
    folder, file = saved(tmp_path, "resnet"), tmp_path / "m.onnx"
    sizes = ["--symbol", "height=32", "--symbol", "width=40"]
    assert main(["convert", str(folder), str(file), *sizes]) == 0
    assert str(gptrs_onnx.load(file).inputs["pixel_values"]) == (
        "pixel_values: f32[batch, 3, 32, 40]"
    )


PROGRAM = """ptir.v0.5
func @main(%x: f32[?0, 4]) -> (f32[4*?0], f32[?0, 4]) {
  %0 = tanh %x : f32[?0, 4]
  %1 = reshape %0 {shape = [-1]} : f32[4*?0]
  return %1, %0
}
"""


def test_the_command_writes_programs(tmp_path, capsys) -> None:
    (tmp_path / "p.ptir").write_text(PROGRAM)
    file = tmp_path / "p.onnx"
    assert main(["convert", str(tmp_path / "p.ptir"), str(file)]) == 0
    assert "a program" in capsys.readouterr().out
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    found = gptrs_onnx.load(file, "ref")(x)
    assert [each.shape for each in found.values()] == [(12,), (3, 4)]
    dims = onnx.load(file).graph.output[0].type.tensor_type.shape.dim
    assert [each.dim_param for each in dims] == ["4*d0"]


def test_names_that_the_writer_would_choose_are_kept_and_those_that_two_have_are_told(
    tmp_path, caplog
) -> None:
    text = """ptir.v0.5
func @main(%a: f32[2], %b: f32[2], %c: f32[2]) -> (f32[2], f32[2]) {
  %0 = sub %a, %b : f32[2]
  %1 = mul %0, %c : f32[2]
  return %1, %0
}
"""
    made = outgoing_program(parse_program(text), "p")
    for names, outputs, told in (
        (("v_0", "v_1", "c_1"), ("result0", "v_2"), ""),
        (("a", "result0", "c"), ("result0_2", "result0_3"), "`result0` is called `result0_3` in"),
    ):
        inputs = tuple(
            replace(each, name=name) for each, name in zip(made.inputs, names, strict=True)
        )
        asked = ("result0_2", "result0") if told else outputs
        gptrs_onnx.export(replace(made, inputs=inputs, outputs=asked), tmp_path / "p.onnx")
        assert told in caplog.text
        assert bool(told) == bool(caplog.text)
        model = gptrs_onnx.load(tmp_path / "p.onnx", "ref")
        assert (tuple(model.inputs), tuple(model.outputs)) == (names, outputs)
        found = model(*np.array([[5, 7], [1, 2], [3, 4]], np.float32))
        assert [each.tolist() for each in found.values()] == [[12, 20], [4, 5]]


COMPLEX = """ptir.v0.5
func @main(%x: cf32[2]) -> cf32[2] {
  %0 = exp %x : cf32[2]
  return %0
}
"""


def test_what_onnx_cannot_say_is_refused_before_anything_is_written(tmp_path, capsys) -> None:
    text = """ptir.v0.5
func @main(%x: ui64[2]) -> f32[3] {
  %0 = rng_uniform %x {shape = [3], dtype = f32} : f32[3]
  return %0
}
"""
    (tmp_path / "p.ptir").write_text(text)
    assert main(["convert", str(tmp_path / "p.ptir"), str(tmp_path / "p.onnx")]) != 0
    assert "`rng_uniform` cannot be written as ONNX" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["p.ptir"]
    with pytest.raises(UnsupportedError, match="takes no cf32"):
        gptrs_onnx.to_proto(outgoing_program(parse_program(COMPLEX), "p"))


def test_a_name_that_is_no_utf8_is_refused_for_files_with_weights(tmp_path, capsys) -> None:
    named = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.onnx")
    assert main(["convert", "demo", named]) == 3
    assert (
        r"ONNX names the file of the weights in UTF-8, and `m\udcff.onnx`"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_weights_that_cannot_be_read_leave_the_old_model(tmp_path) -> None:
    folder, file = saved(tmp_path, "gpt2"), tmp_path / "m.onnx"
    outgoing = outgoing_model(load_model(folder, backend="ref"), {})
    gptrs_onnx.export(outgoing, file)
    before = file.read_bytes(), (tmp_path / "m.onnx.data").read_bytes()
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(Exception, match=r"model\.safetensors|changed|bytes"):
        gptrs_onnx.export(outgoing_model(load_model(folder, backend="ref"), {}), file)
    assert (file.read_bytes(), (tmp_path / "m.onnx.data").read_bytes()) == before
