"""A model in a few words, as its settings say, and names in the order in which people count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gptrs_cli.models.head import architecture, classes, commands
from gptrs_runtime.sources.model_source import TOKENIZER, ModelSource

_SETTINGS: Final = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "width": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "attention_heads", "n_heads"),
    "kv heads": ("num_key_value_heads",),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "vocabulary": ("vocab_size",),
    "classes": ("num_labels",),
}
"""Keys of config.json, by what they are called here."""
_TEMPLATE: Final = "chat_template.jinja"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"


def model_facts(source: ModelSource) -> Mapping[str, object]:
    """Return sizes of the model, its head, and whether it has tokenizer and chat template."""
    facts: dict[str, object] = {}
    for name, keys in _SETTINGS.items():
        values = (source.config.get(key) for key in keys)
        number = next((value for value in values if isinstance(value, int)), None)
        if number is not None:
            facts[name] = number
    named = {"classes": classes(source), "architecture": architecture(source)}
    facts.update({name: value for name, value in named.items() if value is not None})
    if commands(source):
        facts["commands"] = " and ".join(commands(source))
    if "vocabulary" in facts:
        facts["tokenizer"] = _shown(source.has_file(TOKENIZER))
        settings = source.read_json(_TOKENIZER_CONFIG) or {}
        has_template = source.has_file(_TEMPLATE) or bool(settings.get("chat_template"))
        facts["chat template"] = _shown(has_template)
    return facts


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts `layer.2` before `layer.10`."""
    parts = re.split(r"([0-9]+)", name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _shown(value: bool) -> str:
    return "yes" if value else "no"
