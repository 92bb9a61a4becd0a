"""gpt-oss: experts in MXFP4 as they lie and in 2 bytes, sinks that matter, alternating windows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gptrs
from fuzzing import tiny_gguf
from gptrs.errors import CheckpointError, ModelError
from gptrs.nn import ExpertMatrices
from gptrs_runtime.sources.find_model import find_model
from models.llama_support import YARN, assert_close, edit_config, save_llama, some_tokens
from models.models_support import greedy_tokens, torch_logits

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")
safetensors = pytest.importorskip("safetensors.torch", reason="folders are written with it")

GREEDY = gptrs.Sampling(temperature=0)
SETTINGS: dict[str, object] = {
    **{"head_dim": 8, "sliding_window": 12, "num_hidden_layers": 2, "hidden_size": 64},
    **{"num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 32},
    **{"swiglu_limit": 2.0, "swiglu_alpha": 1.3},
    "rope_parameters": {**YARN, "truncate": False, "rope_theta": 150000.0},
}
CASES = {
    "bfloat16": {"saved_dtype": "bfloat16"},
    "no biases, all layers alike": {
        **{"attention_bias": False, "layer_types": ["full_attention"] * 2},
        **{"sliding_window": 5, "tie_word_embeddings": True},
    },
}


def save(folder: Path, **settings: object) -> Path:
    """Save a model whose sinks are as large as scores."""
    save_llama(folder, "GptOss", **{**SETTINGS, **settings})
    path = folder / "model.safetensors"
    tensors = safetensors.load_file(path)
    for name in tensors:
        if name.endswith("sinks"):
            tensors[name] = tensors[name] * 10
    safetensors.save_file(tensors, path, metadata={"format": "pt"})
    return folder


def save_in_mxfp4(folder: Path) -> Path:
    """Save experts as random codes and exponents, as released models have them."""
    save(folder, saved_dtype="bfloat16")
    path = folder / "model.safetensors"
    tensors = safetensors.load_file(path)
    random = np.random.default_rng(3)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        blocks = random.integers(0, 256, (*shape, 16), np.uint8)
        scales = random.integers(122, 126, shape).astype(np.uint8)
        tensors[f"{name}_blocks"] = torch.from_numpy(blocks)
        tensors[f"{name}_scales"] = torch.from_numpy(scales)
    safetensors.save_file(tensors, path, metadata={"format": "pt"})
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": [*kept, "lm_head"]}
    edit_config(folder, quantization_config=quantization)
    return folder


def dequantized(folder: Path) -> Path:
    """Write the same model with experts as floats, by the table of the format."""
    values = np.array(
        [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32
    )
    there = folder.with_name("floats")
    there.mkdir()
    tensors = safetensors.load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_blocks")]:
        blocks = tensors.pop(name).numpy()
        exponents = tensors.pop(name.replace("_blocks", "_scales")).numpy().astype(np.int32)
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:3], 32)
        whole = np.ldexp(values[codes], exponents[..., None] - 127)
        whole = whole.reshape(*blocks.shape[:2], -1).swapaxes(1, 2)
        tensors[name.removesuffix("_blocks")] = torch.from_numpy(np.ascontiguousarray(whole))
    safetensors.save_file(tensors, there / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (there / "config.json").write_text(json.dumps(config))
    return there


def assert_parity(ours: Path, theirs: Path, backend: str) -> None:
    """Logits and greedy tokens of one folder here, of another there."""
    model = gptrs.load_model(ours, backend=backend, precision="f32")
    tokens = some_tokens(2, 40)
    assert_close(model.forward(tokens), torch_logits(theirs, tokens))
    prompt = tokens[0, :9].tolist()
    found = gptrs.generate(model, prompt, max_tokens=24, sampling=GREEDY, ignore_eos=True)
    assert list(found.token_ids) == greedy_tokens(theirs, prompt, 24)


@pytest.mark.parametrize("name", CASES)
def test_parity(tmp_path, backend_name, name):
    folder = save(tmp_path / "m", **CASES[name])
    assert_parity(folder, folder, backend_name)


def test_experts_in_mxfp4_are_computed_as_they_lie(tmp_path, backend_name):
    folder = save_in_mxfp4(tmp_path / "m")
    floats = dequantized(folder)
    assert_parity(folder, floats, backend_name)
    model = gptrs.load_model(folder, backend=backend_name)
    matrices = [x for x in model.named_modules().values() if isinstance(x, ExpertMatrices)]
    assert len(matrices) == 4
    for each in matrices:
        assert each.weight is None
        assert str(each.parts["codes"].dtype) == "ui8"
        assert each.parts["codes"].shape[0] == 5
    tokens = some_tokens(2, 40)
    found, wanted = model.forward(tokens), torch_logits(floats, tokens)
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.999


def gguf_file(path: Path) -> Path:
    """Write a file with experts in MXFP4, as llama.cpp names and stacks them."""
    width, inner, count, heads, head_dim = 64, 32, 4, 4, 16
    random = np.random.default_rng(5)

    def floats(*shape: int) -> tiny_gguf.Stored:
        drawn = (random.normal(size=shape) / 4).astype(np.float32)
        return tiny_gguf.NUMBERS["F32"], shape, drawn.tobytes()

    tensors = {"token_embd.weight": floats(99, width), "output_norm.weight": floats(width)}
    tensors["output.weight"] = floats(99, width)
    for layer in range(2):
        sizes = {
            **{"attn_q": (heads * head_dim, width), "attn_k": (2 * head_dim, width)},
            **{"attn_v": (2 * head_dim, width), "attn_output": (width, heads * head_dim)},
            "ffn_gate_inp": (count, width),
        }
        own = {f"{name}.weight": floats(*shape) for name, shape in sizes.items()}
        own |= {f"{name}.bias": floats(shape[0]) for name, shape in sizes.items()}
        for name in ("attn_norm.weight", "post_attention_norm.weight"):
            own[name] = floats(width)
        own["attn_sinks.weight"] = floats(heads)
        for name, shape in {
            "gate": (inner, width), "up": (inner, width), "down": (width, inner)
        }.items():  # fmt: skip
            stack = tiny_gguf.random_blocks("MXFP4", (count, *shape), layer)
            own |= {f"ffn_{name}_exps.weight": stack, f"ffn_{name}_exps.bias": floats(4, shape[0])}
        tensors |= {f"blk.{layer}.{name}": stored for name, stored in own.items()}
    settings = {
        **{"block_count": 2, "context_length": 512, "embedding_length": width},
        **{"feed_forward_length": inner, "attention.head_count": heads},
        **{"attention.head_count_kv": 2, "attention.key_length": head_dim},
        **{"attention.value_length": head_dim, "attention.layer_norm_rms_epsilon": 1e-5},
        **{"attention.sliding_window": 12, "expert_count": count, "expert_used_count": 2},
        **{"expert_feed_forward_length": inner, "rope.freq_base": 150000.0},
        **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
        "rope.scaling.original_context_length": 128,
    }
    named = {f"gpt-oss.{key}": value for key, value in settings.items()}
    path.write_bytes(tiny_gguf.gguf({"general.architecture": "gpt-oss", **named}, tensors))
    return path


def folder_of(path: Path, folder: Path) -> Path:
    """Write the model of a file as transformers has it: joined experts of floats."""
    model = find_model(path)
    weights = model.weights
    tensors = {name: weights.load(name) for name in weights.names()}
    for layer in range(2):
        scope = f"model.layers.{layer}.mlp.experts."
        for kind in ("weight", "bias"):
            names = [f"{scope}{{}}{each}_proj.{kind}" for each in ("gate", "up", "down")]
            gate, up, down = (
                np.stack([tensors.pop(name.format(f"{i}.")).T for i in range(4)])
                if kind == "weight"
                else tensors.pop(name.format(""))
                for name in names
            )
            end = "" if kind == "weight" else "_bias"
            tensors[f"{scope}gate_up_proj{end}"] = np.stack([gate, up], -1).reshape(
                *gate.shape[:-1], -1
            )
            tensors[f"{scope}down_proj{end}"] = down
    folder.mkdir()
    kept = {name: torch.from_numpy(np.array(each)) for name, each in tensors.items()}
    safetensors.save_file(
        {name: each.contiguous() for name, each in kept.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = {**model.config, "architectures": ["GptOssForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_gguf_file_is_read(tmp_path):
    path = gguf_file(tmp_path / "x.gguf")
    folder = folder_of(path, tmp_path / "m")
    model = gptrs.load_model(path, backend="ref")
    matrices = [x for x in model.named_modules().values() if isinstance(x, ExpertMatrices)]
    assert [str(each.parts["codes"].dtype) for each in matrices] == ["ui8"] * 6
    tokens = some_tokens(2, 40)
    assert_close(model.forward(tokens), torch_logits(folder, tokens))
    with pytest.raises(ModelError, match="`gpt_oss` cannot be written"):
        gptrs.quantize(folder, tmp_path / "y.gguf", "q8")


def test_transformers_reads_the_same_mxfp4(tmp_path):
    pytest.importorskip("accelerate", reason="transformers reads MXFP4 with it")
    folder = save_in_mxfp4(tmp_path / "m")
    tokens = some_tokens(1, 20)
    assert_close(torch_logits(folder, tokens), torch_logits(dequantized(folder), tokens))


def test_blocks_that_do_not_fit_are_refused(tmp_path):
    folder = save_in_mxfp4(tmp_path / "m")
    path = folder / "model.safetensors"
    tensors = safetensors.load_file(path)
    name = next(name for name in tensors if name.endswith("down_proj_scales"))
    tensors[name] = tensors[name][:, :-1].contiguous()
    safetensors.save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"down_proj_blocks.*with scales of"):
        gptrs.load_model(folder, backend="ref")


def test_other_methods_are_refused_by_name(tmp_path):
    folder = save(tmp_path / "m")
    edit_config(folder, quantization_config={"quant_method": "hqq"})
    with pytest.raises(ModelError, match="hqq"):
        gptrs.load_model(folder, backend="ref")


def test_a_base_of_frequencies_beside_the_default_scaling_counts(tmp_path):
    folder = save(tmp_path / "m")
    edit_config(folder, rope_parameters=None, rope_theta=50.0)
    tokens = some_tokens(1, 20)
    wanted = torch_logits(folder, tokens)
    assert_close(gptrs.load_model(folder, backend="ref").forward(tokens), wanted)
