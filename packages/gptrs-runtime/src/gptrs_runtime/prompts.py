"""Prompts as users write them: text, tokens, or the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from gptrs.errors import UsageError
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.chat.messages import Message

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
