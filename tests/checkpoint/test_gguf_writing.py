"""GGUF files that are written have the bits that were rounded, and the words of llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptrs
from fuzzing import tiny_gguf
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.gguf_header import MetadataValue
from gptrs.checkpoint.formats.gguf_writer import GgufOutgoing, write_gguf
from gptrs.errors import CheckpointError, GptrsError
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.gguf_export.tensors import read_rotary
from gptrs_runtime.gguf_export.write import vocabulary_of
from gptrs_runtime.quantizing.plan import weight_type
from gptrs_runtime.quantizing.quantizing_source import QuantizingSource
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.gguf_metadata import settings_of
from gptrs_runtime.sources.gguf_model import GgufModel
from models.llama_support import edit_config
from runtime.tiny_gpt2 import save_tiny_gpt2

TYPES = {"q8": "Q8_0", "q4": "Q4_0", "q4_asym": "Q4_1"}
SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "head_dim": 16,
    "max_position_embeddings": 128,
}  # fmt: skip
TOKENS = np.arange(12)[np.newaxis] % 90


def tiny(folder: Path, kind: str, **settings: Any) -> Path:
    """Save a tiny model of `kind` as transformers has it, in f32."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {key: size for key, size in SIZES.items() if (kind, key) != ("falcon", "head_dim")}
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **SPECIAL, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.3)
        elif weight.ndim == 1:
            torch.nn.init.normal_(weight, mean=1.0, std=0.2)
    model.save_pretrained(folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("type", TYPES)
def test_blocks_are_what_the_package_gguf_reads(tmp_path: Path, type: str) -> None:
    """The demo model is a GPT-2, whose layers are stored turned here, with a tied head."""
    package = pytest.importorskip("gguf", reason="the package gguf is not installed")
    path = tmp_path / "x.gguf"
    report = gptrs.quantize("demo", path, type, keep=["*.h.3.*"])
    source, copy = find_model(model_path("demo")).weights, GgufModel.open(path).open_weights()
    read = {tensor.name: tensor for tensor in package.GGUFReader(path).tensors}
    assert read["blk.0.ffn_up.weight"].tensor_type.name == TYPES[type]
    assert read["token_embd.weight"].tensor_type.name == "Q8_0"
    assert read["blk.3.ffn_up.weight"].tensor_type.name == "F16"
    assert read["blk.3.attn_norm.weight"].tensor_type.name == "F32"
    wanted = package.quants.dequantize(
        read["blk.0.ffn_up.weight"].data, read["blk.0.ffn_up.weight"].tensor_type
    )
    np.testing.assert_array_equal(copy.load("transformer.h.0.mlp.c_fc.weight"), wanted.T)
    assert set(copy.names()) == set(source.names())
    for each in report.quantized[::6]:
        exact = source.load(each.name).astype(np.float32)
        difference = copy.load(each.name) - exact
        assert each.max_error == pytest.approx(np.abs(difference).max(), rel=1e-6)
    for name in report.kept:
        np.testing.assert_array_equal(copy.load(name), source.load(name))
    assert [note for note in report.notes if "llama.cpp knows no such tokenizer" in note]
    text = "def main(self):\n    return 1"
    loaded = gptrs.load_model(path, backend="ref")
    assert loaded.tokenizer.encode(text) == gptrs.load_model().tokenizer.encode(text)


OWN: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "mistral": {"sliding_window": 64},
    "olmo2": {},
    "granite": {
        "embedding_multiplier": 2.0, "attention_multiplier": 0.2, "residual_multiplier": 0.7,
        "logits_scaling": 3.0,
    },
    "starcoder2": {"sliding_window": None},
    "phi3": {"sliding_window": None, "partial_rotary_factor": 0.5},
    "stablelm": {"use_qkv_bias": True},
    "cohere": {"logit_scale": 0.5},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16, "sliding_window": 8},
    "nemotron": {},
    "arcee": {},
    "gemma3_text": {
        "query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 7,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "cohere2": {"logit_scale": 0.5, "sliding_window": 8, "num_hidden_layers": 5},
    "olmo": {"clip_qkv": 0.9},
    "smollm3": {"num_hidden_layers": 5},
    "glm4": {"attention_bias": True, "partial_rotary_factor": 0.5},
    "ernie4_5": {},
    "phi": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"rotary_pct": 0.5, "use_parallel_residual": False},
    "bloom": {"n_layer": 1, "n_head": 4},
    "falcon": {"multi_query": True, "ffn_hidden_size": 96},
    "gpt_bigcode": {
        "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 128, "n_inner": 96,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4},
    "exaone4": {"sliding_window": 8, "sliding_window_pattern": 4, "num_hidden_layers": 5},
    "seed_oss": {"attention_bias": True},
    "hunyuan_v1_dense": {},
    "olmo3": {
        "sliding_window": 8, "num_hidden_layers": 5,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                "rope_theta": 1e5,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e5},
        },
    },
    "jais2": {},
    "dots1": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "first_k_dense_replace": 1, "n_shared_experts": 2, "num_hidden_layers": 2,
        "norm_topk_prob": False, "routed_scaling_factor": 1.5,
    },
    "glm4_moe": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "first_k_dense_replace": 1, "num_hidden_layers": 2, "attention_bias": True,
        "use_qk_norm": True,
    },
    "ernie4_5_moe": {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "num_hidden_layers": 2,
        "moe_layer_start_index": 1,
    },
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 8},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
}  # fmt: skip
"""Settings of the kinds that are written."""
CASES = [
    *OWN.items(),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 96}),
]
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.sample(8)
@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_a_file_computes_what_the_folder_does(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    """Bit for bit: rows of queries and keys go there and back."""
    folder, path = tiny(tmp_path / "folder", kind, **settings), tmp_path / "x.gguf"
    report = gptrs.quantize(folder, path, "f32")
    assert (report.quantized, report.bits_per_weight, report.form) == ((), 0.0, "gguf")
    wanted = gptrs.load_model(folder, backend="ref").forward(TOKENS)
    found = gptrs.load_model(path, backend="ref")
    np.testing.assert_array_equal(found.forward(TOKENS), wanted)
    source = find_model(path).weights
    for name in source.names():
        index = tuple(slice(size // 3, size) for size in source.type_of(name).shape)
        np.testing.assert_array_equal(source.read_slice(name, index), source.load(name)[index])
    if kind not in ("llama", "mistral"):
        return
    context = find_model(path).config["max_position_embeddings"]
    assert context == (64 if kind == "mistral" else 128)
    with pytest.raises(GptrsError, match="exists"):
        gptrs.quantize(folder, path, "f32")
    gptrs.quantize(folder, path, "q4", force=True)
    name = "model.layers.0.self_attn.k_proj.weight"
    weights = find_model(folder).weights
    rounded = QuantizingSource(weights, {name: weight_type("q4")}, {name: "linear"})
    np.testing.assert_array_equal(find_model(path).weights.load(name), rounded.load(name))


def test_experts_are_stacked(tmp_path: Path) -> None:
    """As the package `gguf` reads them; the router stays in f32, whatever the others are."""
    package = pytest.importorskip("gguf", reason="the package gguf is not installed")
    folder, path = tiny(tmp_path / "folder", "qwen2_moe", **OWN["qwen2_moe"]), tmp_path / "x.gguf"
    report = gptrs.quantize(folder, path, "q8")
    read = {tensor.name: tensor for tensor in package.GGUFReader(path).tensors}
    names = package.MODEL_TENSORS[package.MODEL_ARCH.QWEN2MOE]
    known = {package.TENSOR_NAMES[name].format(bid=0) for name in names}
    assert {name.rpartition(".")[0] for name in read} <= known
    up = read["blk.0.ffn_up_exps.weight"]
    assert (up.tensor_type.name, list(up.shape)) == ("Q8_0", [64, 32, 4])
    assert read["blk.0.ffn_gate_inp.weight"].tensor_type.name == "F32"
    assert list(read["blk.0.ffn_gate_inp_shexp.weight"].shape) == [64]
    wanted = package.quants.dequantize(up.data, up.tensor_type)
    weights = find_model(path).weights
    for number in range(4):
        name = f"model.layers.0.mlp.experts.{number}.up_proj.weight"
        np.testing.assert_array_equal(weights.load(name), wanted[number])
    assert len([each for each in report.quantized if ".experts." in each.name]) == 12
    loaded = gptrs.load_model(path, backend="numba", precision="f32")
    exact = gptrs.load_model(path, backend="ref").forward(TOKENS)
    np.testing.assert_allclose(loaded.forward(TOKENS), exact, rtol=1e-3, atol=1e-3)
    with pytest.raises(GptrsError, match="not of one type"):
        gptrs.quantize(folder, tmp_path / "y.gguf", "q8", keep=["*.experts.1.*"])


@pytest.mark.parametrize("tokenizer", ["gpt2", "llama"])
def test_a_tokenizer_goes_there_and_back(tmp_path: Path, tokenizer: str) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    first.write_bytes(tiny_gguf.llama(("F32",), tokenizer))
    report = gptrs.quantize(first, second, "q8")
    assert report.notes == ()
    metadata = [GgufModel.open(path)._tokenizer._metadata for path in (first, second)]
    for key in ("model", "merges", "bos_token_id", "eos_token_id", "unknown_token_id"):
        name = f"tokenizer.ggml.{key}"
        assert metadata[0].get(name) == metadata[1].get(name), key
    assert metadata[0].get("tokenizer.chat_template") == metadata[1].get("tokenizer.chat_template")
    tokens = [list(each["tokenizer.ggml.tokens"]) for each in metadata]  # type: ignore[arg-type]
    assert tokens[1][: len(tokens[0])] == tokens[0]
    assert tokens[1][-1] == "[PAD39]"
    models = [gptrs.load_model(path, backend="ref") for path in (first, second)]
    texts = ("the cat1 23", "theca\nT", "<s> the")
    for text in texts:
        assert models[0].tokenizer.encode(text) == models[1].tokenizer.encode(text)


def test_a_token_that_only_the_class_names_does_not_hide_that_of_the_config(tmp_path: Path) -> None:
    folder = save_tiny_gpt2(tmp_path / "m")  # no `<|endoftext|>` in its vocabulary
    edit_config(folder, bos_token_id=7)
    gptrs.quantize(folder, tmp_path / "m.gguf", "q8")
    metadata = GgufModel.open(tmp_path / "m.gguf")._tokenizer._metadata
    assert metadata["tokenizer.ggml.bos_token_id"] == 7


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "fast": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
        "beta_fast": 16.0, "beta_slow": 2.0,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip


@pytest.mark.parametrize("scaling", ROPES)
def test_rotary_scalings(tmp_path: Path, scaling: str) -> None:
    rope = {"rope_theta": 5e5, **ROPES[scaling]}
    folder = tiny(tmp_path / "folder", "llama", rope_parameters=rope, max_position_embeddings=16384)
    gptrs.quantize(folder, tmp_path / "x.gguf", "f32")
    found = find_model(tmp_path / "x.gguf").config["rope_parameters"]
    assert isinstance(found, dict)
    assert found == pytest.approx(rope)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"type": "int8"}, "no weights of the type `int8`"),
        ({"group": 64}, "groups of 32 weights, not of 64"),
        ({"to": "gguf", "destination": "folder"}, "not called like a GGUF file"),
        ({"keep": ["nothing*"]}, "nothing"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    destination = tmp_path / options.pop("destination", "x.gguf")
    with pytest.raises(GptrsError, match=said):
        gptrs.quantize("demo", destination, options.pop("type", "q4"), **options)
    assert not destination.exists()


@pytest.mark.parametrize(
    ("kind", "config", "said"),
    [
        ("resnet", {}, "of the kind `resnet` cannot be written"),
        ("gpt2", {"activation_function": "relu"}, "activation_function"),
        ("opt", {}, "of the kind `opt` cannot be written"),
        ("qwen3_moe", {**SIZES, "num_experts": 4}, "norm_topk_prob"),
        ("olmoe", {**SIZES, "num_key_value_heads": 4, "clip_qkv": 1.0}, "clip_qkv"),
        ("falcon", {**SIZES, "parallel_attn": False}, "parallel_attn"),
        ("falcon", {**SIZES, "alibi": True}, "alibi"),
        ("gpt_neox", {**SIZES, "tie_word_embeddings": True}, "tie_word_embeddings"),
        ("olmoe", {**SIZES, "num_experts": 4}, "num_key_value_heads"),
        ("smollm3", {**SIZES, "no_rope_layers": [0]}, "no_rope_layers"),
        ("gemma3_text", {**SIZES, "rope_local_base_freq": 5e4}, "rope_local_base_freq"),
        ("gemma3_text", {**SIZES, "layer_types": ["full_attention"]}, "layer_types"),
        ("cohere2", {**SIZES, "sliding_window": None}, "sliding_window"),
        ("llama", {**SIZES, "hidden_act": "gelu"}, "hidden_act"),
        (
            "llama",
            {**SIZES, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "DynamicScaling",
        ),
        (
            "llama",
            {**SIZES, "rope_scaling": {**ROPES["llama3"], "high_freq_factor": 8.0}},
            "Llama3Scaling",
        ),
    ],
)
def test_what_llama_cpp_has_no_word_for(kind: str, config: dict[str, Any], said: str) -> None:
    with pytest.raises(GptrsError, match=said):
        settings_of(config, kind, read_rotary)


@pytest.mark.whole
@pytest.mark.parametrize("kind", OWN)
def test_settings_that_config_json_leaves_out_are_the_defaults_of_transformers(kind: str) -> None:
    """Sizes of experts must be there."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    words = ("expert", "moe", "topk", "dense")
    own = {name: OWN[kind][name] for name in OWN[kind] if any(word in name for word in words)}
    whole = transformers.AutoConfig.for_model(kind, **own).to_dict()
    found, wanted = (settings_of(config, kind, read_rotary) for config in (own, whole))
    assert (found.metadata, found.heads) == (wanted.metadata, wanted.heads)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(tiny_gguf.llama(("F32",)))
    with pytest.raises(GptrsError, match="has token 16, the model has 12"):
        vocabulary_of(find_model(path), 12)


def test_metadata_of_every_type_are_read_by_the_package_gguf(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf", reason="the package gguf is not installed")
    metadata: dict[str, MetadataValue] = {
        "a": True, "b": 2**32 - 1, "c": 2**40, "d": 0.5, "e": "text \u00e4", "f": ["x", "yz"],
        "g": np.arange(3, dtype=np.int32), "h": np.ones(2, np.float32),
    }  # fmt: skip
    data = np.arange(40, dtype=np.uint8)
    with (tmp_path / "x.gguf").open("wb") as file:
        write_gguf(file, metadata, [GgufOutgoing(OutgoingTensor.of("t", data), "F32", (2, 5))])
    reader = package.GGUFReader(tmp_path / "x.gguf")
    found = {key: reader.fields[key].contents() for key in metadata}
    assert found == {**metadata, "g": [0, 1, 2], "h": [1.0, 1.0]}
    assert reader.tensors[0].data.tobytes() == data.tobytes()
    assert list(reader.tensors[0].shape) == [5, 2]
    for key, value, name, said in (("k", -1, "t", "not a u64"), ("k", 1, "t" * 64, "63 bytes")):
        tensor = GgufOutgoing(OutgoingTensor.of(name, data), "F32", (2, 5))
        with (tmp_path / "y").open("wb") as file, pytest.raises(CheckpointError, match=said):
            write_gguf(file, {key: value}, [tensor])


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_llama_cpp_says_the_same(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    """Greedily."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = tmp_path / "x.gguf"
    folder = tiny(tmp_path / "folder", kind, **{"num_hidden_layers": 2, **settings})
    gptrs.quantize(folder, path, "f32")
    theirs = llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, verbose=False)
    found: list[int] = []
    for token in theirs.generate([3, 1, 4, 1, 5], temp=0.0, top_k=1, repeat_penalty=1.0):
        found.append(token)
        if len(found) == 12:
            break
    ours = gptrs.load_model(path, backend="ref")
    sampling = gptrs.Sampling(temperature=0)
    made = gptrs.generate(ours, [3, 1, 4, 1, 5], max_tokens=12, sampling=sampling, ignore_eos=True)
    assert list(made.token_ids) == found
