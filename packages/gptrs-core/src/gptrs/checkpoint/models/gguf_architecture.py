"""An architecture of llama.cpp: what it calls the tensors and settings of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from gptrs.quick_dataclass import dataclass

RMS_EPSILON, LAYER_EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"

RowOrder = Literal["rotated", "grouped"]
"""How rows lie otherwise: `rotated` ones alternate the halves of a head, see `Architecture`."""

_EXPERT = re.compile(r"(ffn_[a-z]+)\.(0|[1-9][0-9]{0,4})")
_ROTATED, _JOINED = ("attn_q", "attn_k"), "attn_qkv"


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the tensors of an architecture are called and laid out, and its own settings.

    `names` has, for each name of llama.cpp without `blk.N.` and its suffix, that of the model
    without `layers` and the number; `experts` those of an expert, `{}` for its number. The matrices
    of `turned` are stored there as [outputs, inputs] and here as [inputs, outputs]. `rotated` says
    that the rows of each head of queries and keys are in the order of interleaved rotary embeddings
    there. `grouped` says that a joined projection has all queries first there, and here the
    queries, the key and the value of one group of heads after another.

    `epsilon` is the key of the epsilon of norms and what config.json calls it. `sizes` are other
    settings that it calls otherwise than Llama's. `numbers` are more settings: keys there, names
    here, and defaults; `integers` and `flags` have no defaults. `options` are left out where the
    setting is null. `fixed` are settings that llama.cpp takes for granted: names, values, and what
    a config without them means. `biases` are settings that are true where a tensor is in the file.
    `activations` are those that llama.cpp computes. A `share` is that of a head which rotates by
    default, in kinds where it may be less than all; without `rotary` nothing rotates. `offset` is
    what the weights of norms have more there. With a `window` there is a key for the sliding
    window, by default that of no window if it is 0; each `pattern`-th layer has none. `largest` is
    the number of layers of the model that scales scores by `embedding_length / head_count`. The
    model's names of `bare` tensors have no suffix. Bounds of yarn are `rounded` or not. Files of an
    architecture that is not `written` are read only.
    """

    kind: str
    names: Mapping[str, str]
    layers: str = "model.layers"
    experts: Mapping[str, str] | None = None
    turned: tuple[str, ...] = ()
    rotated: bool = False
    grouped: bool = False
    epsilon: tuple[str, str] = (RMS_EPSILON, "rms_norm_eps")
    sizes: tuple[tuple[str, str], ...] = ()
    numbers: tuple[tuple[str, str, float], ...] = ()
    integers: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    fixed: tuple[tuple[str, object, object], ...] = ()
    biases: tuple[tuple[str, str], ...] = ()
    activations: tuple[str, ...] = ("silu",)
    rotary: bool = True
    share: float | None = None
    offset: float = 0.0
    window: int | None = None
    pattern: int = 1
    largest: int | None = None
    bare: tuple[str, ...] = ()
    rounded: bool = True
    written: bool = True

    def offset_of(self, stem: str, suffix: str) -> float:
        """Return what GGUF adds to each element; `stem` is the name without `blk.N.` and suffix."""
        return self.offset if stem.endswith("norm") and suffix == "weight" else 0.0

    def order_of(self, stem: str) -> RowOrder | None:
        """Return how GGUF orders the rows of a tensor otherwise than the model, None for alike."""
        if self.rotated and stem in _ROTATED:
            return "rotated"
        return "grouped" if self.grouped and stem == _JOINED else None

    def own(self, name: str) -> str:
        """Return what config.json calls a setting of Llama."""
        return dict(self.sizes).get(name, name)

    def model_name(self, stem: str) -> str | None:
        """Return what the model calls a tensor, `ffn_up.3` is expert 3; None for an unknown one."""
        expert = _EXPERT.fullmatch(stem)
        if expert is None or self.experts is None:
            return self.names.get(stem)
        found = self.experts.get(expert[1])
        return None if found is None else found.format(expert[2])

    def stem_of(self, inner: str) -> str | None:
        """Return the name in the file of what the model calls `inner`; None for an unknown one."""
        for stem, name in self.names.items():
            if name == inner:
                return stem
        for stem, name in (self.experts or {}).items():
            before, _, after = name.partition("{}")
            number = inner.removeprefix(before).removesuffix(after)
            if number.isdigit() and name.format(number) == inner:
                return f"{stem}.{number}"
        return None
