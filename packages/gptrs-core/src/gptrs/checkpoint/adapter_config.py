"""LoRA adapters of PEFT: the supported settings, products for layers, and whole tensors."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.files.open_file import read_whole
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.errors import CheckpointError, ModelError, UsageError
from gptrs.quoting import counted, listed, quoted, shown_value
from gptrs.strict_json import parse_object, record_of

_LOG = logging.getLogger("gptrs")
_REFUSED: Final[Mapping[str, str]] = {
    "lora_bias": "its products have a bias",
    "layer_replication": "it repeats layers of the model",
    "trainable_token_indices": "it changes the vectors of single tokens",
    "use_qalora": "QALoRA pools the inputs",
    "alora_invocation_tokens": "aLoRA begins in the middle of a text",
    "arrow_config": "Arrow mixes several adapters",
    "use_bdlora": "its factors are in blocks",
    "velora_config": "VeLoRA projects its inputs",
    "megatron_config": "it is made for layers of Megatron",
    "kasa_config": "KaSA changes the weights of the model",
    "monteclora_config": "MonteCLoRA samples its factors",
}
"""Settings that change more than adding a product to a linear layer, and how."""
_ITEM: Final = r"(\\[.dw]|\[\^?[A-Za-z0-9_-]+\]|[A-Za-z0-9_.])([*+?]?)"
"""A character or a class of them, and how often it comes."""
_ITEMS: Final = "(?:" + _ITEM.replace("(", "(?:") + ")"
_PART: Final = rf"(?:\((?:\?:)?{_ITEMS}*(?:\|{_ITEMS}*)*\)|{_ITEMS}|[\^$])"
_LONGEST_PATTERN: Final = 500
_ALL: Final = "all-linear"
"""The `target_modules` that means all linear layers."""
_OF_TRAINING: Final = (
    *("arrow_config", "auto_mapping", "bias", "corda_config", "eva_config", "fan_in_fan_out"),
    *("inference_mode", "lora_dropout", "lora_ga_config", "loftq_config", "megatron_core"),
    *("peft_type", "qalora_group_size", "revision", "runtime_config"),
)
"""Settings that say nothing about the result, or nothing that the tensors do not say."""
_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Prefixes of `init_lora_weights` for which PEFT changes the weights of the model, too."""


class AdapterConfig(Struct, frozen=True):
    """The settings of a LoRA adapter that are read, with the names and defaults of PEFT."""

    lora_alpha: float = 8
    r: int = 8
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    use_rslora: bool | None = None
    use_dora: bool | None = None
    init_lora_weights: bool | str | None = None
    target_parameters: list[str] | None = None
    peft_version: str | None = None
    modules_to_save: list[str] | None = None
    ensure_weight_tying: bool | None = None
    task_type: str | None = None
    base_model_name_or_path: str | None = None

    def factor(self, module: str, rank: int) -> float:
        """Return what the product of a module is multiplied by (Kalajdzievski 2023 for rsLoRA)."""
        alpha = _by_pattern(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def means(self, module: str) -> bool:
        """Return whether the module is one that is adapted, by all settings that choose modules.

        True if they choose parameters, or by an expression of `unread`.
        """
        wanted = self.target_modules
        if _is_named(self.exclude_modules, module) or _is_inside(self.modules_to_save, module):
            return False
        if self.target_parameters or wanted is None:
            return True
        if isinstance(wanted, str) and wanted:
            known = wanted.lower() != _ALL and _is_simple(wanted)
            return not known or _is_meant(wanted, module, whole=True)
        # Or the end of a name: some writers shorten those in the file.
        if not any(_matches(name, module) or _matches(module, name) for name in wanted):
            return False
        layers, patterns = self.layers_to_transform, self.layers_pattern or []
        if module in wanted or layers is None or layers == []:
            return True
        found = _layer(module, [patterns] if isinstance(patterns, str) else patterns)
        return found in ([layers] if isinstance(layers, int) else layers)

    @property
    def unread(self) -> Sequence[str]:
        """The settings that choose modules by an expression that is not simple: without effect."""
        found = {"target_modules": self.target_modules, "exclude_modules": self.exclude_modules}
        expressions = {name: held for name, held in found.items() if isinstance(held, str) and held}
        return [
            name
            for name, held in expressions.items()
            if held.lower() != _ALL and not _is_simple(held)
        ]

    def has_rank(self, module: str, rank: int) -> bool:
        """Return whether a module may have this rank by the settings; True if they do not say.

        Factors of experts may have ranks of their own.
        """
        if _EXPERTS.search(module) or not all(map(_is_simple, self.rank_pattern or ())):
            return True
        return rank == _by_pattern(self.rank_pattern, module, self.r)

    def is_apart(self, module: str) -> bool:
        """Return whether a module is a copy of its own, and an output layer tied to it is not."""
        # PEFT copies these modules, also from an output layer that is tied to a table.
        return not self.ensure_weight_tying and _is_inside(self.modules_to_save, module)


def adapter_config(settings: Mapping[str, object], where: str) -> AdapterConfig:
    """Return the settings of an adapter; ModelError for malformed or unsupported ones.

    `where` names the file in errors.
    """
    shown = quoted(where, 200)

    def refused(problem: str, hint: str = "merge the adapter with PEFT") -> ModelError:
        return ModelError(f"{shown} cannot be used: {problem}", hint=hint)

    kind = settings.get("peft_type")
    if kind != "LORA":
        raise refused(f"`peft_type` is {shown_value(kind)}", "LORA is supported")
    for name, why in _REFUSED.items():
        if settings.get(name):
            raise refused(f"`{name}` is set: {why}")
    config = record_of(settings, AdapterConfig, shown)
    init = config.init_lora_weights
    if isinstance(init, str) and init.lower().startswith(_CHANGES_BASE):
        raise refused(
            f"`init_lora_weights` is {shown_value(init)}, which changes the model itself",
            "save it converted to plain LoRA (`path_initial_model_for_weight_conversion`)",
        )
    _require_readable(config, refused)
    return config


def _require_readable(config: AdapterConfig, refused: Callable[[str, str], ModelError]) -> None:
    """Raise the error of `refused` for settings that contradict each other, as PEFT does, and for
    expressions that are not simple."""
    wanted, pattern = config.target_modules, config.layers_pattern or []
    for name in ("layers_to_transform", "layers_pattern"):
        if isinstance(wanted, str) and getattr(config, name) is not None:
            raise refused(
                f"`{name}` is for a list of modules, and `target_modules` is {shown_value(wanted)}",
                "give `target_modules` as a list, or the layers in its expression",
            )
    if pattern and config.layers_to_transform is None:
        raise refused("`layers_pattern` is set", "set `layers_to_transform`, too, or neither")
    expressions = {
        "alpha_pattern": config.alpha_pattern or (),
        "layers_pattern": [pattern] if isinstance(pattern, str) else pattern,
    }
    for name, key in ((name, key) for name, keys in expressions.items() for key in keys):
        if not _is_simple(key):
            raise refused(
                f"`{name}` has the expression {shown_value(key)}",
                "supported are names, and expressions of characters, classes `[0-9]`, and groups"
                " `(a|b)` that do not come more than once",
            )


def _is_simple(key: str) -> bool:
    """Return whether a key of a pattern is an expression that `_is_meant` takes."""
    try:
        re.compile(key)
    except re.error:
        return False
    return len(key) <= _LONGEST_PATTERN and re.fullmatch(f"{_PART}+", key) is not None


def _is_meant(key: str, module: str, *, whole: bool = False) -> bool:
    """Return whether an expression matches a module: its whole name, or, unless `whole`, its end.

    All places that are reached are followed at once: files are untrusted, and `re` may try ways
    without end.
    """
    ends = {0} | {at + 1 for at, letter in enumerate(module) if letter == "." and not whole}
    for part in re.findall(_PART, key):
        if part in "^$":
            ends &= {0 if part == "^" else len(module)}
        elif part.startswith("("):
            branches = part[1:-1].removeprefix("?:").split("|")
            ends = set[int]().union(*(_after(branch, module, ends) for branch in branches))
        else:
            ends = _after(part, module, ends)
    return len(module) in ends


def _after(items: str, text: str, starts: set[int]) -> set[int]:
    """Return where matches of characters end that begin at any of `starts`."""
    for item, times in re.findall(_ITEM, items):
        reached = set(starts) if times in ("*", "?") else set[int]()
        latest = starts
        while latest:
            inside = {at for at in latest if at < len(text)}
            latest = {at + 1 for at in inside if re.fullmatch(item, text[at])} - reached
            reached |= latest
            if times in ("", "?"):
                break
        starts = reached
    return starts


def _by_pattern(pattern: Mapping[str, float] | None, module: str, other: float) -> float:
    """Return the value of the first expression that matches a module as PEFT has it, or `other`."""
    return next((value for key, value in (pattern or {}).items() if _is_meant(key, module)), other)


def _matches(name: str, module: str) -> bool:
    """Return whether a name is that of a module, or its end."""
    return module == name or module.endswith(f".{name}")


def _is_named(names: Sequence[str] | str | None, module: str) -> bool:
    """Return whether names, or one simple expression of a whole name, mean a module."""
    if isinstance(names, str):
        return _is_simple(names) and _is_meant(names, module, whole=True)
    return any(_matches(name, module) for name in names or ())


def _is_inside(names: Sequence[str] | None, module: str) -> bool:
    """Return whether a module is one of these names, or a part of one."""
    parts = module.split(".")
    around = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(_matches(name, each) for name in names or () for each in around)


def _layer(module: str, patterns: Sequence[str]) -> int | None:
    """Return the first number in a name that follows a list of layers.

    Expressions of `patterns`, if any, match the list.
    """
    parts = module.split(".")
    for at, part in enumerate(parts[:-1]):
        before = ".".join(parts[:at])
        listed_in = any(_is_meant(p, before) for p in patterns) if patterns else at > 1
        if part.isdecimal() and listed_in:
            return int(part)
    return None


# LoRA adapters (Hu et al. 2021) in the layout of PEFT: a product of two factors for each layer,
# and tensors that replace those of the model.


CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
BASE_DIGEST: Final = "gptrs.base"
"""The key of the metadata of `WEIGHTS` for the digest of the weights that were adapted."""
_PREFIX: Final = "base_model.model."
_MOST_CONFIG_BYTES: Final = 1_000_000

Part = Literal["A", "B", "table A", "table B", "magnitude"]
_PARTS: Final[Mapping[str, Part]] = {
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_embedding_A": "table A",
    ".lora_embedding_B": "table B",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
}
"""The ends of the names of tensors that change a layer."""
_EXPERTS: Final = re.compile(r"(^|\.)experts(\.|$)")
"""A module of experts, all or one of them."""
_ROUTERS: Final = (
    (".block_sparse_moe.gate", ".mlp.gate"),
    (".block_sparse_moe.gate", ".mlp.router"),
    (".block_sparse_moe.router.layer", ".block_sparse_moe.router"),
)
"""Ends of the names of routers in files, and those in models of transformers 5."""
_FIRST_UNTURNED: Final = 19
"""The minor version of PEFT that knows which axis of a matrix of experts is the inputs."""
INNER: Final = ".base_layer"
"""The end that PEFT adds to the name of a module once for each further parameter it adapts."""
_NESTED: Final = re.compile(rf"(?<=\.experts)({re.escape(INNER)})+$")
_INSIDE: Final = (INNER, ".modules_to_save")
"""Parts that PEFT inserts between the name of a module and those of its tensors."""


class LowRankProduct(Struct, frozen=True):
    """The sum that a layer gets: `x A^T B^T factor`, for A [rank, inputs] and B [outputs, rank].

    A `table` of vectors is a layer whose inputs are its entries. With a `magnitude` [outputs]
    (DoRA, Liu et al. 2024, section 4), each output is then multiplied by `rescaling`.
    """

    a: np.ndarray
    b: np.ndarray
    factor: float
    magnitude: np.ndarray | None = None
    is_table: bool = False

    def scaled_b(self) -> np.ndarray:
        """Return B times the factor, f32."""
        return self.b * np.float32(self.factor)

    def merged(self, weight: np.ndarray, *, turned: bool) -> np.ndarray:
        """Return the weight f32 [outputs, inputs], [inputs, outputs] if `turned`, as changed."""
        change = self.scaled_b() @ self.a
        summed = weight + (change.T if turned else change)
        if self.magnitude is None:
            return summed
        scale = _rescaling(summed, self.magnitude, turned=turned)
        return summed * (scale if turned else scale[:, None])

    def rescaling(self, weight: np.ndarray, *, turned: bool) -> np.ndarray:
        """Return the magnitude over the norm of the changed weight of each output, f32 [outputs].

        Takes the weight of `merged`. UsageError without a magnitude.
        """
        if self.magnitude is None:
            raise UsageError("a product without a magnitude does not rescale a layer")
        change = self.scaled_b() @ self.a
        summed = weight + (change.T if turned else change)
        return _rescaling(summed, self.magnitude, turned=turned)


def _rescaling(summed: np.ndarray, magnitude: np.ndarray, *, turned: bool) -> np.ndarray:
    norms = np.linalg.norm(summed, axis=0 if turned else 1)
    return (magnitude / norms).astype(np.float32)


class LowRankAdapter:
    """The adapter in the folder `path`: products by the names of layers, and whole tensors.

    `digest` is one of all that it changes; `task` and `base` are the task and the model that it was
    made for, and `base_digest` the digest of that model's weights, if it says so. ModelError for
    files that are missing and settings that are not supported, CheckpointError for damaged tensors
    and those that are not factors.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._whole: dict[str, np.ndarray] = {}
        self._products = self._read()
        digest = hashlib.blake2b(digest_size=16)
        for module, product in sorted(self._products.items()):
            content = (module, product.a.shape, product.b.shape, product.factor)
            digest.update(repr(content).encode())
            digest.update(product.a.tobytes())
            digest.update(product.b.tobytes())
            if product.magnitude is not None:
                digest.update(b"magnitude" + product.magnitude.tobytes())
        for name, array in sorted(self._whole.items()):
            digest.update(repr((name, str(array.dtype), array.shape)).encode())
            digest.update(array.tobytes())
        self.digest = digest.hexdigest()

    def __repr__(self) -> str:
        whole = f", {counted(len(self._whole), 'tensor')}" if self._whole else ""
        return f"<LowRankAdapter {self.path}: {len(self._products)} layers{whole}>"

    @property
    def modules(self) -> Sequence[str]:
        """The names of the layers that get products, as transformers calls them."""
        return tuple(self._products)

    @property
    def tensors(self) -> Mapping[str, np.ndarray]:
        """The tensors that replace those of the model, by the names of transformers."""
        return self._whole

    @property
    def is_summed(self) -> bool:
        """Whether all that it does is adding products to linear layers."""
        plain = all(p.magnitude is None and not p.is_table for p in self._products.values())
        return plain and not self._whole and not any(map(_EXPERTS.search, self._products))

    @property
    def has_turned_experts(self) -> bool:
        """Whether factors of experts in one parameter go from the outputs to the inputs."""
        found = re.match(r"0\.([0-9]{1,3})\.", self._config.peft_version or "0.0.")
        return found is not None and int(found[1]) < _FIRST_UNTURNED

    def module_of(self, layer: str) -> str | None:
        """Return the module that a checkpoint calls `layer`; None if it is not changed.

        Checkpoints may leave out the first part of a name, such as `transformer`, or add one.
        """
        for name in (layer, *_new_names(layer)):
            found = _own_name(name, self._products, self._without_first)
            if found is not None:
                return found
        return None

    def tensor_of(self, name: str) -> str | None:
        """Return the name in `tensors` of what a checkpoint calls `name`, found as `module_of`."""
        return _own_name(name, self._whole, self._whole_without_first)

    def is_apart(self, tensor: str) -> bool:
        """Return whether a tensor of `tensors` leaves an output layer that is tied to it alone."""
        return tensor in self._apart

    @cached_property
    def _without_first(self) -> Mapping[str, str]:
        return {module.partition(".")[2]: module for module in self._products}

    @cached_property
    def _whole_without_first(self) -> Mapping[str, str]:
        return {name.partition(".")[2]: name for name in self._whole}

    def product(self, module: str) -> LowRankProduct:
        """Return the product that is added to a module."""
        return self._products[module]

    def factor(self, module: str, rank: int) -> float:
        """Return what the product of a module of this rank is multiplied by."""
        return self._config.factor(module, rank)

    def _read(self) -> dict[str, LowRankProduct]:
        shown = quoted(str(self.path), 200)
        if not (self.path / CONFIG).is_file() or not (self.path / WEIGHTS).is_file():
            missing = CONFIG if not (self.path / CONFIG).is_file() else WEIGHTS
            raise ModelError(
                f"there is no adapter in {shown}: it has no {missing}",
                hint="name a folder that `save_pretrained` of PEFT has written, with safetensors",
            )
        where = str(self.path / CONFIG)
        settings = parse_object(read_whole(self.path / CONFIG, _MOST_CONFIG_BYTES), where)
        config = self._config = adapter_config(settings, where)
        self.task, self.base = config.task_type, config.base_model_name_or_path
        with SafetensorsFile.open(self.path / WEIGHTS) as file:
            self.base_digest = file.metadata.get(BASE_DIGEST)
            changes = self._changes(file)
        if config.modules_to_save and not self._whole:
            raise self._lacks("the modules of `modules_to_save`")
        changes = self._meant(changes, settings)
        apart = (name for name in self._whole if config.is_apart(name.rpartition(".")[0]))
        self._apart = frozenset(apart) - self._inner
        return {module: self._product(module, parts, config) for module, parts in changes.items()}

    def _changes(self, file: SafetensorsFile) -> dict[str, dict[Part, np.ndarray]]:
        """Return the parts of products by module; keep the whole tensors."""
        changes: dict[str, dict[Part, np.ndarray]] = {}
        odd: list[str] = []
        inner = set[str]()
        for name in file.entries:
            own = name.removeprefix(_PREFIX)
            end = next((end for end in _PARTS if own.endswith(end)), None)
            module = own if end is None else own.removesuffix(end)
            inside = _NESTED.sub("", module).endswith(_INSIDE)
            if own == name or (end is None and ".lora_" in own) or inside:
                odd.append(name)
            elif end is not None:
                values = file.read(name).astype(np.float32)
                changes.setdefault(module, {})[_PARTS[end]] = values
            else:
                layer, _, last = own.rpartition(".")
                plain = re.sub(r"\.(base_layer|modules_to_save)(?=\.|$)", "", layer)
                whole = f"{plain}.{last}"
                self._whole[whole] = file.read(name)
                if layer.endswith(INNER):
                    inner.add(whole)
        self._inner = frozenset(inner)
        where = quoted(str(self.path / WEIGHTS), 200)
        if odd:
            raise ModelError(
                f"{where} has tensors that are neither factors of linear layers or tables nor whole"
                f" modules: {listed(odd, 3)}",
                hint="merge the adapter with PEFT, and load the merged model",
            )
        if not changes and not self._whole:
            raise CheckpointError(f"{where} has no tensors")
        return changes

    def _meant(
        self, changes: Mapping[str, dict[Part, np.ndarray]], settings: Mapping[str, object]
    ) -> dict[str, dict[Part, np.ndarray]]:
        """Return what the settings mean of a file, as PEFT does, and tell what they leave out."""
        config, where = self._config, quoted(str(self.path / CONFIG), 200)
        known = {*AdapterConfig.__struct_fields__, *_REFUSED, *_OF_TRAINING}
        unknown = [name for name, value in settings.items() if value and name not in known]
        if unknown:
            _LOG.warning(
                "%s has unknown settings, which are ignored: %s", where, listed(unknown, 3)
            )
        if config.target_modules is None and not config.target_parameters and changes:
            _LOG.warning(
                "%s has no `target_modules`: all modules in %s are adapted, where PEFT takes only"
                " its defaults for the type of the model",
                where,
                WEIGHTS,
            )
        if config.unread:
            _LOG.warning(
                "%s chooses modules in %s by an expression that is not supported: ignored, so that"
                " it skips nothing of %s",
                where,
                listed(config.unread),
                WEIGHTS,
            )
        meant = {module: dict(parts) for module, parts in changes.items() if config.means(module)}
        left = [module for module in changes if module not in meant]
        if left and not meant:
            raise ModelError(
                f"{where} means none of the modules in {WEIGHTS}: {listed(left, 3)}",
                hint="correct `target_modules`, or what else chooses modules",
            )
        if left:
            _LOG.warning(
                "%s leaves out %s, which %s has: skipped, as in PEFT",
                where,
                listed(left, 3),
                WEIGHTS,
            )
        scaled = [module for module, parts in meant.items() if "magnitude" in parts]
        if scaled and not config.use_dora:
            _LOG.warning(
                "%s has no `use_dora`: the magnitudes in %s are skipped, as in PEFT", where, WEIGHTS
            )
            for module in scaled:
                del meant[module]["magnitude"]
        return meant

    def _lacks(self, what: str) -> CheckpointError:
        where = quoted(str(self.path / WEIGHTS), 200)
        return CheckpointError(f"{where} lacks {what}", hint="save the adapter again")

    def _odd_rank(self, module: str, rank: int) -> CheckpointError:
        where = quoted(str(self.path / CONFIG), 200)
        return CheckpointError(
            f"{where} gives {quoted(module)} another rank than its factors have: {rank}",
            hint="correct `r` or `rank_pattern`, on which the scale depends",
        )

    def _product(
        self, module: str, parts: Mapping[Part, np.ndarray], config: AdapterConfig
    ) -> LowRankProduct:
        is_table = "table A" in parts
        first = parts.get("table A" if is_table else "A")
        second = parts.get("table B" if is_table else "B")
        magnitude = parts.get("magnitude")
        if config.use_dora and magnitude is None:
            raise self._lacks(f"the magnitude of {quoted(module)}, which `use_dora` needs")
        if first is not None and second is not None and first.ndim == second.ndim == 2:
            fits = magnitude is None or magnitude.size == len(second)
            if fits and 0 < len(first) == second.shape[1]:
                if not config.has_rank(module, len(first)):
                    raise self._odd_rank(module, len(first))
                flat = None if magnitude is None else magnitude.reshape(-1)
                factor = config.factor(module, len(first))
                return LowRankProduct(first, second, factor, flat, is_table)
        shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in parts.items())
        raise CheckpointError(
            f"{quoted(str(self.path / WEIGHTS), 200)} needs factors A [rank, inputs] and B"
            f" [outputs, rank] of {quoted(module)}, and a magnitude [outputs] if it has one, found"
            f" {shapes}",
            hint="save the adapter again",
        )


def _new_names(layer: str) -> list[str]:
    """Return the names of a router in transformers 5, where files keep an old one.

    Only adapters that older versions made of linear layers have that.
    """
    return [layer.removesuffix(old) + new for old, new in _ROUTERS if layer.endswith(old)]


def _own_name(name: str, own: Mapping[str, object], without_first: Mapping[str, str]) -> str | None:
    if name in own:
        return name
    shorter = name.partition(".")[2]
    if shorter in own:
        return shorter
    return without_first.get(name)
