"""Batches of tokenized texts: the longest first, with nearly equal lengths in a batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.capture.backend_calls import padded_size
from gptrs.capture.shape_buckets import bucket
from gptrs.checkpoint.config_fields import Fields, is_integer
from gptrs.errors import UsageError
from gptrs.quoting import listed, quoted
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.chat.messages import Message
from gptrs_runtime.sources.model_folder import MODEL_CONFIG
from gptrs_runtime.sources.model_source import ModelSource

BATCH_SIZE: Final = 32
"""Default batch size."""
_SHORTEST: Final = 16
"""Minimum padded length for backends that compile a program per length."""
_FEWEST: Final = 8
"""Minimum padded length otherwise: kernels for fewer tokens may round differently."""
_TOKENS_OF_BATCH: Final = 48
"""Cost of one more batch in tokens: 5 ms for MiniLM on two cores, at 0.1 ms per token."""
MOST_TOKENS: Final = 1024
"""Most tokens of a batch of several texts: while it runs, nothing else in the process does. 32
texts of 400 tokens stopped the streams of a server for seconds. More are hardly faster."""


class TextBatch(Struct, frozen=True, eq=False):
    """Some of the texts: `rows` are their numbers; tokens si64 [B, T] and mask i1 [B, T].

    There may be more rows of padding below the texts.
    """

    rows: Sequence[int]
    tokens: np.ndarray
    mask: np.ndarray

    def laid(self, values: Sequence[Sequence[int]]) -> np.ndarray:
        """Arrange values per token of all texts in the layout of this batch, zeros elsewhere."""
        result = np.zeros_like(self.tokens)
        for index, row in enumerate(self.rows):
            result[index, : len(values[row])] = values[row]
        return result


def text_batches(
    tokens: Sequence[Sequence[int]], size: int, backend: Backend, context: int
) -> Iterator[TextBatch]:
    """Yield all texts in batches of `size`; the longest run first, so that memory fails early."""
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row]))
    start = 0
    for end in _ends(backend, [len(tokens[row]) for row in order], size):
        rows = order[start:end]
        texts = [tokens[row] for row in rows]
        sizes = _sizes(backend, len(texts), max(map(len, texts)), size, context)
        yield TextBatch(rows, *_padded(texts, *sizes))
        start = end


def one_batch(tokens: Sequence[Sequence[int]], backend: Backend, context: int) -> TextBatch:
    """Return all texts as one batch, the longest first."""
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row]))
    texts = [tokens[row] for row in order]
    sizes = _sizes(backend, len(texts), len(texts[0]), len(texts), context)
    return TextBatch(order, *_padded(texts, *sizes))


def _ends(backend: Backend, lengths: Sequence[int], size: int) -> Sequence[int]:
    """Return the ends of batches of texts in descending length, at most `size` per batch.

    If the backend takes any size, minimizes the total cost of batches of up to `MOST_TOKENS`: a
    batch costs as if all of its texts were as long as its first, plus a constant. Otherwise, few
    distinct sizes matter more: `size` texts each.
    """
    count = len(lengths)
    if not backend.symbolic:
        return [*range(size, count, size), count]
    least, starts = [0], [0]
    for end in range(1, count + 1):
        costs = (
            (least[start] + (end - start) * max(lengths[start], _FEWEST), start)
            for start in range(max(0, end - size), end)
            if start == end - 1 or (end - start) * lengths[start] <= MOST_TOKENS
        )
        cost, start = min(costs)
        least.append(cost + _TOKENS_OF_BATCH)
        starts.append(start)
    ends = [count]
    while starts[ends[-1]]:
        ends.append(starts[ends[-1]])
    return ends[::-1]


def _sizes(
    backend: Backend, rows: int, longest: int, most_rows: int, context: int
) -> tuple[int, int]:
    """Return the numbers of texts and tokens to pad to: few distinct ones, unless the backend takes
    any size."""
    if backend.symbolic:
        return rows, min(max(longest, _FEWEST), context)
    count = padded_size(backend, rows) or bucket(rows, first=1, limit=most_rows)
    length = padded_size(backend, longest)
    return count, _padded_length(longest, context) if length is None else min(length, context)


def _padded(
    rows: Sequence[Sequence[int]], count: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens si64 [count, length] and their mask i1, padded at the right and below."""
    tokens = np.zeros((count, length), np.int64)
    mask = np.zeros((count, length), bool)
    # A padding row sees itself: a row that sees nothing would be NaN.
    mask[len(rows) :] = True
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        mask[index, : len(row)] = True
    return tokens, mask


def _padded_length(length: int, context: int) -> int:
    """Return the least of 16, 24, 32, 48, 64, ... >= `length`: at most a third is padding."""
    whole = bucket(length, _SHORTEST, context)
    smaller = bucket(length, _SHORTEST) * 3 // 4
    return smaller if max(length, _SHORTEST) <= smaller < whole else whole


# Sizes of memory as a user writes them: bytes, `2GB`, `512MiB`, or a share such as `50%`.


_FORM = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([a-z]*|%)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "b": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def parsed_bytes(stated: object, total: int | None) -> int | None:
    """Return a number of bytes >= 1, None for anything else; a share, up to 100%, is of `total`."""
    if is_integer(stated):
        found = stated
    else:
        form = _FORM.fullmatch(stated.strip()) if isinstance(stated, str) else None
        if form is None:
            return None
        share = None if total is None else total / 100
        scale = share if form[2] == "%" else _UNITS.get(form[2].lower())
        if scale is None or (form[2] == "%" and float(form[1]) > 100):
            return None
        found = int(float(form[1]) * scale)
    return found if 0 < found < 2**63 else None


def shown_bytes(nbytes: int) -> str:
    """Return the size with three digits and a decimal unit."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"


def shown_count(count: int) -> str:
    """Return a number of things with three digits and a word: 124 M."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


# Prompts as users write them: text, tokens, or the messages of a conversation.


Prompt = str | Sequence[int] | Sequence[Message] | Conversation
"""Text, tokens (NumPy's too), messages such as `{"role": "user", "content": "Hello"}`, or these
with further inputs of the chat template.
"""


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
    if set(map(type, items)) <= {int}:  # the most common case, and long to check
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
"""In characters: a prompt is read again with every text."""


def read_prompts(files: ModelSource, model_type: str) -> tuple[dict[str, str], str]:
    """Return the prompts of a model by name, and the default prompt.

    ModelError for malformed files, and for another class of sentence-transformers.
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
    """Return `prompt`, else the one called `name`, else the default; UsageError if none."""
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
