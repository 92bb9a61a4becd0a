"""Rows with labels, pairs and triplets: read from .jsonl, checked, and in batches by length."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
from msgspec import Struct

from gptrs.api import UsageError
from gptrs.capture.shape_buckets import bucket
from gptrs.progress import Progress
from gptrs.quoting import listed, quoted, shown_value
from gptrs_runtime.tokenization.tokenizer import TextTokenizer
from gptrs_train.batches import DataFacts, drawn, each_once
from gptrs_train.chat_rows import DataError, text_of
from gptrs_train.data import ROWS, read_rows
from gptrs_train.heads import Goal, Problem, Task, TextBatch

FORMS: Final[Mapping[Task, Sequence[tuple[str, ...]]]] = {
    "classify": [("text", "label"), ("text", "labels"), ("text", "pair", "label")],
    "tag": [("tokens", "tags")],
    "embed": [
        ("anchor", "positive"), ("anchor", "positive", "negative"),
        ("sentence1", "sentence2", "score"),
    ],
    "rank": [("query", "document", "label"), ("query", "positive", "negatives")],
}  # fmt: skip
"""The columns of rows by what is learnt from them."""
_TOLD: Final = 500
"""Rows between two reports of progress."""
_SHORTEST: Final = 16
"""Lengths to which batches of short texts are padded: each length has its own program."""


class HeadRow(NamedTuple):
    """A row: its texts (or pairs read as one text), and its label, score or tags."""

    where: str
    texts: tuple[str | tuple[str, str], ...]
    target: Any


class Encoded(NamedTuple):
    """A text as tokens: their segments, characters, and true for those in its vector."""

    tokens: Sequence[int]
    segments: Sequence[int]
    offsets: Sequence[tuple[int, int]]
    pooled: Sequence[bool]
    cut: bool


class Encoder(Struct, frozen=True):
    """Tokenizes texts as the command that runs the head does, with at most `limit` tokens.

    `prompt` goes before each text; without `prompt_pooled`, its tokens do not count in vectors.
    """

    tokenizer: TextTokenizer
    limit: int
    segments: bool = True
    prompt: str = ""
    prompt_pooled: bool = True
    lower_case: bool = False

    def encode(self, text: str | tuple[str, str]) -> Encoded:
        """Return a text, or a pair that is read as one."""
        first, second = (text, None) if isinstance(text, str) else text
        first = self._cased(self.prompt + first)
        row = self.tokenizer.encode_pair(first, second, self.limit)
        skipped = 0
        if self.prompt and not self.prompt_pooled:
            whole = self.tokenizer.prefix_length(self._cased(self.prompt))
            # At least one token remains: the vector of a text that is cut to its prompt would be 0
            # / 0.
            skipped = min(whole, len(row.tokens) - 1)
        pooled = [at >= skipped for at in range(len(row.tokens))]
        segments = row.segments if self.segments else [0] * len(row.tokens)
        return Encoded(row.tokens, segments, row.offsets, pooled, row.length.is_cut)

    def _cased(self, text: str) -> str:
        return self.tokenizer.lowered(text) if self.lower_case else text


def task_of(path: Path) -> Task | None:
    """Return the task for the columns of the first row; None for texts to continue."""
    if path.suffix.lower() != ROWS or not path.is_file():
        return None
    row = next((row for _, row in read_rows(path)), cast("Mapping[str, object]", {}))
    return next((task for task in FORMS if _fitting(row, task)), None)


def read_head_rows(path: Path, task: Task) -> list[HeadRow]:
    """Return the rows of a file; DataError names the line that is wrong."""
    if path.suffix.lower() != ROWS:
        raise UsageError(
            f"{quoted(str(path), 200)} is not a .jsonl file, which rows for a head require"
        )
    found: list[HeadRow] = []
    for where, row in read_rows(path):
        found += _READERS[task](where, row)
    if not found:
        raise DataError(f"{quoted(str(path), 200)} has no rows")
    sizes = {(len(row.texts), row.target is None) for row in found}
    if task == "embed" and len(sizes) > 1:
        raise DataError(
            f"{quoted(str(path), 200)} has rows of several forms: pairs, triplets, scored pairs",
            hint="write one form into a file",
        )
    return found


def _fitting(row: Mapping[str, object], task: Task) -> list[tuple[str, ...]]:
    return [form for form in FORMS[task] if row.keys() >= set(form)]


def _form(where: str, row: Mapping[str, object], task: Task) -> tuple[str, ...]:
    """Return the columns of a row, of the longest form that it has."""
    fits = _fitting(row, task)
    if not fits:
        forms = "; ".join(" ".join(f"`{name}`" for name in form) for form in FORMS[task])
        own = listed(list(row), 6) or "no columns"
        raise DataError(f"{where} has {own}; `gptrs {task}` learns from {forms}")
    return max(fits, key=len)


def _classified(where: str, row: Mapping[str, object]) -> list[HeadRow]:
    form = _form(where, row, "classify")
    text = text_of(where, row, "text")
    whole = (text, text_of(where, row, "pair")) if "pair" in row else text
    label = row[form[-1]]
    if form[-1] == "labels" and not isinstance(label, list):
        raise DataError(f"{where}: `labels` must be a list, got {shown_value(label)}")
    for each in cast("list[object]", label) if isinstance(label, list) else [label]:
        # JSON's true is an int in Python, and would be taken for class 1.
        if isinstance(each, bool) or not isinstance(each, str | int | float) or each == "":
            raise DataError(f"{where}: a label is a name or a number, got {shown_value(each)}")
    return [HeadRow(where, (whole,), label)]


def _tagged(where: str, row: Mapping[str, object]) -> list[HeadRow]:
    _form(where, row, "tag")
    words, tags = row["tokens"], row["tags"]
    for name in ("tokens", "tags"):
        value = row[name]
        parts = cast("list[object]", value) if isinstance(value, list) else []
        if not parts or not all(isinstance(each, str) and each for each in parts):
            raise DataError(
                f"{where}: `{name}` must be a list of texts, got {shown_value(row[name])}"
            )
    words, tags = cast("list[str]", words), cast("list[str]", tags)
    if len(words) != len(tags):
        raise DataError(f"{where} has {len(words)} `tokens` and {len(tags)} `tags`")
    return [HeadRow(where, (" ".join(words),), (words, tags))]


def _compared(where: str, row: Mapping[str, object]) -> list[HeadRow]:
    form = _form(where, row, "embed")
    names = form[:2] if "score" in form else form
    target = _share(where, row, "score") if "score" in form else None
    return [HeadRow(where, tuple(text_of(where, row, name) for name in names), target)]


def _ranked(where: str, row: Mapping[str, object]) -> list[HeadRow]:
    query = text_of(where, row, "query") if "query" in row else ""
    if "document" in _form(where, row, "rank"):
        pair = (query, text_of(where, row, "document"))
        return [HeadRow(where, (pair,), _share(where, row, "label"))]
    negatives = row["negatives"]
    if not isinstance(negatives, list) or not negatives:
        raise DataError(f"{where}: `negatives` must be a list of texts")
    rows = [HeadRow(where, ((query, text_of(where, row, "positive")),), 1.0)]
    for each in cast("list[object]", negatives):
        text = text_of(where, {"negatives": each}, "negatives")
        rows.append(HeadRow(where, ((query, text),), 0.0))
    return rows


def _share(where: str, row: Mapping[str, object], name: str) -> float:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1:
        raise DataError(f"{where}: `{name}` must be a number from 0 to 1, got {shown_value(value)}")
    return float(value)


_READERS: Final[Mapping[Task, Callable[[str, Mapping[str, object]], list[HeadRow]]]] = {
    "classify": _classified,
    "tag": _tagged,
    "embed": _compared,
    "rank": _ranked,
}


def goal_of(task: Task, rows: Sequence[HeadRow], config: Mapping[str, object], held: bool) -> Goal:
    """Return what rows teach; if `held`, the model has a head already, with classes of `config`.

    That head is kept if it knows all labels. Else classes are the names in the rows, sorted, or
    numbers from 0 on.
    """
    known = _known_labels(config) if held else ()
    if task == "embed":
        scored = rows[0].target is not None
        return Goal(task, texts=len(rows[0].texts), scored=scored)
    if task == "rank":
        return Goal(task, ("LABEL_0",), kept=len(known) == 1)
    if task == "tag":
        own = sorted({tag for row in rows for tag in row.target[1]})
        return _with_classes(task, own, "single_label_classification", known)
    several = isinstance(rows[0].target, list)
    labels = [each for row in rows for each in _labels_of(row, several)]
    kinds: set[object] = {type(each) for each in labels}
    if kinds in ({float}, {int, float}) and not several:
        kept = len(known) == 1 and config.get("problem_type") == "regression"
        return Goal(task, ("LABEL_0",), "regression", kept=kept)
    problem: Problem = "multi_label_classification" if several else "single_label_classification"
    if kinds == {int}:
        count = max(labels) + 1
        own = list(known[:count]) if len(known) >= count else [f"LABEL_{n}" for n in range(count)]
    elif kinds == {str}:
        own = sorted(set(labels))
    else:
        raise DataError("labels must be all names, or all integers from 0 on")
    if len(own) < 2 and not several:
        raise DataError(f"all rows have the label {quoted(own[0])}: nothing to distinguish")
    same = config.get("problem_type") in (None, problem)
    return _with_classes(task, own, problem, known if same else ())


def with_known_labels(rows: Sequence[HeadRow], held: Collection[int]) -> set[int]:
    """Return those of `held` whose labels, or tags, rows have that are not held out."""
    if any(isinstance(row.target, float) for row in rows):
        return set(held)  # scores, which need not be known
    own = [_names_of(row) for row in rows]
    known = set[object]().union(*(own[n] for n in range(len(rows)) if n not in held))
    found: set[int] = set()
    for number in sorted(held):
        if own[number] <= known:
            found.add(number)
        known |= own[number]  # one that is not held out is learnt, and makes its labels known
    return found


def _names_of(row: HeadRow) -> set[object]:
    """Return the classes of a row, the names of its tags, or nothing."""
    if isinstance(row.target, tuple):
        return set(cast("tuple[list[str], list[str]]", row.target)[1])
    return set(cast("list[object]", row.target)) if isinstance(row.target, list) else {row.target}


def _labels_of(row: HeadRow, several: bool) -> list[Any]:
    if isinstance(row.target, list) != several:
        raise DataError(f"{row.where}: some rows have `label`, others `labels`")
    found = cast("list[Any]", row.target) if several else [row.target]
    if any(isinstance(each, int) and each < 0 for each in found):
        raise DataError(f"{row.where}: numbers of classes begin at 0")
    return found


def _known_labels(config: Mapping[str, object]) -> tuple[str, ...]:
    names = config.get("id2label")
    table = cast("Mapping[str, object]", names if isinstance(names, Mapping) else {})
    return tuple(str(table.get(str(n), f"LABEL_{n}")) for n in range(len(table)))


def _with_classes(task: Task, own: Sequence[str], problem: Problem, known: Sequence[str]) -> Goal:
    kept = set(own) <= set(known)
    return Goal(task, tuple(known if kept else own), problem, kept=kept)


class HeadRows:
    """The batches of rows for a head: functions of (seed, step), padded to a few lengths."""

    def __init__(
        self,
        rows: Sequence[HeadRow],
        encoder: Encoder,
        goal: Goal,
        size: int,
        seed: int,
        progress: Progress | None = None,
    ) -> None:
        if size < 1 or (goal.task == "embed" and not goal.scored and size < 2):
            raise UsageError(f"a batch of {size} rows has nothing to compare", hint="--batch 16")
        self._goal, self._size, self._seed = goal, size, seed
        self._limit, self._cut = encoder.limit, 0
        numbers = {name: number for number, name in enumerate(goal.labels)}
        self._texts: list[list[Encoded]] = []
        self._targets: list[Any] = []
        known: dict[tuple[int, ...], int] = {}
        for number, row in enumerate(rows):
            if progress is not None and number % _TOLD == 0:
                progress(number, len(rows))
            found = [encoder.encode(text) for text in row.texts]
            self._cut += sum(each.cut for each in found)
            self._texts.append(found)
            if goal.task == "embed" and not goal.scored:
                keys = (tuple(each.tokens) for each in found)
                target = np.array([known.setdefault(key, len(known)) for key in keys])
            else:
                target = _target(row, found[0], goal, numbers)
            self._targets.append(target)
        self.tokens = sum(len(each.tokens) for row in self._texts for each in row)
        if progress is not None:
            progress(len(rows), len(rows))

    def batch(self, step: int) -> TextBatch:
        """Return rows of the epochs' permutations, one after another."""
        rows = drawn(self._seed, step * self._size, self._size, len(self._texts))
        return self._at([row for _, row in rows])

    def every(self) -> Iterator[TextBatch]:
        """Yield all rows once, in random order; those that fill up the last batch weigh 0."""
        yield from map(self._at, each_once(self._seed, len(self._texts), self._size))

    def facts(self) -> DataFacts:
        """Return the facts of the rows."""
        longest = max(len(each.tokens) for row in self._texts for each in row)
        texts = len(self._texts) * len(self._texts[0])
        learnt = len(self._texts)
        if self._goal.task == "tag":
            learnt = int(sum((target >= 0).sum() for target in self._targets))
        return DataFacts(texts, len(self._texts), longest, self.tokens, learnt, self._cut)

    def _at(self, rows: list[int]) -> TextBatch:
        filled = [*rows, *[0] * (self._size - len(rows))]
        texts = [self._texts[row][k] for k in range(len(self._texts[0])) for row in filled]
        # Few lengths, since each one is compiled.
        length = bucket(max(len(each.tokens) for each in texts), _SHORTEST, self._limit)
        shape = (len(texts), length)
        tokens, segments = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        mask, pooled = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        for number, each in enumerate(texts):
            own = number, slice(len(each.tokens))
            tokens[own], segments[own], mask[own] = each.tokens, each.segments, True
            pooled[own] = each.pooled
        targets, weights = self._laid([self._targets[row] for row in filled], length)
        weights[len(rows) :] = 0
        return TextBatch(tokens, segments, mask, pooled, targets, weights)

    def _laid(self, targets: Sequence[Any], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the targets of a batch, and their weights."""
        if self._goal.task != "tag":
            return np.array(targets), np.ones(len(targets), np.float32)
        found = np.full((len(targets), length), -1, np.int64)
        for number, own in enumerate(targets):
            found[number, : len(own)] = own
        return np.maximum(found, 0), (found >= 0).astype(np.float32)


def _target(row: HeadRow, text: Encoded, goal: Goal, numbers: Mapping[str, int]) -> Any:
    """Return the target of a row as an array: a class, a score, a table of classes, or tags."""
    if goal.task == "tag":
        return _tags(row, text, numbers)
    if goal.task != "classify" or goal.problem == "regression":
        return np.float32(row.target or 0.0)
    labels = cast("list[Any]", row.target) if isinstance(row.target, list) else [row.target]
    unknown = [each for each in labels if isinstance(each, str) and each not in numbers]
    found = [each if isinstance(each, int) else numbers.get(each, 0) for each in labels]
    if unknown or any(each >= len(goal.labels) for each in found):
        shown = shown_value(unknown[0] if unknown else max(found))
        raise DataError(
            f"{row.where} has the label {shown}, which no training row has",
            hint=f"these have {listed(goal.labels, 8)}",
        )
    if goal.problem == "single_label_classification":
        return np.int64(found[0])
    several = np.zeros(len(goal.labels), np.float32)
    several[found] = 1
    return several


def _tags(row: HeadRow, text: Encoded, numbers: Mapping[str, int]) -> np.ndarray:
    """Return the class of the first token of each word, -1 elsewhere, si64 [N]."""
    words, tags = cast("tuple[list[str], list[str]]", row.target)
    unknown = next((tag for tag in tags if tag not in numbers), None)
    if unknown is not None:
        raise DataError(f"{row.where} has the tag {quoted(unknown)}, which no training row has")
    starts: dict[int, int] = {}
    at = 0
    for word, tag in zip(words, tags, strict=True):
        # By characters of the joined words: tokenizers split words differently, but all give
        # offsets.
        starts[at] = numbers[tag]
        at += len(word) + 1
    found = np.full(len(text.tokens), -1, np.int64)
    for number, (start, end) in enumerate(text.offsets):
        # Some tokenizers count the space before a word as its own.
        own = starts.pop(start, None) if start in starts else starts.pop(start + 1, None)
        if end > start and own is not None:
            found[number] = own
    return found
