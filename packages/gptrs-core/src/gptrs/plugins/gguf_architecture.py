"""Descriptions of a kind's tensors and settings in llama.cpp and timm."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from gptrs.checkpoint.config_fields import ConfigFields


RowOrder = Literal["rotated", "grouped"]
"""Orders of rows that differ from the model's: `rotated`, `grouped`; see `GgufArchitecture`."""
Settings = dict[str, object]
ToModel = Callable[[tuple[int, ...]], tuple[int, ...]]

RMS_EPSILON = "attention.layer_norm_rms_epsilon"
_EXPERT = re.compile(r"(ffn_[a-z_]+)\.(0|[1-9][0-9]{0,4})")
_NEXT = {
    "nextn.eh_proj": "eh_proj",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_norm": "shared_head.norm",
    "nextn.shared_head_head": "shared_head.head",
}
"""Tensors of a layer after the last that predicts a further token, of any kind."""
_ROTATED, _JOINED = ("attn_q", "attn_k"), "attn_qkv"


class GgufArchitecture(Struct, frozen=True):
    """The names and layouts of a kind's tensors and settings in llama.cpp.

    Tensor names omit `blk.N.` and the suffix in the file, and `layers` and the number in the model.
    Keys of settings omit the prefix of the architecture.
    """

    names: Mapping[str, str]
    """Tensor names in the model by those in the file; a name with its suffix, or of a tensor that
    has none there, stands for a tensor without a suffix in the model."""
    layers: str = "model.layers"
    experts: Mapping[str, str] | None = None
    """The same for tensors of one expert; `{}` is its number."""
    turned: tuple[str, ...] = ()
    """Matrices that are [outputs, inputs] in the file and [inputs, outputs] in the model."""
    rotated: bool = False
    """Whether files order rows of queries and keys for interleaved rotary embeddings."""
    grouped: bool = False
    """Whether fused projections have all queries first in files, but queries, key and value of one
    group of heads after another in the model."""
    epsilon: tuple[str, str] = (RMS_EPSILON, "rms_norm_eps")
    """The key of the epsilon of norms, and its name in config.json; empty if it is no setting."""
    sizes: tuple[tuple[str, str], ...] = ()
    """Settings with other names than Llama's: Llama's name, the kind's; an empty name for a setting
    that the kind lacks."""
    defaults: Mapping[str, object] = {}
    """Settings of a config.json that leaves them out, under the kind's names; `head_dim` is by
    default the width divided by the heads."""
    wide: bool = False
    """Whether an MLP is four times as wide as the model by default."""
    numbers: tuple[tuple[str, str, float], ...] = ()
    """More settings: key, name in config.json, default."""
    integers: tuple[tuple[str, str], ...] = ()
    """Required integers: key, name in config.json."""
    counts: tuple[tuple[str, str, int], ...] = ()
    """Integers that files may omit: key, name in config.json, default."""
    flags: tuple[tuple[str, str], ...] = ()
    """Booleans that are true unless stated: key, name in config.json."""
    switches: tuple[tuple[str, str], ...] = ()
    """Booleans that are false unless stated: key, name in config.json."""
    options: tuple[tuple[str, str], ...] = ()
    """Settings whose key is omitted if they are null."""
    fixed: tuple[tuple[str, object, object], ...] = ()
    """Settings that llama.cpp assumes: name, value, meaning of a config without it."""
    stated: tuple[tuple[str, bool | int], ...] = ()
    """Keys with a fixed value of the kind, which files may omit."""
    biases: tuple[tuple[str, str], ...] = ()
    """Settings that are true if a tensor is in the file: name, full name of the tensor."""
    rows: tuple[tuple[str, str], ...] = ()
    """Settings that are the number of rows of a tensor, 0 in a file without it: name, full name."""
    activations: tuple[str, ...] = ("silu",)
    """The values of `hidden_act` that llama.cpp computes."""
    latent: bool = False
    """Whether attention is latent (DeepSeek-V2), with keys for the sizes of its heads."""
    keyless: str = ""
    """The word in `layer_types` for layers with 0 key/value heads; empty: all layers have some."""
    rotary: bool = True
    """Whether heads are rotated."""
    share: float | None = None
    """The default rotated part of a head, for kinds that may rotate less than all of it."""
    offset: float = 0.0
    """The number added to the weights of norms in the file."""
    window: int | None = None
    """The sliding window of a file without its key (0: none); None for kinds without windows."""
    unused_window: bool = False
    """Whether files may have a window that llama.cpp does not use."""
    pattern: int = 1
    """Each `pattern`-th layer has no window."""
    local_theta: tuple[str, float | None] | None = None
    """The setting for the separate rotary base of layers with a window, and the base of a file
    without its key (None: that of the other layers)."""
    largest: int | None = None
    """The number of layers of the model that scales scores by `embedding_length / head_count`."""
    bare: tuple[str, ...] = ()
    """Tensors without a suffix in the model, with their suffix in the file."""
    decays: tuple[str, ...] = ()
    """Tensors that files have as `-exp` of the model's values."""
    shapes: Mapping[str, ToModel] = {}
    """Makes the model's shape of a tensor of that in the file, of the same elements."""
    log_scale: float | None = None
    """The factor from `rope.scaling.yarn_log_multiplier` to `mscale` and `mscale_all_dim` of YaRN,
    which are equal; None: the kind has none."""
    rounded: bool = True
    """Whether the bounds of YaRN are rounded."""
    prepare: Callable[[ConfigFields, Settings], Settings] | None = None
    """Changes the settings of config.json, given as they are and under Llama's names, for writing;
    ModelError for settings that llama.cpp lacks."""
    finish: Callable[[ConfigFields, Settings, Container[str]], Settings] | None = None
    """Changes the config of a file, given all its settings, the config made of the usual ones, and
    the names of its tensors; ModelError for settings that the kind lacks."""
    read: bool = True
    """Whether files are read, too: of several kinds with one architecture, one reads the files that
    do not say which."""
    written: bool = True
    """Whether files are written, too, not only read."""
    marker: str = ""
    """Tensors, keys, integers or booleans (`key=value`) that tell files of this kind from others of
    the architecture, separated by spaces."""
    variants: tuple[tuple[tuple[str, object], GgufArchitecture], ...] = ()
    """Variants of the kind: a setting, its value in models of the variant, and the variant."""

    def in_file(self, has: Container[str]) -> GgufArchitecture | None:
        """Return the variant (or this) of a file that `has` tensors and keys; None if none fits."""
        for _, variant in self.variants:
            if variant._marked(has):
                return variant
        return self if self.read and self._marked(has) else None

    def _marked(self, has: Container[str]) -> bool:
        return all(word in has for word in self.marker.split())

    def of_settings(self, settings: Mapping[str, object]) -> GgufArchitecture:
        """Return the variant (or this) for writing a model with `settings`."""
        chosen = (own for (name, value), own in self.variants if settings.get(name) == value)
        return next(chosen, self)

    def offset_of(self, stem: str, suffix: str) -> float:
        """Return the offset of elements in GGUF; `stem` is the name without `blk.N.` and suffix."""
        norm = stem.endswith("norm") and not stem.startswith("ssm")
        return self.offset if norm and suffix == "weight" else 0.0

    def order_of(self, stem: str) -> RowOrder | None:
        """Return the order of a tensor's rows in GGUF; None if it equals the model's."""
        if self.rotated and stem in _ROTATED:
            return "rotated"
        return "grouped" if self.grouped and stem == _JOINED else None

    def own(self, name: str) -> str:
        """Return the kind's name of a setting of Llama; empty if it has no such setting."""
        return dict(self.sizes).get(name, name)

    def model_name(self, stem: str) -> str | None:
        """Return the name of a tensor in the model (`ffn_up.3` is expert 3); None if unknown."""
        expert = _EXPERT.fullmatch(stem)
        if expert is None or self.experts is None:
            return self.names.get(stem, _NEXT.get(stem))
        found = self.experts.get(expert[1])
        return None if found is None else found.format(expert[2])

    def bare_name(self, inner: str) -> str | None:
        """Return the name with suffix in the file of a tensor without one; None for others."""
        found = (each for each in self.bare if self.names[each.rpartition(".")[0]] == inner)
        return next(found, None)

    def stem_of(self, inner: str) -> str | None:
        """Return the name in the file of the model's tensor `inner`; None if unknown."""
        for stem, name in self.names.items():
            if name == inner:
                return stem
        for stem, name in (self.experts or {}).items():
            before, _, after = name.partition("{}")
            number = inner.removeprefix(before).removesuffix(after)
            if number.isdigit() and name.format(number) == inner:
                return f"{stem}.{number}"
        return None


# Descriptions of a kind's tensors in timm, and of the settings that follow from their sizes.


Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of tensors by timm's names."""
Rule = tuple[str, tuple[str, ...]]
"""A pattern of timm's names, and the kind's names; several names share the rows."""


def _same_name(name: str, _: Shapes) -> str:
    return name


def _same_shape(_: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape


class TimmFamily(Struct, frozen=True):
    """The timm architectures of a kind; patterns match whole names."""

    architectures: str
    """A pattern of their names, with groups for `settings`."""
    rules: Sequence[Rule]
    """The first row with a matching pattern names a tensor in the kind."""
    settings: Callable[[re.Match[str], Shapes], dict[str, object]]
    """Makes config.json, without `model_type`; KeyError if a tensor is missing."""
    pooling: str
    """The `global_pool` of the kind."""
    head: str | None = None
    """A tensor that the kind requires."""
    counted: Callable[[str, Shapes], str] = _same_name
    """Renumbers the layers in a name of timm; returns an empty name for unused buffers."""
    shaped: Callable[[str, tuple[int, ...]], tuple[int, ...]] = _same_shape
    """The shape of a tensor in the kind by its name and shape in timm."""
