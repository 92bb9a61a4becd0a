"""Describe how llama.cpp calls and lays out the tensors and settings of a kind of model."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from gptrs.quick_dataclass import dataclass

if TYPE_CHECKING:
    from gptrs.checkpoint.config_fields import ConfigFields


RowOrder = Literal["rotated", "grouped"]
"""Orders of rows that differ from the model's: `rotated`, `grouped`; see `GgufArchitecture`."""
Settings = dict[str, object]

RMS_EPSILON = "attention.layer_norm_rms_epsilon"
_EXPERT = re.compile(r"(ffn_[a-z]+)\.(0|[1-9][0-9]{0,4})")
_ROTATED, _JOINED = ("attn_q", "attn_k"), "attn_qkv"


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """How llama.cpp calls and lays out the tensors and settings of one kind of model.

    Names of tensors are without `blk.N.` and the suffix in the file, and without `layers` and the
    number in the model. Keys of settings are without the name of the architecture in front.
    """

    names: Mapping[str, str]
    """The model's name of each tensor by that in the file."""
    layers: str = "model.layers"
    experts: Mapping[str, str] | None = None
    """The same for tensors of one expert, `{}` for its number."""
    turned: tuple[str, ...] = ()
    """Matrices that are [outputs, inputs] in the file and [inputs, outputs] in the model."""
    rotated: bool = False
    """Whether rows of queries and keys are in the order of interleaved rotary embeddings there."""
    grouped: bool = False
    """Whether a joined projection has all queries first there, and in the model the queries, the
    key and the value of one group of heads after another."""
    epsilon: tuple[str, str] = (RMS_EPSILON, "rms_norm_eps")
    """The key of the epsilon of norms, and its name in config.json; empty for kinds without norms
    and those whose epsilon is no setting."""
    sizes: tuple[tuple[str, str], ...] = ()
    """Settings that this kind calls otherwise than Llama: Llama's name, its own; an empty one for a
    setting that it does not have, which is neither read nor written."""
    head_dim: int | None = None
    """Components of a head where config.json does not say: None for the width by the heads."""
    wide: bool = False
    """Whether an MLP is four times as wide as the model where nothing else is said."""
    numbers: tuple[tuple[str, str, float], ...] = ()
    """More settings: key, name in config.json, default."""
    integers: tuple[tuple[str, str], ...] = ()
    """Integers that must be there: key, name in config.json."""
    flags: tuple[tuple[str, str], ...] = ()
    """Booleans that are true unless stated: key, name in config.json."""
    options: tuple[tuple[str, str], ...] = ()
    """Settings whose key is left out where they are null."""
    fixed: tuple[tuple[str, object, object], ...] = ()
    """Settings that llama.cpp takes for granted: name, value, what a config without it means."""
    stated: tuple[tuple[str, bool], ...] = ()
    """Keys that are written with the only value that the kind has."""
    biases: tuple[tuple[str, str], ...] = ()
    """Settings that are true where a tensor is in the file: name, the whole name of the tensor."""
    activations: tuple[str, ...] = ("silu",)
    """The values of `hidden_act` that llama.cpp computes."""
    rotary: bool = True
    """Whether heads are rotated."""
    share: float | None = None
    """The part of a head that is rotated by default, in kinds where it may be less than all."""
    offset: float = 0.0
    """The number added to the weights of norms in the file."""
    window: int | None = None
    """The sliding window of a file without its key, 0 for none; None in kinds without windows."""
    unused_window: bool = False
    """Whether files may have a window that llama.cpp does not use."""
    pattern: int = 1
    """Each `pattern`-th layer has no window."""
    local_theta: tuple[str, float] | None = None
    """The setting for the base of the rotary embedding in layers with a window, of kinds in which
    these have their own, and the base of a file without its key."""
    largest: int | None = None
    """Layers of the model that scales scores by `embedding_length / head_count`."""
    bare: tuple[str, ...] = ()
    """Tensors whose name in the model has no suffix."""
    rounded: bool = True
    """Whether the bounds of YaRN are rounded."""
    prepare: Callable[[ConfigFields, Settings], Settings] | None = None
    """Changes the settings of config.json, as they are and under Llama's names, to what is written;
    ModelError for those that llama.cpp has no word for."""
    read: bool = True
    """Whether files are read, too: one architecture may be that of several kinds, one of them reads
    files that do not tell which."""
    written: bool = True
    """Whether files are written, too, not only read."""
    marker: str = ""
    """A tensor that tells files of this kind from others of the architecture."""
    variants: tuple[tuple[tuple[str, object], GgufArchitecture], ...] = ()
    """Variants of the same kind, each with a marker: a setting and the value that a model has that
    is written so, and the variant."""

    def in_file(self, tensors: Container[str]) -> GgufArchitecture | None:
        """Return this or the variant that a file with `tensors` is of; None if it is of neither."""
        for _, variant in self.variants:
            if variant.marker in tensors:
                return variant
        return self if self.read and (not self.marker or self.marker in tensors) else None

    def of_settings(self, settings: Mapping[str, object]) -> GgufArchitecture:
        """Return this or the variant that a model with `settings` is written as."""
        chosen = (own for (name, value), own in self.variants if settings.get(name) == value)
        return next(chosen, self)

    def offset_of(self, stem: str, suffix: str) -> float:
        """Return what GGUF adds to each element; `stem` is the name without `blk.N.` and suffix."""
        return self.offset if stem.endswith("norm") and suffix == "weight" else 0.0

    def order_of(self, stem: str) -> RowOrder | None:
        """Return how GGUF orders the rows of a tensor otherwise than the model, None for alike."""
        if self.rotated and stem in _ROTATED:
            return "rotated"
        return "grouped" if self.grouped and stem == _JOINED else None

    def own(self, name: str) -> str:
        """Return what config.json calls a setting of Llama, nothing if it has no such setting."""
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


# Describe how timm calls the tensors of a kind of model, and what its sizes say of settings.


Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of tensors by timm's names."""
Rule = tuple[str, tuple[str, ...]]
"""A pattern of timm's names, and what they are called; several names share the rows."""


def _same_name(name: str, _: Shapes) -> str:
    return name


def _same_shape(_: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape


@dataclass(frozen=True)
class TimmFamily:
    """Architectures of timm that are of one kind; patterns match whole names."""

    architectures: str
    """A pattern of their names, whose groups `settings` may read."""
    rules: Sequence[Rule]
    """The first whose pattern matches a tensor says what the kind calls it."""
    settings: Callable[[re.Match[str], Shapes], dict[str, object]]
    """Makes config.json, without `model_type`; KeyError for a tensor that is missing."""
    pooling: str
    """The `global_pool` that the kind computes."""
    head: str | None = None
    """A tensor without which the kind does not load."""
    counted: Callable[[str, Shapes], str] = _same_name
    """Counts the layers in a name of timm as the kind does; empty for a buffer of no use."""
    shaped: Callable[[str, tuple[int, ...]], tuple[int, ...]] = _same_shape
    """The shape of a tensor in the kind by its name and shape in timm."""
