"""Names of values inside a model: modules, inputs, outputs, and hook points of TransformerLens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final, Literal

from msgspec import Struct

from gptrs.errors import ModelError, UsageError
from gptrs.nn.layers import HookPoint, Module
from gptrs.quoting import quoted
from gptrs_runtime.loaded_model import LoadedModel

Kind = Literal["input", "output", "attention"]

_ITEM: Final = re.compile(r"((?:.*\.)?)(\d+)")
"""An item of a list of modules: the prefix of all items, and its number."""
_ATTENTION: Final = ("attn", "self_attn", "attention", "self_attention")
_FIRST: Final = ("c_fc", "gate_proj", "up_proj", "fc1", "fc_in")
"""Layers before the activation of an MLP; of a gated one, the gate."""
_MLP: Final = ("mlp", "feed_forward", "ffn")
_LAST: Final = ("c_proj", "o_proj", "out_proj", "dense", "down_proj", "fc2", "fc_out", "wo")
"""Layers that return to the residual stream, in attention and in an MLP."""
_NORM_1: Final = ("ln_1", "input_layernorm")
_NORM_2: Final = ("ln_2", "post_attention_layernorm")
"""The norms before attention and before the MLP."""
_LAST_NORM: Final = ("ln_f", "norm")
_POSITIONS: Final = ("wpe", "embed_positions", "position_embeddings")
_EMBEDDING: Final = ("wte", "embed_tokens", "word_embeddings", "embeddings")
_TORCH_ROOTS: Final = ("transformer.", "model.")
"""Attributes of models of transformers that hold the modules, as nnsight spells their paths."""
_KINDS: Final[tuple[Kind, ...]] = ("input", "output", "attention")


class Site(Struct, frozen=True):
    """A value inside a model: what a module gets or returns, or the weights of its attention."""

    module: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.module}.{self.kind}"


class Sites:
    """The sites of a model, by the names that users give them."""

    def __init__(self, model: LoadedModel) -> None:
        """ModelError for a model that is not made of modules."""
        self.watched = _modules(model)
        """Modules and the hook points in them, which no pattern of modules matches."""
        self.modules = {
            name: each for name, each in self.watched.items() if not isinstance(each, HookPoint)
        }
        self.blocks = _blocks(self.modules)
        """The modules of the residual stream, from the first block to the last; perhaps none."""
        self._points = _hook_points(self.watched, self.blocks)

    def names(self, pattern: str) -> list[str]:
        """Return the names that a pattern matches: modules, else hook points and `NAME.output`.

        UsageError if there is none.
        """
        if pattern in self.watched:
            return [pattern]
        found = _matching(pattern, self.modules) or _matching(pattern, self._points)
        if found:
            return found
        base, _, kind = pattern.rpartition(".")
        if base and kind in _KINDS:
            return [f"{name}.{kind}" for name in self.names(base)]
        # Last, since a module here may be called `model` itself.
        for root in _TORCH_ROOTS:
            if pattern.startswith(root) and (
                inner := _matching(pattern.removeprefix(root), self.modules)
            ):
                return inner
        near = get_close_matches(pattern, [*self.modules, *self._points], 3, 0.4)
        raise UsageError(
            f"no module is called {quoted(pattern)}",
            hint=f"near it: {', '.join(map(quoted, near))}"
            if near
            else "`gptrs trace --modules` lists them",
        )

    def site(self, name: str) -> Site:
        """Return the site of one name of `names`; the output where it names a module."""
        if name in self.watched:
            return Site(name, "output")
        if name in self._points:
            return self._points[name]
        base, _, kind = name.rpartition(".")
        for each in _KINDS:
            if kind == each and base:
                return Site(self.site(base).module, each)
        (found,) = self.names(name)
        return Site(found, "output")


def _modules(model: LoadedModel) -> dict[str, Module]:
    modules = model.named_modules()
    if not modules:
        raise ModelError(
            f"`{model.name}` is not made of modules that could be watched",
            hint="models whose layers are `gptrs.nn.Module`s are",
        )
    return modules


def _matching(pattern: str, known: Mapping[str, object]) -> list[str]:
    return [pattern] if pattern in known else [name for name in known if fnmatchcase(name, pattern)]


def _blocks(modules: Mapping[str, Module]) -> list[str]:
    """Return the items of the outermost list of modules; none where there are several such."""
    lists: dict[str, list[str]] = {}
    for name in modules:
        item = _ITEM.fullmatch(name)
        if item:
            lists.setdefault(item[1], []).append(name)
    if not lists:
        return []
    # Blocks may hold lists of their own, such as experts.
    depth = min(prefix.count(".") for prefix in lists)
    outermost = [names for prefix, names in lists.items() if prefix.count(".") == depth]
    # Encoder-decoders have two lists: block numbers would be ambiguous.
    return outermost[0] if len(outermost) == 1 else []


def _hook_points(modules: Mapping[str, Module], blocks: list[str]) -> dict[str, Site]:
    """Return the hook points of TransformerLens that the model has, in the order of computation."""
    found: dict[str, Site] = {}
    tables = [name for last in _EMBEDDING for name in modules if name.rpartition(".")[2] == last]
    if tables and blocks:
        found["hook_embed"] = Site(tables[0], "output")
    positions = [name for last in _POSITIONS for name in modules if name.rpartition(".")[2] == last]
    if positions and blocks:
        found["hook_pos_embed"] = Site(positions[0], "output")
    for number, block in enumerate(blocks):
        prefix = f"blocks.{number}"
        attention, mlp = _first(modules, block, _ATTENTION), _first(modules, block, _MLP)
        found[f"{prefix}.hook_resid_pre"] = Site(block, "input")
        found |= _norm_point(f"{prefix}.ln1", _first(modules, block, _NORM_1))
        if attention:
            found |= _attention_points(modules, attention, prefix)
        found |= _own_points(modules, block, prefix)
        found |= _norm_point(f"{prefix}.ln2", _first(modules, block, _NORM_2))
        if mlp:
            found |= _mlp_points(modules, mlp, prefix)
        found[f"{prefix}.hook_resid_post"] = Site(block, "output")
    if blocks:
        last = next((name for name in _LAST_NORM if name in modules), None)
        found |= _norm_point("ln_final", last)
    return found


def _norm_point(prefix: str, norm: str | None) -> dict[str, Site]:
    return {f"{prefix}.hook_normalized": Site(norm, "output")} if norm else {}


def _attention_points(
    modules: Mapping[str, Module], attention: str, prefix: str
) -> dict[str, Site]:
    found = _own_points(modules, attention, f"{prefix}.attn")
    found[f"{prefix}.attn.hook_pattern"] = Site(attention, "attention")
    if last := _first(modules, attention, _LAST):
        found[f"{prefix}.attn.hook_z"] = Site(last, "input")
    found[f"{prefix}.hook_attn_out"] = Site(attention, "output")
    return found


def _mlp_points(modules: Mapping[str, Module], mlp: str, prefix: str) -> dict[str, Site]:
    found: dict[str, Site] = {}
    if first := _first(modules, mlp, _FIRST):
        found[f"{prefix}.mlp.hook_pre"] = Site(first, "output")
    if first and first.endswith("gate_proj") and (up := _first(modules, mlp, ("up_proj",))):
        found[f"{prefix}.mlp.hook_pre_linear"] = Site(up, "output")
    if last := _first(modules, mlp, _LAST):
        found[f"{prefix}.mlp.hook_post"] = Site(last, "input")
    found[f"{prefix}.hook_mlp_out"] = Site(mlp, "output")
    return found


def _own_points(modules: Mapping[str, Module], within: str, prefix: str) -> dict[str, Site]:
    """Return the hook points that a module itself has, below `prefix`."""
    names = [f"{within}.{name}" for name, each in vars(modules[within]).items()
             if isinstance(each, HookPoint)]  # fmt: skip
    return {f"{prefix}.{name.rpartition('.')[2]}": Site(name, "output") for name in names}


def _first(modules: Mapping[str, Module], within: str, names: Sequence[str]) -> str | None:
    """Return the first module of these names directly in another one."""
    return next((f"{within}.{name}" for name in names if f"{within}.{name}" in modules), None)
