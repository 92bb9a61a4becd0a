"""Prompts as users write them: text, tokens, or the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import numpy as np

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import UsageError
from gptrs.quoting import listed, quoted
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.chat.messages import Message
from gptrs_runtime.sources.model_folder import MODEL_CONFIG
from gptrs_runtime.sources.model_source import ModelSource

Prompt = str | Sequence[int] | Sequence[Message] | Conversation
"""Text, tokens (NumPy's too), messages such as `{"role": "user", "content": "Hello"}`, or these
with what else the chat template is told."""


def checked_prompt(prompt: object) -> str | list[int] | Conversation:
    """Return a prompt as text, tokens, or a conversation; UsageError for anything else."""
    if isinstance(prompt, str | Conversation):
        return prompt
    if isinstance(prompt, np.ndarray):
        return _of_array(cast("np.ndarray", prompt))
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise _refused(f"`{type(prompt).__name__}`")
    items = cast("Sequence[object]", prompt)
    if items and isinstance(items[0], Mapping):
        return Conversation(cast("list[Message]", list(items)))
    if set(map(type, items)) <= {int}:  # the most usual, and long
        return list(cast("Sequence[int]", items))
    for number, item in enumerate(items):
        if isinstance(item, bool) or not isinstance(item, int | np.integer):
            raise _refused(f"a list with a `{type(item).__name__}` at {number}", several=items)
    return [int(cast("int", item)) for item in items]


def _of_array(array: np.ndarray) -> list[int]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _refused(f"an array {array.dtype}{list(array.shape)}")
    return cast("list[int]", array.tolist())


def _refused(found: str, several: Sequence[object] = ()) -> UsageError:
    texts = bool(several) and all(isinstance(item, str) for item in several)
    return UsageError(
        f"a prompt is a text, a list of tokens, or a list of messages, got {found}",
        hint="`gptrs.generate_batch` takes several texts" if texts else None,
    )


# Prompts of sentence-transformers: texts before every text, by name in the files of a model.


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
