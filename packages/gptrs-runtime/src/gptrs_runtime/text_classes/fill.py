"""Tagging of tokens, and words for masked positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from gptrs.errors import ModelError, UsageError
from gptrs.progress import Progress
from gptrs.quoting import listed, quoted
from gptrs_runtime.forward import class_label
from gptrs_runtime.input_checks import require_known_tokens
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import Entity, Filling
from gptrs_runtime.text_batches import BATCH_SIZE, text_batches
from gptrs_runtime.text_classes.classify import longest_text, softmax
from gptrs_runtime.tokenization.encoded_text import EncodedText, Lengths
from gptrs_runtime.tokenization.special_tokens import named_tokens
from gptrs_runtime.verb_requests import OUTSIDE

# Classes of the words in a text: names, places, parts of speech.


_UNKNOWN: Final = "[UNK]"
"""A word that is not in the vocabulary, for tokenizers whose files give it no name."""


class _Part(Struct, frozen=True, eq=False):
    """A token or a word: its position and the probability of each class."""

    start: int
    end: int
    scores: np.ndarray
    follows: bool


def tag(
    model: LoadedModel,
    texts: Sequence[str],
    aggregation: str = "simple",
    batch_size: int = BATCH_SIZE,
    *,
    ignored: Sequence[str] = (OUTSIDE,),
    lengths: Lengths | None = None,
    progress: Progress | None = None,
) -> list[list[Entity]]:
    """Return the entities of each text, in order, without the classes in `ignored`.

    `aggregation` is as in transformers: `none` gives each token by itself; `simple` joins tokens
    of one class, and `B-` begins a new part; `first`, `average` and `max` give a word the
    class of its first token, of the mean, or of its surest token before. `lengths` is as of
    `embed`. UsageError for no text, one that is longer than the model takes, or another
    aggregation; ModelError for a model without the capability `token_classifier`, or without a
    tokenizer.
    """
    classifier = model.token_classifier()
    if isinstance(texts, str) or not texts or batch_size < 1:
        raise UsageError("`tag` needs a list of texts and a batch of at least 1")
    if aggregation not in AGGREGATIONS:
        raise UsageError(f"aggregation is one of {listed(AGGREGATIONS)}, got {quoted(aggregation)}")
    rows = whole_texts(model, texts)
    if lengths is not None:
        lengths([row.length for row in rows])
    found: list[list[Entity]] = [[] for _ in texts]
    done, tokens = 0, [row.tokens for row in rows]
    for batch in text_batches(tokens, batch_size, model.backend, classifier.context_length):
        if progress is not None:
            progress(done, len(texts))
        logits = classifier.classify_tokens(batch.tokens, batch.mask)
        for own, row in zip(logits, batch.rows, strict=False):
            scores = softmax(own[: len(tokens[row])])
            parts = _parts(model, texts[row], rows[row], scores)
            found[row] = _entities(model, texts[row], AGGREGATIONS[aggregation](parts))
        done += len(batch.rows)
    if progress is not None:
        progress(done, len(texts))
    skipped = frozenset(ignored)
    return [[entity for entity in each if entity.label not in skipped] for each in found]


def whole_texts(model: LoadedModel, texts: Sequence[str]) -> list[EncodedText]:
    """Return the tokens of texts that must not be cut; UsageError for one that is too long."""
    limit = longest_text(model)
    rows = [model.tokenizer.encode_with_offsets(text) for text in texts]
    for number, row in enumerate(rows):
        if not 1 <= len(row.tokens) <= limit:
            raise UsageError(
                f"text {number} has {len(row.tokens)} tokens, the model takes from 1 to {limit}",
                hint="give a long text in parts, and leave out empty ones",
            )
        require_known_tokens(row.tokens, model.token_reader().vocab_size)
    return rows


def _parts(model: LoadedModel, text: str, row: EncodedText, scores: np.ndarray) -> list[_Part]:
    found: list[_Part] = []
    unknown = model.tokenizer.number(named_tokens(model.files).get("unk_token", _UNKNOWN))
    for token, (start, end), special, own in zip(
        row.tokens, row.offsets, row.special, scores, strict=True
    ):
        if not special:
            # An unknown word is one token, whose entry is seldom as long as the word.
            follows = token != unknown and model.tokenizer.continues_word(token, text, start, end)
            found.append(_Part(start, end, own, follows and bool(found)))
    return found


def _words(parts: list[_Part], choose: Callable[[list[_Part]], np.ndarray]) -> list[_Part]:
    groups: list[list[_Part]] = []
    for part in parts:
        if part.follows:
            groups[-1].append(part)
        else:
            groups.append([part])
    return [_Part(group[0].start, group[-1].end, choose(group), False) for group in groups]


def _mean(group: list[_Part]) -> np.ndarray:
    return np.stack([part.scores for part in group]).mean(axis=0)


def _surest(group: list[_Part]) -> np.ndarray:
    return max(group, key=lambda part: float(part.scores.max())).scores


_Grouped = tuple[list[_Part], bool]
AGGREGATIONS: Final[dict[str, Callable[[list[_Part]], _Grouped]]] = {
    "none": lambda parts: (parts, False),
    "simple": lambda parts: (parts, True),
    "first": lambda parts: (_words(parts, lambda group: group[0].scores), True),
    "average": lambda parts: (_words(parts, _mean), True),
    "max": lambda parts: (_words(parts, _surest), True),
}
"""For each aggregation, the function from tokens to parts, and whether to join neighbours of one
class."""


def _entities(model: LoadedModel, text: str, grouped: _Grouped) -> list[Entity]:
    parts, joins = grouped
    found: list[Entity] = []
    scores: list[float] = []
    for part in parts:
        best = int(part.scores.argmax())
        name, score = class_label(model.config, best), float(part.scores[best])
        begins, label = _tag(name) if joins else (True, name)
        if joins and found and label == found[-1].label and not begins:
            scores.append(score)
            start = found.pop().start
        else:
            scores, start = [score], part.start
        mean = sum(scores) / len(scores)
        found.append(Entity(label, mean, start, part.end, text[start : part.end]))
    return found


def _tag(name: str) -> tuple[bool, str]:
    """Return whether a class begins a new part, and its name without `B-` or `I-`."""
    if name.startswith(("B-", "I-")):
        return name.startswith("B-"), name[2:]
    return False, name


def mask_of(model: LoadedModel) -> str:
    """Return the mask token, such as `[MASK]`; ModelError if the files name none."""
    named = named_tokens(model.files).get("mask_token")
    texts = ("[MASK]", "<mask>") if named is None else (named, "[MASK]", "<mask>")
    known = next((text for text in texts if model.tokenizer.number(text) is not None), None)
    if known is None:
        raise ModelError(
            f"the files of `{model.name}` name no mask token",
            hint="add `mask_token` to tokenizer_config.json",
        )
    return known


def fill(
    model: LoadedModel,
    texts: Sequence[str],
    top_k: int = 5,
    batch_size: int = BATCH_SIZE,
    *,
    progress: Progress | None = None,
) -> list[list[tuple[Filling, ...]]]:
    """Return the `top_k` likeliest tokens for each masked position of each text, the best first.

    `mask_of(model)` is the mask. Each is predicted with all others masked. UsageError without
    texts, for one without a masked position, or one that exceeds the limit of the model; ModelError
    for a model without the capability `masked_lm`, or without a tokenizer.
    """
    lm = model.masked_lm()
    if isinstance(texts, str) or not texts or batch_size < 1 or top_k < 1:
        raise UsageError("`fill` needs a list of texts, and a batch and `top_k` of at least 1")
    rows = whole_texts(model, texts)
    positions = _masked(model, [row.tokens for row in rows])
    found: list[list[tuple[Filling, ...]]] = [[] for _ in texts]
    done, tokens = 0, [row.tokens for row in rows]
    for batch in text_batches(tokens, batch_size, model.backend, lm.context_length):
        if progress is not None:
            progress(done, len(texts))
        length = batch.tokens.shape[1]
        flat = [
            i * length + position for i, row in enumerate(batch.rows) for position in positions[row]
        ]
        logits = iter(lm.predict_tokens(batch.tokens, batch.mask, np.array(flat)))
        for row in batch.rows:
            found[row] = [_best(model, next(logits), top_k) for _ in positions[row]]
        done += len(batch.rows)
    if progress is not None:
        progress(done, len(texts))
    return found


def _masked(model: LoadedModel, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    mask = mask_of(model)
    number = model.tokenizer.number(mask)
    positions = [
        [position for position, token in enumerate(row) if token == number] for row in rows
    ]
    for index, own in enumerate(positions):
        if not own:
            raise UsageError(f"text {index} has no masked position", hint=f"write {quoted(mask)}")
    return positions


def _best(model: LoadedModel, logits: np.ndarray, top_k: int) -> tuple[Filling, ...]:
    scores = softmax(logits)
    best = np.argsort(-logits, kind="stable")[:top_k]
    decode = model.tokenizer.decode
    return tuple(
        Filling(int(token), decode([int(token)], special=True), float(scores[token]))
        for token in best
    )
