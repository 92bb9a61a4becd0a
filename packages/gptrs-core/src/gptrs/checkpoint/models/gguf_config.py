"""From the metadata of a GGUF file to the config and the names that the kinds of models know.

Kinds are architectures of llama.cpp. `mistral` models are of the architecture `llama` there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from gptrs.checkpoint.config_fields import Fields
from gptrs.checkpoint.formats.gguf import TensorMapping
from gptrs.checkpoint.formats.gguf_header import GgufHeader, GgufTensor
from gptrs.checkpoint.models.gguf_architectures import ARCHITECTURES, Architecture
from gptrs.errors import ModelError
from gptrs.quoting import listed, quoted

_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")
_ROPE_FACTORS = "rope_freqs.weight"
_QUERY_NORM = "blk.0.attn_q_norm.weight"
_REFUSED_TENSORS = ("rope_factors_long.weight", "rope_factors_short.weight")
_WINDOWLESS = ("llama", "qwen2", "qwen3")
"""Kinds whose files have a window that llama.cpp does not use."""
GEMMA2_LARGEST = 46
"""The layers of the only Gemma 2 that scales scores by `embedding_length / head_count`."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_POSITIONS = 8192


class GgufSettings:
    """The config of the model in a GGUF file, and how it maps each of its tensors.

    `rope_factors` reads the tensor `rope_freqs.weight`, if there is one. ModelError for an
    architecture or a setting that no kind of model supports.
    """

    def __init__(
        self,
        header: GgufHeader,
        path: Path,
        tensors: Mapping[str, GgufTensor],
        rope_factors: Callable[[], np.ndarray],
    ) -> None:
        metadata = header.metadata
        self._where = f"in {quoted(str(path), 200)}"
        general = Fields(metadata, self._where)
        architecture = general.text("general.architecture")
        if architecture is None or architecture not in ARCHITECTURES:
            found = "nothing" if architecture is None else quoted(architecture)
            raise ModelError(
                f"`general.architecture` {self._where} is {found}, which gptrs does not read",
                hint=f"the architectures that are read: {listed(ARCHITECTURES, 99)}",
            )
        self.architecture: str = architecture
        start = f"{architecture}."
        own = {key.removeprefix(start): metadata[key] for key in metadata if key.startswith(start)}
        self._fields = Fields(own, f"of `{architecture}` {self._where}")
        self._tensors = tensors
        self._rope_factors = rope_factors
        self._fields.require("expert_count", 0)
        read = GgufSettings.gpt2 if architecture == "gpt2" else GgufSettings.general
        self.config = {"model_type": ARCHITECTURES[architecture].kind, **read(self)}

    def mapping(self, tensor: GgufTensor) -> TensorMapping:
        """Return what the model calls a tensor; its own name where the model has none for it."""
        layer = _LAYER.fullmatch(tensor.name)
        stem, dot, suffix = (layer[2] if layer else tensor.name).rpartition(".")
        kind = ARCHITECTURES[self.architecture]
        if not dot or stem not in kind.names or suffix not in ("weight", "bias"):
            return TensorMapping(tensor.name)
        known = kind.names[stem]
        name = f"{kind.layers}.{layer[1]}.{known}" if layer else known
        turned = stem in kind.turned and len(tensor.shape) == 2
        offset = kind.offset_of(stem, suffix)
        if offset and tensor.type.dtype is None:
            raise ModelError(f"norm {quoted(tensor.name)} {self._where} is quantized")
        return TensorMapping(f"{name}.{suffix}", self._heads(stem, tensor), turned, offset)

    def _heads(self, stem: str, tensor: GgufTensor) -> int | None:
        """Return the heads whose rows llama.cpp has put in another order, None for no such."""
        rotated = ARCHITECTURES[self.architecture].rotated and stem in ("attn_q", "attn_k")
        if not rotated or not tensor.shape:
            return None
        heads = self._fields.integer("attention.head_count")
        if stem == "attn_k":
            heads = self._fields.integer("attention.head_count_kv", heads)
        if tensor.shape[0] % (2 * heads):
            problem = f"has {tensor.shape[0]} rows, which {heads} heads cannot share"
            raise ModelError(f"tensor {quoted(tensor.name)} {self._where} {problem}")
        return heads

    def _vocab_size(self) -> int:
        table = self._tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise ModelError(f"there is no matrix `token_embd.weight` {self._where}")
        return table.shape[0]

    def gpt2(self) -> dict[str, object]:
        """Return the config of a `gpt2` model."""
        fields = self._fields
        width = fields.integer("embedding_length")
        return {
            "vocab_size": self._vocab_size(),
            "n_positions": fields.integer("context_length"),
            "n_embd": width,
            "n_layer": fields.integer("block_count"),
            "n_head": fields.integer("attention.head_count"),
            "n_inner": fields.integer("feed_forward_length", 4 * width),
            "layer_norm_epsilon": fields.number("attention.layer_norm_epsilon"),
            "tie_word_embeddings": "output.weight" not in self._tensors,
        }

    def general(self) -> dict[str, object]:
        """Return the config of a model of any kind but `gpt2`."""
        fields, own = self._fields, ARCHITECTURES[self.architecture]
        width, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
        head_dim = fields.integer("attention.key_length", max(1, width // heads))
        fields.require("attention.value_length", head_dim)
        for name in _REFUSED_TENSORS:
            if name in self._tensors:
                raise ModelError(
                    f"tensor {quoted(name)} {self._where} is of a setting that gptrs does not read"
                )
        fields.require("use_parallel_residual", False)
        if own.kind not in _WINDOWLESS and not own.window:
            fields.require("attention.sliding_window", 0, fields.get("context_length"))
        key, epsilon = own.epsilon
        return {
            "vocab_size": self._vocab_size(),
            "hidden_size": width,
            "intermediate_size": fields.integer("feed_forward_length"),
            "num_hidden_layers": fields.integer("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": fields.integer("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": fields.integer("context_length"),
            epsilon: fields.number(key),
            "rope_parameters": {**self._share(own, head_dim), **self._rope(head_dim)},
            "tie_word_embeddings": "output.weight" not in self._tensors,
            **{name: fields.number(key, default) for key, name, default in own.numbers},
            **{name: tensor in self._tensors for name, tensor in own.biases},
            **({} if own.kind != "cohere" else {"use_qk_norm": _QUERY_NORM in self._tensors}),
            **({} if own.kind != "gemma2" else self._gemma2(head_dim, width // heads)),
        }

    def _gemma2(self, head_dim: int, whole: int) -> dict[str, object]:
        """Return the window, and by what scores are scaled: the files do not say."""
        is_largest = self._fields.integer("block_count") == GEMMA2_LARGEST
        return {
            "sliding_window": self._fields.integer("attention.sliding_window", 4096),
            "query_pre_attn_scalar": whole if is_largest else head_dim,
        }

    def _share(self, own: Architecture, head_dim: int) -> dict[str, object]:
        """Return the share of a head that rotates, of kinds in which it may be less than all."""
        if own.share is None:
            self._fields.require("rope.dimension_count", head_dim)
            return {}
        rotated = self._fields.integer("rope.dimension_count", head_dim)
        return {"partial_rotary_factor": rotated / head_dim}

    def _rope(self, head_dim: int) -> dict[str, object]:
        fields = self._fields
        theta = fields.number("rope.freq_base", 10000.0)
        kind = fields.choice("rope.scaling.type", ("none", "linear", "yarn"), "none")
        rope: dict[str, object] = {"rope_type": "default", "rope_theta": theta}
        if _ROPE_FACTORS in self._tensors:
            rope |= {"rope_type": "llama3", **self._llama3(theta, head_dim)}
        elif kind != "none":
            rope |= {"rope_type": kind, "factor": fields.number("rope.scaling.factor")}
        if kind == "yarn":
            context = fields.integer("context_length")
            original = fields.integer("rope.scaling.original_context_length", context)
            rope["original_max_position_embeddings"] = original
            fields.require("rope.scaling.attn_factor", 1.0)
        return rope

    def _llama3(self, theta: float, head_dim: int) -> dict[str, object]:
        """Return the scaling that the divisors of the frequencies come from.

        Files have these divisors only. ModelError if they are not those of Llama 3.
        """
        found = np.asarray(self._rope_factors(), np.float64).reshape(-1)
        factor = float(found.max(initial=1.0))
        turns = theta ** (np.arange(0, head_dim, 2) / head_dim) * 2 * np.pi  # wavelengths
        low, high = (_LLAMA3_POSITIONS / each for each in _LLAMA3.values())
        smooth = np.clip((_LLAMA3_POSITIONS / turns - 1) / 3, 0, 1)
        between = 1 / ((1 - smooth) / factor + smooth)
        wanted = np.where(turns < high, 1.0, np.where(turns > low, factor, between))
        if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=1e-4):
            raise ModelError(
                f"{quoted(_ROPE_FACTORS)} {self._where} is not the scaling of Llama 3, the only"
                " one of its kind that is read"
            )
        positions = {"original_max_position_embeddings": _LLAMA3_POSITIONS}
        return {"factor": factor, **_LLAMA3, **positions}
