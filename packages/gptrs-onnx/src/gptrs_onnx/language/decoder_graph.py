"""The graph of a language model: its tokens, its logits, the keys and values that it carries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, cast

import numpy as np
from msgspec import Struct

from gptrs.api import ModelError, UnsupportedError
from gptrs.nn import CacheSpec
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import shown

Part = Literal["key", "value"]
PARTS: Final[tuple[Part, ...]] = ("key", "value")
TOKENS: Final = "input_ids"
MASK: Final = "attention_mask"
POSITIONS: Final = ("position_ids", "cache_position")
"""Inputs with the position of each token: [B, T], and [T] of all rows."""
SEGMENTS: Final = "token_type_ids"
BRANCH: Final = "use_cache_branch"
"""The input of merged decoders that says whether there is a past."""
LOGITS: Final = "logits"
_COUNTS: Final[Mapping[str, tuple[int, int, int]]] = MappingProxyType(
    {
        "past_sequence_length": (1, 0, 0),
        "past_seq_len": (1, 0, 0),
        "total_sequence_length": (1, 1, 0),
        "total_seq_len": (1, 1, 0),
        "seqlens_k": (1, 1, -1),
        # How many rows of logits to compute, where 0 stands for all of them.
        "num_logits_to_keep": (0, 0, 0),
        "logits_to_keep": (0, 0, 0),
    }
)
"""Inputs that count: the factors of the positions before a step and in it, and what is added."""
_PAST: Final = re.compile(r"past.*?[._](\d{1,4})[._](?:decoder[._])?(key|value)s?")
_PRESENT: Final = re.compile(r"present.*?[._](\d{1,4})[._](?:decoder[._])?(key|value)s?")
_CONTEXTS: Final = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"),
    *("context_length", "max_seq_len", "seq_length", "model_max_length"),
)
"""Names of the context in settings, in the order in which they are asked."""


def count_input(value: ir.Value, past: int, new: int) -> np.ndarray | None:
    """Return an input that counts positions, for a text with `new` ones after `past` ones.

    None for any other input.
    """
    factors = _COUNTS.get(str(value.name))
    if factors is None:
        return None
    before, inside, more = factors
    shape = () if value.shape is None else (1,) * len(value.shape)
    dtype = value.dtype.numpy() if value.dtype else np.dtype(np.int64)
    return np.full(shape, before * past + inside * new + more, dtype)


class CarriedTensor(Struct, frozen=True):
    """Keys or values of a layer: the input with those of the past, the output with all of them.

    Both are [B, K, positions, D].
    """

    layer: int
    part: Part
    past: str
    present: str


class DecoderGraph(Struct, frozen=True):
    """The inputs and outputs of a language model that have a role in generation."""

    model: ir.Model
    carried: tuple[CarriedTensor, ...]
    specs: tuple[CacheSpec, ...]
    """The cache of each layer, in the order of `layers`."""
    layers: tuple[int, ...]
    """The numbers of the layers that have a cache, ascending."""
    context_length: int
    vocab_size: int

    @property
    def inputs(self) -> dict[str, ir.Value]:
        """The inputs of the graph by name, without initializers."""
        graph = self.model.graph
        return {str(v.name): v for v in graph.inputs if v.name not in graph.initializers}


def decoder_graph(model: ir.Model, settings: Mapping[str, object], origin: str) -> DecoderGraph:
    """Return the roles in the graph of `model`, read from `origin`; `settings` are of config.json.

    ModelError for a graph that is not a language model; UnsupportedError for inputs without a known
    role, and for a graph without a cache.
    """
    graph = model.graph
    inputs = {str(v.name): v for v in graph.inputs if v.name not in graph.initializers}
    outputs = {str(v.name): v for v in graph.outputs}
    where = f"`{shown(origin)}`"
    if TOKENS not in inputs or LOGITS not in outputs:
        raise ModelError(
            f"{where} is not a language model: it maps {_listed(inputs)} to {_listed(outputs)}",
            hint=f"a language model has the input `{TOKENS}` and the output `{LOGITS}`",
        )
    carried = _carried(inputs, outputs)
    if not carried:
        raise UnsupportedError(
            f"{where} has no inputs for the keys and values of earlier tokens",
            hint="export it with its cache: the task `text-generation-with-past` of optimum",
        )
    roles = {TOKENS, MASK, *POSITIONS, SEGMENTS, BRANCH, *_COUNTS}
    roles |= {each.past for each in carried}
    others = [name for name in inputs if name not in roles]
    if others:
        raise UnsupportedError(
            f"{where} takes {_listed(others)}, whose role in generation is unknown"
        )
    layers = tuple(sorted({each.layer for each in carried}))
    specs = tuple(_spec(layer, carried, inputs, settings, where) for layer in layers)
    return DecoderGraph(
        model, carried, specs, layers, _context(settings, where), _vocab(outputs, settings, where)
    )


def _listed(names: Mapping[str, object] | Sequence[str]) -> str:
    found = [f"`{shown(name)}`" for name in names]
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def _carried(
    inputs: Mapping[str, ir.Value], outputs: Mapping[str, ir.Value]
) -> tuple[CarriedTensor, ...]:
    presents = {
        (int(found[1]), found[2]): name
        for name in outputs
        if (found := _PRESENT.fullmatch(name)) is not None
    }
    made: list[CarriedTensor] = []
    for name in inputs:
        found = _PAST.fullmatch(name)
        if found is None or (int(found[1]), found[2]) not in presents:
            continue
        layer, part = int(found[1]), cast("Part", found[2])
        made.append(CarriedTensor(layer, part, name, presents[layer, part]))
    return tuple(sorted(made, key=lambda each: (each.layer, each.part)))


def _spec(
    layer: int,
    carried: Sequence[CarriedTensor],
    inputs: Mapping[str, ir.Value],
    settings: Mapping[str, object],
    where: str,
) -> CacheSpec:
    """Return the heads of a layer and their width, of the shape of its past or of the settings."""
    own = {each.part: each for each in carried if each.layer == layer}
    if set(own) != {"key", "value"}:
        raise UnsupportedError(f"layer {layer} of {where} has keys without values, or the reverse")
    sizes = {
        part: [_head_size(inputs[each.past], axis, settings, where) for axis in (1, 3)]
        for part, each in own.items()
    }
    # Pages of the runtime hold keys and values of one width.
    if sizes["key"] != sizes["value"]:
        raise UnsupportedError(
            f"layer {layer} of {where} has keys of {sizes['key']} and values of {sizes['value']}"
            " (heads, width); only equal sizes are supported"
        )
    heads, width = sizes["key"]
    return CacheSpec(heads, width)


def _head_size(value: ir.Value, axis: int, settings: Mapping[str, object], where: str) -> int:
    """Return the number of heads (axis 1) or their width (axis 3) of keys or values."""
    shape = value.shape
    if shape is None or len(shape) != 4:
        rank = "unknown" if shape is None else len(shape)
        raise UnsupportedError(
            f"the input `{shown(value.name)}` of {where} has rank {rank}; keys and values are"
            " [batch, heads, positions, width]"
        )
    size = shape[axis]
    if isinstance(size, int):
        return size
    heads = _integer(settings, "num_attention_heads", "n_head")
    if axis == 1:
        found = _integer(settings, "num_key_value_heads") or heads
    else:
        hidden = _integer(settings, "hidden_size", "n_embd")
        derived = hidden // heads if hidden and heads else None
        found = _integer(settings, "head_dim", "head_size") or derived
    if found is None:
        raise ModelError(
            f"neither the input `{shown(value.name)}` of {where} nor config.json says how many"
            f" {'heads there are' if axis == 1 else 'numbers a head has'}"
        )
    return found


def _context(settings: Mapping[str, object], where: str) -> int:
    found = _integer(settings, *_CONTEXTS)
    if found is None:
        raise ModelError(
            f"the settings of {where} do not state the length of the context",
            hint="add `max_position_embeddings` to config.json",
        )
    return found


def _vocab(outputs: Mapping[str, ir.Value], settings: Mapping[str, object], where: str) -> int:
    shape = outputs[LOGITS].shape
    size = shape[-1] if shape is not None and len(shape) else None
    found = size if isinstance(size, int) else _integer(settings, "vocab_size")
    if found is None:
        raise ModelError(f"the settings of {where} do not state `vocab_size`")
    return found


def _integer(settings: Mapping[str, object], *names: str) -> int | None:
    """Return the first setting that is a number above 0; those of a text model come with others."""
    inner = settings.get("text_config")
    tables = (
        [settings, cast("Mapping[str, object]", inner)]
        if isinstance(inner, Mapping)
        else [settings]
    )
    for table in tables:
        for name in names:
            value = table.get(name)
            # `true` is an int in Python, and 0 stands for "none" in some settings.
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
