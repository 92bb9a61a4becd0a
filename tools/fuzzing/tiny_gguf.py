"""Writing GGUF files, and tiny models in them, with weights of random bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from gptrs.checkpoint.formats.gguf_types import GGUF_TYPES

Value = bool | int | float | str | Sequence[str] | Sequence[int] | Sequence[float]
Stored = tuple[int, Sequence[int], bytes]
"""A tensor: the number of its type, its shape, its bytes."""

NUMBERS = {type_.name: number for number, type_ in GGUF_TYPES.items()}
"""The numbers of types by their names."""
_ALIGNMENT = 32


def gguf(metadata: Mapping[str, Value], tensors: Mapping[str, Stored]) -> bytes:
    """Return a file of version 3 with these metadata and tensors."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    header += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, (number, shape, content) in tensors.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        header += _text(name) + dims + struct.pack("<IQ", number, len(data))
        data += content + bytes(-len(content) % _ALIGNMENT)
    return header + bytes(-len(header) % _ALIGNMENT) + data


def random_blocks(type_name: str, shape: Sequence[int], seed: int) -> Stored:
    """Return a tensor of random blocks, or of ones where the type is plain."""
    number = NUMBERS[type_name]
    type_ = GGUF_TYPES[number]
    count = int(np.prod(shape))
    if type_.dtype is not None:
        return number, shape, np.ones(count, type_.dtype.numpy).tobytes()
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (count // type_.block, type_.block_bytes), np.uint8)
    for place, values in _SCALES[type_name].items():
        blocks[:, place] = generator.integers(*values, len(blocks))
    return number, shape, blocks.tobytes()


_F16 = (0x20, 0x28)
_SCALES: Mapping[str, Mapping[int, tuple[int, int]]] = {
    "Q4_0": {1: _F16}, "Q4_1": {1: _F16, 3: _F16}, "Q5_0": {1: _F16}, "Q5_1": {1: _F16, 3: _F16},
    "Q8_0": {1: _F16}, "Q4_K": {1: _F16, 3: _F16}, "Q5_K": {1: _F16, 3: _F16},
    "Q6_K": {209: _F16}, "MXFP4": {0: (118, 124)}, "Q2_K": {81: _F16, 83: _F16},
    "Q3_K": {109: _F16}, "IQ4_NL": {1: _F16}, "IQ4_XS": {1: _F16},
}  # fmt: skip
"""The bytes with the exponents of scales, and the range that makes these finite, about 1 / 64."""


def llama(
    types: Sequence[str] = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "F16", "BF16"),
    tokenizer: str = "gpt2",
    width: int = 32,
    more: Mapping[str, Value] = MappingProxyType({}),
) -> bytes:
    """Return a `llama` of two layers whose matrices are of `types` in turn; `more` are settings."""
    layers, heads = 2, 2
    shapes = {"token_embd.weight": (40, width), "output_norm.weight": (width,)}
    for layer in range(layers):
        start = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            shapes[f"{start}{name}.weight"] = (width, width)
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"{start}{name}.weight"] = (width,)
    tensors: dict[str, Stored] = {}
    for place, (name, shape) in enumerate(shapes.items()):
        type_name = types[place % len(types)] if len(shape) == 2 else "F32"
        tensors[name] = random_blocks(type_name, shape, place)
    settings: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.context_length": 64,
        "llama.embedding_length": width,
        "llama.feed_forward_length": width,
        "llama.attention.head_count": heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
    }
    return gguf({**settings, **TOKENIZERS[tokenizer], **more}, tensors)


def other_layouts() -> list[bytes]:
    """Return files with stacked experts, and with projections whose heads are in another order."""
    experts: dict[str, Stored] = {
        "blk.0.ffn_up_exps.weight": random_blocks("Q8_0", (3, 32, 32), 1),
        "blk.0.ffn_down_exps.weight": random_blocks("F32", (3, 32, 32), 2),
        "blk.0.ffn_gate_inp_shexp.weight": random_blocks("F32", (32,), 3),
    }
    grouped: dict[str, Stored] = {
        "blk.0.attn_qkv.weight": random_blocks("Q4_0", (64, 32), 4),
        "blk.0.attn_qkv.bias": random_blocks("F32", (64,), 5),
    }
    return [
        _layer("qwen2moe", experts, expert_count=3, expert_used_count=2,
               expert_feed_forward_length=32, expert_shared_feed_forward_length=32),
        _layer("falcon", grouped),
    ]  # fmt: skip


def _layer(architecture: str, tensors: Mapping[str, Stored], **more: Value) -> bytes:
    """Return a file with a table of tokens and some tensors of one layer."""
    own: dict[str, Value] = {
        "block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2,
        "attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-6, **more,
    }  # fmt: skip
    named = {f"{architecture}.{key}": value for key, value in own.items()}
    table = {"token_embd.weight": random_blocks("F16", (40, 32), 0)}
    return gguf({"general.architecture": architecture, **named}, {**table, **tensors})


TOKENIZERS: Mapping[str, Mapping[str, Value]] = {
    "gpt2": {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<s>", "</s>", *"thecaTĠ123", "th", "the", "Ċ", "Ġc", "at"],
        "tokenizer.ggml.token_type": [3, 3, *[1] * 15],
        "tokenizer.ggml.merges": ["t h", "th e", "Ġ c", "a t"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    },
    "llama": {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            "<unk>",
            "<s>",
            "</s>",
            "<0x0A>",
            "▁the",
            *"▁thecaT",
            "th",
            "▁th",
        ],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -3.0, *[-9.0] * 7, -1.0, -2.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 6, *[1] * 10],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    },
}
"""Metadata of tiny tokenizers, by their model."""


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    """Return the number of the type of a value, and the value."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if not isinstance(value, bool | int | float):
        items = [_value(item) for item in value]
        kind = items[0][:4] if items else struct.pack("<I", 4)
        length = struct.pack("<Q", len(items))
        return struct.pack("<I", 9) + kind + length + b"".join(item[4:] for item in items)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value)
    return struct.pack("<If", 6, value)
