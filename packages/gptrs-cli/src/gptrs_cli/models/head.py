"""The head of a stored model by its config, and the commands for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from gptrs_runtime.sources.model_folder import MODULES
from gptrs_runtime.sources.model_source import ModelSource

_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "ForCausalLM": ("generate", "chat"),
    "LMHeadModel": ("generate", "chat"),
    "ForConditionalGeneration": ("generate", "transcribe"),
    "MTModel": ("generate",),
    "ForCTC": ("transcribe",),
    "ForSequenceClassification": ("classify", "rank"),
    "ForTokenClassification": ("tag",),
    "ForMaskedLM": ("fill",),
    "ForPreTraining": ("fill",),
    "ForImageClassification": ("forward",),
    "Model": ("embed",),
}
"""Commands by the suffix of an architecture's name; the first match counts."""
_HEARING: Final = "num_mel_bins"
"""A setting that only models of speech have."""


def architecture(source: ModelSource) -> str | None:
    """Return the first class of transformers in config.json; None if it names none."""
    names = source.config.get("architectures")
    first = cast("list[object]", names)[0] if isinstance(names, list) and names else None
    return first if isinstance(first, str) else None


def commands(source: ModelSource) -> tuple[str, ...]:
    """Return the commands for the head; none if it is unknown."""
    name = architecture(source) or ""
    ending = next((ending for ending in _COMMANDS if name.endswith(ending)), None)
    if ending is None:
        return ()
    found = _COMMANDS[ending]
    if ending == "ForConditionalGeneration":
        found = found[1:] if _HEARING in source.config else found[:1]
    modules = source.read_json_list(MODULES) or []
    added = "rank" if any("LogitScore" in str(module) for module in modules) else "embed"
    return (*found, added) if modules and added not in found else found


def classes(source: ModelSource) -> int | None:
    """Return the number of classes that the config names; None if it names none."""
    names = source.config.get("id2label")
    return len(cast("Mapping[str, object]", names)) if isinstance(names, Mapping) else None
