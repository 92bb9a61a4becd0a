"""`adapter_config.json` of PEFT: the supported settings, and the factor of each product."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np

from gptrs.checkpoint.files.open_file import read_whole
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.errors import CheckpointError, ModelError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import listed, quoted, shown_value
from gptrs.strict_json import parse_object

_REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "DoRA scales the columns of each weight",
    "modules_to_save": "it contains whole modules",
    "lora_bias": "its products have a bias",
    "target_parameters": "it changes parameters that are no linear layers",
    "layer_replication": "it repeats layers of the model",
    "trainable_token_indices": "it changes the vectors of single tokens",
    "use_qalora": "QALoRA pools the inputs",
    "alora_invocation_tokens": "aLoRA begins in the middle of a text",
    "arrow_config": "Arrow mixes several adapters",
    "use_bdlora": "its factors are in blocks",
    "velora_config": "VeLoRA projects its inputs",
    "megatron_config": "it is made for layers of Megatron",
}
"""Settings that change more than adding a product to a linear layer, and how."""
_PLAIN: Final = re.compile(r"\^?[A-Za-z0-9_]+(\\?\.[A-Za-z0-9_]+)*")
"""A key of a pattern that is a name."""
_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Prefixes of `init_lora_weights` for which PEFT changes the weights of the model, too."""


class AdapterConfig:
    """The settings of a LoRA adapter; ModelError for missing, malformed or unsupported ones.

    `where` names the file in errors.
    """

    def __init__(self, settings: Mapping[str, object], where: str) -> None:
        self._where = quoted(where, 200)
        kind = settings.get("peft_type")
        if kind != "LORA":
            raise self._refused(f"`peft_type` is {shown_value(kind)}", "LORA is supported")
        for name, why in _REFUSED.items():
            if settings.get(name):
                raise self._refused(f"`{name}` is set: {why}", "merge the adapter with PEFT")
        if settings.get("bias", "none") != "none":
            raise self._refused(f"`bias` is {shown_value(settings['bias'])}", "`none` is supported")
        init = settings.get("init_lora_weights")
        if isinstance(init, str) and init.lower().startswith(_CHANGES_BASE):
            raise self._refused(
                f"`init_lora_weights` is {shown_value(init)}, which changes the model itself",
                "save it converted to plain LoRA (`path_initial_model_for_weight_conversion`)",
            )
        self._alpha = self._number(settings.get("lora_alpha"), "lora_alpha")
        self._rank_stabilized = settings.get("use_rslora") is True
        self._alphas = {
            name: self._number(value, f"alpha_pattern.{name}")
            for name, value in self._patterns(settings.get("alpha_pattern")).items()
        }

    def factor(self, module: str, rank: int) -> float:
        """Return what the product of a module is multiplied by (Kalajdzievski 2023 for rsLoRA)."""
        alpha = next(
            (alpha for name, alpha in self._alphas.items() if _matches(name, module)), self._alpha
        )
        return alpha / (math.sqrt(rank) if self._rank_stabilized else rank)

    def _number(self, value: object, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refused(f"`{name}` is {shown_value(value)}", "it must be a number")
        return float(value)

    def _patterns(self, value: object) -> Mapping[str, object]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._refused(f"`alpha_pattern` is {shown_value(value)}", "it must be an object")
        patterns = cast("Mapping[str, object]", value)
        for name in patterns:
            if not _PLAIN.fullmatch(name):
                raise self._refused(
                    f"`alpha_pattern` has the expression {shown_value(name)}",
                    "names of modules are supported",
                )
        return patterns

    def _refused(self, problem: str, hint: str) -> ModelError:
        return ModelError(f"{self._where} cannot be used: {problem}", hint=hint)


def _matches(pattern: str, module: str) -> bool:
    """Return whether a key of a pattern matches a module: its whole name, or its end.

    PEFT takes keys as regular expressions. Names are compared literally, except for a `^` at the
    start and dots with a backslash: an untrusted regex may take forever.
    """
    plain = pattern.replace("\\.", ".")
    if plain.startswith("^"):
        return module == plain[1:]
    return module == plain or module.endswith(f".{plain}")


# LoRA adapters (Hu et al. 2021) in the layout of PEFT: a product of two factors for each layer.


CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_MOST_CONFIG_BYTES: Final = 1_000_000

Factor = Literal["A", "B"]


@dataclass(frozen=True)
class LowRankProduct:
    """The sum that a layer gets: `x A^T B^T factor`, for A [rank, inputs] and B [outputs, rank]."""

    a: np.ndarray
    b: np.ndarray
    factor: float

    def scaled_b(self) -> np.ndarray:
        """Return B times the factor, f32."""
        return self.b * np.float32(self.factor)

    def merged(self, weight: np.ndarray, *, turned: bool) -> np.ndarray:
        """Return the weight f32 [outputs, inputs], [inputs, outputs] if `turned`, with the sum."""
        change = self.scaled_b() @ self.a
        return weight + (change.T if turned else change)


class LowRankAdapter:
    """The adapter in the folder `path`: products by the names of layers.

    `digest` is one of all that it adds. ModelError for files that are missing and settings that are
    not supported, CheckpointError for damaged tensors and those that are not factors.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._products = self._read()
        digest = hashlib.blake2b(digest_size=16)
        for module, product in sorted(self._products.items()):
            content = (module, product.a.shape, product.b.shape, product.factor)
            digest.update(repr(content).encode())
            digest.update(product.a.tobytes())
            digest.update(product.b.tobytes())
        self.digest = digest.hexdigest()

    def __repr__(self) -> str:
        return f"<LowRankAdapter {self.path}: {len(self._products)} layers>"

    @property
    def modules(self) -> Sequence[str]:
        """The names of the layers that it changes, as transformers calls them."""
        return tuple(self._products)

    def module_of(self, layer: str) -> str | None:
        """Return the module that a checkpoint calls `layer`; None if it is not changed.

        Checkpoints may leave out the first part of a name, such as `transformer`, or add one.
        """
        if layer in self._products:
            return layer
        shorter = layer.partition(".")[2]
        if shorter in self._products:
            return shorter
        return self._without_first.get(layer)

    @cached_property
    def _without_first(self) -> Mapping[str, str]:
        return {module.partition(".")[2]: module for module in self._products}

    def product(self, module: str) -> LowRankProduct:
        """Return the product that is added to a module."""
        return self._products[module]

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
        config = AdapterConfig(settings, where)
        with SafetensorsFile.open(self.path / WEIGHTS) as file:
            factors = self._factors(file)
        return {
            module: LowRankProduct(pair["A"], pair["B"], config.factor(module, len(pair["A"])))
            for module, pair in factors.items()
        }

    def _factors(self, file: SafetensorsFile) -> dict[str, dict[Factor, np.ndarray]]:
        factors: dict[str, dict[Factor, np.ndarray]] = {}
        odd: list[str] = []
        for name in file.entries:
            for factor in ("A", "B"):
                end = f".lora_{factor}.weight"
                if name.startswith(_PREFIX) and name.endswith(end):
                    module = name[len(_PREFIX) : -len(end)]
                    values = file.read(name).astype(np.float32)
                    factors.setdefault(module, {})["A" if factor == "A" else "B"] = values
                    break
            else:
                odd.append(name)
        where = quoted(str(self.path / WEIGHTS), 200)
        if odd:
            raise ModelError(
                f"{where} has tensors that are no factors of linear layers: {listed(odd, 3)}",
                hint="merge the adapter with PEFT, and load the merged model",
            )
        if not factors:
            raise CheckpointError(f"{where} has no tensors")
        for module, pair in factors.items():
            whole = len(pair) == len(("A", "B")) and pair["A"].ndim == pair["B"].ndim == 2
            if not whole or len(pair["A"]) != pair["B"].shape[1] or not len(pair["A"]):
                shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in pair.items())
                raise CheckpointError(
                    f"{where} needs factors A [rank, inputs] and B [outputs, rank] of"
                    f" {quoted(module)}, found {shapes}",
                    hint="save the adapter again",
                )
        return factors
