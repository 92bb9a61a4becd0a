"""Conversion of a GGUF file's metadata to the config and the tensor names of a kind.

Kinds describe their architectures in llama.cpp; see `GgufArchitecture`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np

from gptrs.checkpoint.config_fields import ConfigFields, Fields, ReadSettings
from gptrs.checkpoint.formats.gguf import RowOrder, TensorMapping
from gptrs.checkpoint.formats.gguf_header import GgufHeader, GgufTensor
from gptrs.errors import ModelError
from gptrs.quoting import quoted
from gptrs_runtime.sources.format_kinds import gguf_kind

_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")
_HARMLESS = re.compile(
    r"vocab_size|tensor_data_layout|rope\.scaling\.finetuned|rope\.dimension_count(_swa)?"
    r"|attention\.layer_norm(_rms)?_epsilon|attention\.(key|value)_length(_swa)?"
    r"|feed_forward_length|expert_group_used_count|leading_dense_block_count"
    r"|expert_shared_feed_forward_length|rope\.dimension_sections|n_deepstack_layers"
    r"|attention\.head_count(_kv)?|context_length"
)
"""Settings that change nothing where a kind does not read them."""
_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}
"""Words of sentence-transformers by `pooling_type`."""
_KV_HEADS = "attention.head_count_kv"
_CAUSAL = "attention.causal"
_GROUPS = "expert_group_count"
_ROPE_FACTORS = "rope_freqs.weight"
_LONG_ROPE = {
    "short_factor": "rope_factors_short.weight",
    "long_factor": "rope_factors_long.weight",
}
"""The tensors of LongRoPE by their names in config.json."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_POSITIONS = 8192
_ENDLESS = 1e20
"""A divisor from which on angles are taken as 0; files have 1e30."""


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


class GgufSettings:
    """The config of the model in a GGUF file, and the mapping of its tensors.

    `rope_factors` reads a tensor of divisors, of those that there are. ModelError for an
    architecture or a setting that no kind of model supports.
    """

    def __init__(
        self,
        header: GgufHeader,
        path: Path,
        tensors: Mapping[str, GgufTensor],
        rope_factors: Callable[[str], np.ndarray],
    ) -> None:
        metadata = header.metadata
        self._where = f"in {quoted(str(path), 200)}"
        architecture = Fields(metadata, self._where).text("general.architecture")
        stated = (f"{key}={value}" for key, value in metadata.items() if isinstance(value, int))
        kind, self._own = gguf_kind(architecture, {*tensors, *metadata, *stated}, self._where)
        start = f"{architecture}."
        own = {key.removeprefix(start): metadata[key] for key in metadata if key.startswith(start)}
        read = ReadSettings(own)
        self._fields = Fields(read, f"of `{architecture}` {self._where}")
        self._tensors = tensors
        self._rope_factors = rope_factors
        if self._own.experts is None:
            self._fields.require("expert_count", 0)
        if all(key != _GROUPS for key, *_ in self._own.counts):
            self._fields.require(_GROUPS, 0, 1)
        self.pooling = self._pooling(own)
        """How states of tokens become the vector of a text; None if the file does not say."""
        if all(key != _CAUSAL for key, _ in self._own.stated):
            self._fields.require(_CAUSAL, True)
        settings = self._settings()
        if self._own.finish is not None:
            fields = ConfigFields(read, str(architecture))
            settings = self._own.finish(fields, settings, tensors)
        settings = {"model_type": kind, **settings}
        # What this does not read stays under its own name, and is told as an unread setting.
        unread = (key for key in read.unseen() if not _HARMLESS.fullmatch(key))
        self.config = {**{f"{start}{key}": _plain(own[key]) for key in unread}, **settings}

    def _pooling(self, metadata: Mapping[str, object]) -> str | None:
        # 0 is none; what is not read, such as the scores of a ranking model, is told.
        number = metadata.get("pooling_type")
        known = isinstance(number, int) and number in _POOLINGS
        return _POOLINGS[self._fields.integer("pooling_type")] if known else None

    def mapping(self, tensor: GgufTensor) -> TensorMapping:
        """Return the model's name of a tensor; its own name if the model has none."""
        layer = _LAYER.fullmatch(tensor.name)
        own, inner = self._own, layer[2] if layer else tensor.name
        stem, _, suffix = inner.rpartition(".")
        whole = own.names.get(inner)
        known = own.model_name(stem) if whole is None else whole
        if known is None or (whole is None and suffix not in ("weight", "bias")):
            return TensorMapping(tensor.name)
        name = f"{own.layers}.{layer[1]}.{known}" if layer else known
        turned = stem in own.turned and len(tensor.shape) == 2
        offset = own.offset_of(stem, suffix)
        if offset and tensor.type.dtype is None:
            raise ModelError(f"norm {quoted(tensor.name)} {self._where} is quantized")
        bare = whole is not None or inner in own.bare
        return TensorMapping(
            name if bare else f"{name}.{suffix}", self._order(stem, tensor), turned, offset,
            self._shape(inner, tensor), inner in own.decays,
        )  # fmt: skip

    def _shape(self, inner: str, tensor: GgufTensor) -> tuple[int, ...] | None:
        """Return the model's shape of a tensor; None if it equals the file's."""
        change = self._own.shapes.get(inner)
        found = tensor.shape if change is None else change(tensor.shape)
        if found == tensor.shape:
            return None
        if tensor.type.dtype is None or math.prod(found) != math.prod(tensor.shape):
            raise ModelError(
                f"tensor {quoted(tensor.name)} {self._where} is {tensor.type.name} of shape"
                f" {tensor.shape}, which is not a plain tensor of its kind"
            )
        return found

    def _order(self, stem: str, tensor: GgufTensor) -> RowOrder | None:
        """Return llama.cpp's order of the rows of heads; None if it equals the model's."""
        order = self._own.order_of(stem)
        if order is None or not tensor.shape:
            return None
        heads = self._fields.integer("attention.head_count")
        kv_heads = self._kv_heads(heads)
        if order == "grouped":
            found, unit = RowOrder(heads, kv_heads), heads + 2 * kv_heads
            if heads % kv_heads:
                raise self._fields.error(_KV_HEADS, f"must divide {heads} heads")
        else:
            found = RowOrder(kv_heads if stem == "attn_k" else heads)
            unit = 2 * found.heads
        if tensor.shape[0] % unit:
            problem = f"has {tensor.shape[0]} rows, which {found.heads} heads cannot share"
            raise ModelError(f"tensor {quoted(tensor.name)} {self._where} {problem}")
        return found

    def _kv_heads(self, heads: int) -> int:
        """Return the number of key/value heads, of a file that states it once or of each layer."""
        found = self._heads_of_layers()
        if found is None:
            return self._fields.integer(_KV_HEADS, heads)
        numbers = {*found} - {0 if self._own.keyless else -1}
        if len(numbers) != 1 or len(found) != self._layers()[0] or min(numbers) < 1:
            raise self._fields.error(_KV_HEADS, "must be one number for all layers of the kind")
        return numbers.pop()

    def _heads_of_layers(self) -> list[int] | None:
        value = self._fields.get(_KV_HEADS)
        if not isinstance(value, np.ndarray):
            return None
        found = cast("list[object]", value.tolist())
        return [each for each in found if isinstance(each, int)]

    def _latent(self, rotated: int) -> dict[str, object]:
        """Return the sizes of latent attention; older files have those of whole heads."""
        fields = self._fields
        key, value = (
            fields.integer(
                f"attention.{which}_length_mla", fields.integer(f"attention.{which}_length")
            )
            for which in ("key", "value")
        )
        if key <= rotated:
            raise fields.error(
                "attention.key_length_mla", f"must be more than {rotated}, its rotated part"
            )
        rank = "attention.q_lora_rank"
        return {
            "q_lora_rank": None if fields.get(rank) is None else fields.integer(rank),
            "kv_lora_rank": fields.integer("attention.kv_lora_rank"),
            "qk_rope_head_dim": rotated,
            "qk_nope_head_dim": key - rotated,
            "v_head_dim": value,
        }

    def _words(self) -> dict[str, object]:
        """Return `layer_types` of kinds with layers that have no keys."""
        found = self._heads_of_layers() if self._own.keyless else None
        if found is None:
            return {}
        word = self._own.keyless
        return {"layer_types": ["full_attention" if each else word for each in found]}

    def _layers(self) -> tuple[int, int]:
        """Return the number of layers, and of those after them that predict further tokens."""
        fields = self._fields
        blocks = fields.integer("block_count")
        further = fields.integer("nextn_predict_layers", 0, minimum=0)
        if further >= blocks:
            raise fields.error("nextn_predict_layers", f"must be less than {blocks}, all blocks")
        return blocks - further, further

    def _vocab_size(self) -> int:
        table = self._tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise ModelError(f"there is no matrix `token_embd.weight` {self._where}")
        return table.shape[0]

    def _settings(self) -> dict[str, object]:
        """Return the config of the model: common settings under the kind's names, then the rest.

        Settings that the kind lacks are not read.
        """
        fields, own = self._fields, self._own
        width, heads = fields.integer("embedding_length"), 1
        if own.own("num_attention_heads"):
            heads = fields.integer("attention.head_count")
        if own.latent:
            fields.require(_KV_HEADS, 1, heads)
            head_dim = fields.integer("rope.dimension_count")
        else:
            head_dim = fields.integer("attention.key_length", max(1, width // heads))
            fields.require("attention.value_length", head_dim)
        if not own.flags:
            fields.require("use_parallel_residual", False)
        for key, value in own.stated:
            fields.require(key, value)
        layers, further = self._layers()
        key, epsilon = own.epsilon
        widened = 4 * width if own.wide else None
        sizes: dict[str, Callable[[], object]] = {
            "vocab_size": self._vocab_size,
            "head_dim": lambda: head_dim,
            "hidden_size": lambda: width,
            "intermediate_size": lambda: fields.integer("feed_forward_length", widened),
            "num_hidden_layers": lambda: layers,
            "num_attention_heads": lambda: heads,
            "num_key_value_heads": lambda: heads if own.latent else self._kv_heads(heads),
            "max_position_embeddings": lambda: fields.integer("context_length"),
            "tie_word_embeddings": lambda: "output.weight" not in self._tensors,
        }
        return {
            **{own.own(name): read() for name, read in sizes.items() if own.own(name)},
            **({epsilon: fields.number(key)} if key else {}),
            **({"num_nextn_predict_layers": further} if further else {}),
            **self._rotary(head_dim),
            **self._window(head_dim, max(1, width // heads)),
            **self._more(),
            **self._words(),
            **(self._latent(head_dim) if own.latent else {}),
        }

    def _more(self) -> dict[str, object]:
        """Return the settings that only some kinds have."""
        fields, own = self._fields, self._own
        return {
            **{name: fields.number(key, default) for key, name, default in own.numbers},
            # Down to 0: models of experts may have no dense layer before them.
            **{name: fields.integer(key, minimum=0) for key, name in own.integers},
            **{name: fields.integer(key, least, minimum=0) for key, name, least in own.counts},
            **{name: fields.boolean(key, True) for key, name in own.flags},
            **{name: fields.boolean(key, False) for key, name in own.switches},
            **{
                name: None if fields.get(key) is None else fields.number(key)
                for key, name in own.options
            },
            **{name: value for name, value, _ in own.fixed},
            **{name: tensor in self._tensors for name, tensor in own.biases},
            **{
                name: math.prod(self._tensors[tensor].shape[:1]) if tensor in self._tensors else 0
                for name, tensor in own.rows
            },
        }

    def _window(self, head_dim: int, whole: int) -> dict[str, object]:
        """Return the window and the scale of scores, which files omit."""
        fields, own = self._fields, self._own
        if own.window is None:
            if not own.unused_window:
                fields.require("attention.sliding_window", 0, fields.get("context_length"))
            return {}
        window = fields.integer("attention.sliding_window", own.window, minimum=0)
        found: dict[str, object] = {"sliding_window": window or None}
        self._require_pattern()
        if own.largest is not None:
            is_largest = fields.integer("block_count") == own.largest
            found["query_pre_attn_scalar"] = whole if is_largest else head_dim
        return found

    def _require_pattern(self) -> None:
        """ModelError if other layers have the window than in models of the kind."""
        name, pattern = "attention.sliding_window_pattern", self._own.pattern
        value = self._fields.get(name)
        if not isinstance(value, np.ndarray):
            self._fields.require(name, pattern)
            return
        # Of each layer, as newer files have it.
        wanted = [layer % pattern != 0 for layer in range(1, self._layers()[0] + 1)]
        if cast("list[object]", value.tolist()) != wanted:
            raise self._fields.error(name, f"must leave out each {pattern}th layer, and only these")

    def _rotary(self, head_dim: int) -> dict[str, object]:
        """Return the rotary embedding of kinds that have one."""
        own = self._own
        if not own.rotary:
            return {}
        rope = self._rope(head_dim)
        found: dict[str, object] = {"rope_parameters": {**self._share(head_dim), **rope}}
        if own.local_theta is not None:
            name, default = own.local_theta
            whole = cast("float", rope["rope_theta"])
            found[name] = self._fields.number(
                "rope.freq_base_swa", whole if default is None else default
            )
        return found

    def _share(self, head_dim: int) -> dict[str, object]:
        """Return the rotated share of a head, for kinds that may rotate less than all."""
        if self._own.share is None:
            self._fields.require("rope.dimension_count", head_dim)
            return {}
        rotated = self._fields.integer("rope.dimension_count", head_dim)
        return {"partial_rotary_factor": rotated / head_dim}

    def _rope(self, head_dim: int) -> dict[str, object]:
        fields = self._fields
        theta = fields.number("rope.freq_base", 10000.0)
        # As in llama.cpp: a factor alone is a linear one, and older files call it `scale_linear`.
        older = fields.number("rope.scale_linear", 1.0)
        factor = fields.number("rope.scaling.factor", older) or 1.0
        kind = fields.choice("rope.scaling.type", ("none", "linear", "yarn", "longrope"), "linear")
        rope: dict[str, object] = {"rope_type": "default", "rope_theta": theta}
        if _ROPE_FACTORS in self._tensors:
            if kind == "yarn" or (kind == "linear" and factor != 1):
                problem = f"cannot be {kind} beside the tensor {quoted(_ROPE_FACTORS)}"
                raise fields.error("rope.scaling.type", problem)
            rope |= self._divided(theta, head_dim)
        elif kind == "longrope" or any(name in self._tensors for name in _LONG_ROPE.values()):
            rope |= self._long_rope()
        elif kind == "yarn" or (kind == "linear" and factor != 1):
            rope |= {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            context = fields.integer("context_length")
            original = fields.integer("rope.scaling.original_context_length", context)
            rope["original_max_position_embeddings"] = original
            betas = {name: f"rope.scaling.yarn_{name}" for name in ("beta_fast", "beta_slow")}
            rope |= {name: fields.number(key) for name, key in betas.items() if fields.get(key)}
            fields.require("rope.scaling.attn_factor", 1.0)
            fields.require("rope.scaling.yarn_attn_factor", 1.0)
            fields.require("rope.scaling.yarn_ext_factor", 1.0, -1.0)
            log = "rope.scaling.yarn_log_multiplier"
            if self._own.log_scale is not None:
                growth = self._own.log_scale * fields.number(log, 0.0)
                rope |= {"mscale": growth, "mscale_all_dim": growth} if growth else {}
            else:
                fields.require(log, 0.0)
            if not self._own.rounded:
                rope["truncate"] = False
        return rope

    def _long_rope(self) -> dict[str, object]:
        """Return LongRoPE, which files have as two tensors of divisors and a factor of scores."""
        fields, factors = self._fields, {}
        for name, tensor in _LONG_ROPE.items():
            if tensor not in self._tensors:
                raise ModelError(f"there is no tensor {quoted(tensor)} {self._where}")
            factors[name] = [float(each) for each in self._rope_factors(tensor).reshape(-1)]
        fields.require("rope.scaling.factor", 1.0, 0.0)
        fields.require("rope.scaling.type", "longrope", "linear", "none")
        original = fields.integer("rope.scaling.original_context_length")
        return {
            "rope_type": "longrope",
            "original_max_position_embeddings": original,
            "attention_factor": fields.number("rope.scaling.attn_factor", 1.0),
            **factors,
        }

    def _divided(self, theta: float, head_dim: int) -> dict[str, object]:
        """Return the scaling that produced the divisors of the frequencies.

        Files only have the divisors: of `llama3`, or of a `proportional` one, whose last angles are
        0. ModelError if they are others.
        """
        found = np.asarray(self._rope_factors(_ROPE_FACTORS), np.float64).reshape(-1)
        rotated = int(np.count_nonzero(found == 1))
        if 0 < rotated < len(found) == head_dim // 2 and (found[rotated:] >= _ENDLESS).all():
            return {"rope_type": "proportional", "partial_rotary_factor": rotated / len(found)}
        factor = float(found.max(initial=1.0))
        turns = theta ** (np.arange(0, head_dim, 2) / head_dim) * 2 * np.pi  # wavelengths
        low, high = (_LLAMA3_POSITIONS / each for each in _LLAMA3.values())
        smooth = np.clip((_LLAMA3_POSITIONS / turns - 1) / 3, 0, 1)
        between = 1 / ((1 - smooth) / factor + smooth)
        wanted = np.where(turns < high, 1.0, np.where(turns > low, factor, between))
        if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=1e-4):
            raise ModelError(
                f"{quoted(_ROPE_FACTORS)} {self._where} is not the scaling `llama3` or"
                " `proportional`, the only ones of its kind that are read"
            )
        positions = {"original_max_position_embeddings": _LLAMA3_POSITIONS}
        return {"rope_type": "llama3", "factor": factor, **_LLAMA3, **positions}
