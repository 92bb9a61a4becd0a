"""`adapter_config.json` of PEFT: what is supported of it, and the factor of each product."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, cast

from gptrs.errors import ModelError
from gptrs.quoting import quoted, shown_value

_REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "DoRA scales the columns of each weight",
    "modules_to_save": "it brings whole modules of its own",
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
"""Beginnings of `init_lora_weights` under which PEFT changes the weights of the model, too."""


class AdapterConfig:
    """The settings of a LoRA adapter; ModelError for what is missing, malformed or not supported.

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
    """Whether a key of a pattern is that of a module: its whole name, or its end.

    PEFT takes keys as regular expressions. Names are compared as they are, but for a `^` at the
    start and dots with a backslash: a regex of a stranger may take for ever.
    """
    plain = pattern.replace("\\.", ".")
    if plain.startswith("^"):
        return module == plain[1:]
    return module == plain or module.endswith(f".{plain}")
