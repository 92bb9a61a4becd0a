"""Conversion of a model's config to the metadata of a GGUF file, the reverse of `gguf_config`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, cast

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.config_fields import ConfigFields, Fields
from gptrs.checkpoint.formats.gguf_header import MetadataValue
from gptrs.errors import ModelError
from gptrs.plugins.gguf_architecture import RMS_EPSILON, GgufArchitecture
from gptrs.quoting import quoted, shown_value
from gptrs_runtime.sources.byte_bpe_files import ReadFile, tokenizer_settings
from gptrs_runtime.sources.format_kinds import gguf_architecture_of
from gptrs_runtime.sources.gguf_tokenizer import PRE_TOKENIZERS, Part
from gptrs_runtime.sources.tokenizer_class import TOKENIZER_CONFIG

Metadata = dict[str, MetadataValue]


class Rotary(Struct, frozen=True):
    """A rotary embedding: its base, the share of a head that rotates, metadata of its scaling.

    `factors` are the divisors of its frequencies, for scalings stored in this form.
    """

    theta: float
    rotated: float
    scaling: Metadata
    factors: np.ndarray | None


ReadRotary = Callable[[Mapping[str, object], str, int, int, float | None], Rotary]
"""Reads the rotary embedding in settings of a kind, for so many positions and components of a head;
the last is the share of these that rotates by default."""


class GgufSettingsOf(Struct, frozen=True):
    """An architecture of llama.cpp, its metadata, and the divisors of rotary frequencies, if any.

    `heads`: numbers of query and key heads; `own`: the prefix of the architecture.
    """

    architecture: str
    metadata: Metadata
    heads: tuple[int, int]
    own: GgufArchitecture
    rope_factors: np.ndarray | None = None


def settings_of(config: Mapping[str, object], kind: str, read_rotary: ReadRotary) -> GgufSettingsOf:
    """Return the metadata of a model of `kind`; ModelError for settings that llama.cpp lacks."""
    architecture, general = gguf_architecture_of(kind)
    given = ConfigFields({**general.defaults, **config}, kind)
    fields = ConfigFields(_prepared(given, general), kind)
    own = general.of_settings(fields.settings)
    _require_known(fields, own)
    width, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    head_dim = fields.integer("head_dim", width // heads)
    positions = fields.integer("max_position_embeddings")
    metadata: Metadata = {
        **_sizes(fields, own, (width, heads, kv_heads, head_dim), positions),
        **{key: fields.number(name, default) for key, name, default in own.numbers},
        **{key: fields.integer(name, minimum=0) for key, name in own.integers},
        **{key: fields.integer(name, least, minimum=0) for key, name, least in own.counts},
        **{key: fields.boolean(name, True) for key, name in own.flags},
        **{key: fields.boolean(name, False) for key, name in own.switches},
        **{key: fields.number(name) for key, name in own.options if fields.get(name) is not None},
        **dict(own.stated),
        **_window(fields, own, width // heads, head_dim),
    }
    factors = None
    if own.rotary:
        rope = read_rotary(fields.settings, kind, positions, head_dim, own.share)
        if rope.rotated != 1.0 and own.share is None:
            raise fields.error("partial_rotary_factor", "is supported as 1 only in a GGUF file")
        metadata["rope.dimension_count"] = int(head_dim * rope.rotated)
        metadata["rope.freq_base"] = rope.theta
        metadata |= rope.scaling
        factors = rope.factors
    named = {f"{architecture}.{key}": value for key, value in metadata.items()}
    return GgufSettingsOf(architecture, named, (heads, kv_heads), own, factors)


def _prepared(given: ConfigFields, own: GgufArchitecture) -> Mapping[str, object]:
    """Return the settings of a model under the usual names, with defaults filled in."""
    settings = dict(given.settings)
    for name, theirs in own.sizes:
        if not theirs:
            settings.pop(name, None)
        elif settings.get(theirs) is not None:
            settings[name] = settings[theirs]
    for count, other in (
        ("num_experts", "num_local_experts"),
        ("num_local_experts", "num_experts"),
    ):
        if own.experts is not None and settings.get(count) is None:
            settings[count] = settings.get(other)
    return settings if own.prepare is None else own.prepare(given, settings)


def _sizes(
    fields: Fields, own: GgufArchitecture, of_heads: tuple[int, int, int, int], positions: int
) -> Metadata:
    """Return the usual sizes, except those that this kind lacks."""
    width, heads, kv_heads, head_dim = of_heads
    key, epsilon = own.epsilon
    widened = 4 * width if own.wide else None
    sizes: dict[str, tuple[str, Callable[[], MetadataValue]]] = {
        "context_length": ("max_position_embeddings", lambda: _seen(fields, own, positions)),
        "embedding_length": ("hidden_size", lambda: width),
        "block_count": ("num_hidden_layers", lambda: fields.integer("num_hidden_layers")),
        "feed_forward_length": (
            "intermediate_size", lambda: fields.integer("intermediate_size", widened)
        ),
        "attention.head_count": ("num_attention_heads", lambda: heads),
        "attention.head_count_kv": ("num_key_value_heads", lambda: kv_heads),
        "attention.key_length": ("head_dim", lambda: head_dim),
        "attention.value_length": ("head_dim", lambda: head_dim),
        key: (epsilon, lambda: fields.number(epsilon, 1e-6 if key == RMS_EPSILON else 1e-5)),
        "vocab_size": ("vocab_size", lambda: fields.integer("vocab_size")),
    }  # fmt: skip
    return {key: read() for key, (name, read) in sizes.items() if key and own.own(name)}


def _require_known(fields: Fields, own: GgufArchitecture) -> None:
    """Raise ModelError for a setting that differs from llama.cpp's assumption."""
    for name in _ACTIVATIONS:
        fields.require(name, *own.activations)
    for name, value, default in own.fixed:
        if fields.get(name, default) != value:
            raise fields.error(name, f"must be {json.dumps(value)} in a GGUF file")


def _window(fields: Fields, own: GgufArchitecture, whole: int, head_dim: int) -> Metadata:
    """Return the window of kinds that have layers with and without one."""
    if own.window is None:
        return {}
    layers = fields.integer("num_hidden_layers")
    if own.largest is not None:
        scaled_by = whole if layers == own.largest else head_dim
        fields.require("query_pre_attn_scalar", scaled_by)
    if "sliding_window" in fields.settings and fields.get("sliding_window") is None:
        if own.window:
            raise fields.error("sliding_window", "must be a number in a GGUF file")
        return {}
    pattern = ("sliding_attention", "full_attention")
    words = [pattern[layer % own.pattern == 0] for layer in range(1, layers + 1)]
    fields.require("layer_types", words)
    fields.require("sliding_window_pattern", own.pattern)
    return {"attention.sliding_window": fields.integer("sliding_window", 4096)}


def _seen(fields: Fields, own: GgufArchitecture, positions: int) -> int:
    """Return the positions up to which the window has no effect, since the file cannot store it."""
    if own.window is not None or fields.get("sliding_window") is None:
        return positions
    return min(positions, fields.integer("sliding_window"))


_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation", "activation_function")


# The tokenizer of ByT5, which has no file, as an equivalent `tokenizer.json`.
#
# A token is a byte of UTF-8: its number is 3 more than the byte. Before these are three special
# tokens, after them the marks of gaps (`<extra_id_0>`), and `</s>` ends each text.


CLASS: Final = "ByT5Tokenizer"
_SPECIAL: Final = (("pad_token", "<pad>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))
_LISTED: Final = ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens")
_GAPS: Final = 125
_MOST_GAPS: Final = 10_000
_PLAIN: Final = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
_BYTES: Final[Part] = PRE_TOKENIZERS["gpt-2"].steps[0]
WHOLE_CHARACTERS: Final[list[Part]] = [
    {"type": "Replace", "pattern": {"String": "\N{REPLACEMENT CHARACTER}"}, "content": ""}
]
"""The last steps of a decoder of bytes that leaves out those that are no UTF-8."""


def tokenizer_json(read: ReadFile) -> bytes:
    """Return the content of a `tokenizer.json`; ModelError for malformed files."""
    settings = tokenizer_settings(read)
    added = [_special(settings, number) for number in range(len(_SPECIAL))]
    first = len(added) + 256
    names = (f"<extra_id_{i}>" for i in range(_gaps(settings)))
    added += [_token(first + i, name, _PLAIN) for i, name in enumerate(names)]
    texts = [str(part["content"]) for part in added]
    bytes_of_texts = [_shown(byte) for byte in range(256)]
    merges: list[str] = []
    made: Part = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _BYTES,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_text("A"), _end(texts[1])],
            "pair": [_text("A"), _end(texts[1]), _text("B"), _end(texts[1])],
            "special_tokens": {texts[1]: {"id": texts[1], "ids": [1], "tokens": [texts[1]]}},
        },
        "decoder": {"type": "Sequence", "decoders": [_BYTES, *WHOLE_CHARACTERS]},
        "model": {
            "type": "BPE",
            "vocab": {
                text: number
                for number, text in enumerate([*texts[:3], *bytes_of_texts, *texts[3:]])
            },
            "merges": merges,
        },
    }
    return json.dumps(made, ensure_ascii=False).encode("utf-8")


def _gaps(settings: Mapping[str, object]) -> int:
    """Return the number of gap tokens if no list names them."""
    if any(name in settings for name in _LISTED):
        return 0
    count = settings.get("extra_ids", _GAPS)
    if not isinstance(count, int) or not 0 <= count <= _MOST_GAPS:
        raise ModelError(
            f"`extra_ids` in {quoted(TOKENIZER_CONFIG)} must be a number up to {_MOST_GAPS},"
            f" found {shown_value(count)}"
        )
    return count


def _special(settings: Mapping[str, object], number: int) -> Part:
    """Return a special token; one that is plain text takes the spaces around it along."""
    name, usual = _SPECIAL[number]
    stated = settings.get(name)
    flags: Mapping[str, object] = {**_PLAIN, "lstrip": True, "rstrip": True}
    if isinstance(stated, Mapping):
        flags = cast("Mapping[str, object]", stated)
        stated = flags.get("content")
    return _token(number, stated if isinstance(stated, str) and stated else usual, flags)


def _token(number: int, content: str, flags: Mapping[str, object]) -> Part:
    kept = {flag: bool(flags.get(flag, usual)) for flag, usual in _PLAIN.items()}
    return {"id": number, "content": content, "special": True, **kept}


@cache
def byte_characters() -> dict[str, int]:
    """Return the byte that each character of such a vocabulary stands for."""
    return {_shown(byte): byte for byte in range(256)}


def _shown(byte: int) -> str:
    """Return the character that stands for a byte in vocabularies like that of GPT-2."""
    hidden = [*range(33), *range(127, 161), 173]
    return chr(256 + hidden.index(byte)) if byte in hidden else chr(byte)


def _text(which: str) -> Part:
    return {"Sequence": {"id": which, "type_id": 0}}


def _end(token: str) -> Part:
    return {"SpecialToken": {"id": token, "type_id": 0}}
