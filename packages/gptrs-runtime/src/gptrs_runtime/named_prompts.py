"""Prompts of sentence-transformers: texts before every text, by name in the files of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import UsageError
from gptrs.quoting import listed, quoted
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_runtime.sources.sentence_transformers import MODEL_CONFIG

_LONGEST_PROMPT: Final = 10_000
"""In characters: a prompt is read anew with every text."""


def read_prompts(files: ModelSource, model_type: str) -> tuple[dict[str, str], str]:
    """Return the prompts of a model by name, and the one that precedes a text by default.

    ModelError for malformed files, and those of another class of sentence-transformers.
    """
    fields = Fields(files.read_json(MODEL_CONFIG) or {}, f"in {quoted(MODEL_CONFIG)}")
    fields.require("model_type", model_type)
    prompts = fields.texts("prompts")
    if any(len(prompt) > _LONGEST_PROMPT for prompt in prompts.values()):
        raise fields.error("prompts", f"must be of at most {_LONGEST_PROMPT} characters each")
    name = fields.text("default_prompt_name")
    if name is not None and name not in prompts:
        raise fields.error("default_prompt_name", f"must be one of {listed(prompts) or 'none'}")
    return prompts, "" if name is None else prompts[name]


def chosen_prompt(
    prompts: Mapping[str, str], default: str, name: str | None, prompt: str | None
) -> str:
    """Return `prompt`, else the one called `name`, else the default; UsageError if none is."""
    if prompt is not None:
        return prompt
    if name is None:
        return default
    if name not in prompts:
        raise UsageError(
            f"the model has no prompt {quoted(name)}",
            hint=f"it has {listed(prompts)}" if prompts else "it has none",
        )
    return prompts[name]
