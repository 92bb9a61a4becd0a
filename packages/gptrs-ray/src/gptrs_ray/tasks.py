"""Tasks of a model on rows (generate, forward, the verbs); each adds columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from gptrs.api import GptrsError, UsageError
from gptrs_runtime.chat.conversation import FIELDS, conversation_of
from gptrs_runtime.generation.generate import generate_batch
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import plain
from gptrs_runtime.text_batches import Prompt
from gptrs_runtime.verbs import VERBS, Verb

Row = dict[str, Any]
"""Columns of a row by name: JSON values, or their forms in Ray Data."""
Rows = Sequence[Row]

ERROR: Final = "error"
"""The column with the reason why a row could not be run, if bad rows are skipped."""


@dataclass(frozen=True)
class Task:
    """A task: it reads the first present column of `columns`, and adds the columns `adds`.

    `options` names the options it takes; None: those of a generation, which the runtime checks.
    """

    name: str
    columns: tuple[str, ...]
    adds: tuple[str, ...]
    options: frozenset[str] | None
    run: Callable[[LoadedModel, list[Any], Mapping[str, Any]], list[Row]]
    read: Callable[[Any, Row], Any] = lambda value, _: value
    """Makes an input from the value in the column, and from other columns of the row."""
    check: Callable[[Mapping[str, Any]], object] = lambda _: None
    """Raises UsageError for invalid values of options."""

    def require_options(self, options: Mapping[str, Any]) -> None:
        """Raise UsageError for unknown options and invalid values."""
        if self.options is None:
            return
        for name in options:
            if name not in self.options:
                known = ", ".join(f"`{each}`" for each in sorted(self.options)) or "none"
                raise UsageError(
                    f"the task `{self.name}` has no option `{name}`", hint=f"it takes {known}"
                )
        self.check(options)

    def input_of(self, row: Row, column: str | None) -> Any:
        """Return the input of the task in a row; UsageError if the column is missing."""
        wanted = self.columns if column is None else (column,)
        for name in wanted:
            if row.get(name) is not None:
                return self.read(plain(row[name]), row)
        listed = " or ".join(f"`{name}`" for name in wanted)
        found = ", ".join(f"`{name}`" for name in row) or "nothing"
        raise UsageError(f"a row needs {listed}, found {found}", hint="name its column")

    def require_free(self, row: Row) -> None:
        """Raise UsageError if a row already has a column that the task would write."""
        taken = [name for name in self.adds if name in row]
        if taken:
            raise UsageError(
                f"the rows have a column `{taken[0]}`, which `{self.name}` writes",
                hint="rename the column",
            )


def task_named(name: str) -> Task:
    """Return a task by name; UsageError if there is none."""
    if name not in TASKS:
        raise UsageError(f"there is no task `{name}`", hint=f"there are {', '.join(TASKS)}")
    return TASKS[name]


def run_rows(
    model: LoadedModel,
    task: Task,
    rows: Rows,
    *,
    column: str | None = None,
    options: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> list[Row]:
    """Return each row with the results of the task, in the same order.

    With `skip_bad`, a row that cannot be run has null results, and the reason in the column
    `error`, which is null in other rows. Otherwise the error is raised, without the number of the
    row: callers find it by running rows one by one.
    """
    given = dict(options or {})
    adds = (*task.adds, ERROR) if skip_bad else task.adds
    empty = dict.fromkeys(adds)
    if not skip_bad:
        inputs = [_checked_input(task, row, column) for row in rows]
        results = task.run(model, inputs, given)
        return [{**row, **result} for row, result in zip(rows, results, strict=True)]
    try:
        inputs = [_checked_input(task, row, column) for row in rows]
        results = task.run(model, inputs, given)
    except GptrsError:
        return [_one_row(model, task, row, column, given, empty) for row in rows]
    return [{**row, **empty, **result} for row, result in zip(rows, results, strict=True)]


def _one_row(
    model: LoadedModel,
    task: Task,
    row: Row,
    column: str | None,
    options: Mapping[str, Any],
    empty: Row,
) -> Row:
    try:
        (result,) = task.run(model, [_checked_input(task, row, column)], options)
    except GptrsError as error:
        return {**row, **empty, ERROR: error.message}
    return {**row, **empty, **result}


def _checked_input(task: Task, row: Row, column: str | None) -> Any:
    task.require_free(row)
    return task.input_of(row, column)


def _generate(model: LoadedModel, inputs: list[Any], options: Mapping[str, Any]) -> list[Row]:
    found = generate_batch(model, inputs, **cast("Any", dict(options)))
    return [
        {
            "generated": each.text,
            "generated_token_ids": list(each.token_ids),
            "finish_reason": each.finish_reason,
        }
        for each in found
    ]


def _prompt(value: Any, row: Row) -> Prompt:
    """Return a prompt; other columns have variables for the template of messages."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        told = {name: plain(row[name]) for name in FIELDS if name in row}
        return conversation_of({**told, "messages": cast("object", value)})
    if isinstance(value, str | list) and value:
        return cast("Prompt", value)
    raise UsageError(
        f"a prompt is a text, a list of tokens or one of messages, got {_shown(value)}",
        hint="leave out rows without a prompt, or skip bad ones",
    )


def _of_verb(verb: Verb) -> Task:
    """Return the task of a row in the runtime's table of verbs."""

    def run(model: LoadedModel, inputs: list[Any], options: Mapping[str, Any]) -> list[Row]:
        texts = [_text(value) for value in inputs]
        return [{verb.column: value} for value in verb.values(model, texts, **options)]

    def check(options: Mapping[str, Any]) -> object:
        return verb.request()(**{"texts": (), **options})

    options = frozenset(verb.options)
    return Task(verb.name, ("text",), (verb.column,), options, run, check=check)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise UsageError(f"a text is needed, got {_shown(value)}")


def _forward(model: LoadedModel, inputs: list[Any], options: Mapping[str, Any]) -> list[Row]:
    """Run rows of one shape together, with a run for each shape in the batch."""
    arrays = [_array(value) for value in inputs]
    results: list[Row] = [{} for _ in arrays]
    for shape in dict.fromkeys(array.shape for array in arrays):
        places = [place for place, array in enumerate(arrays) if array.shape == shape]
        outputs = model.forward(np.stack([arrays[place] for place in places]))
        for place, output in zip(places, outputs, strict=True):
            results[place] = {"output": output.tolist()}
    return results


def _array(value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UsageError(f"an input is numbers in equal rows: {error}") from error
    if array.dtype.kind not in "iuf" or not array.ndim:
        raise UsageError(f"an input is a list of numbers, got {_shown(value)}")
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:60]


TASKS: Final[Mapping[str, Task]] = {
    task.name: task
    for task in (
        Task(
            "generate",
            ("prompt", "prompt_ids", "messages"),
            ("generated", "generated_token_ids", "finish_reason"),
            None,
            _generate,
            _prompt,
        ),
        *(_of_verb(verb) for verb in VERBS.values() if verb.each),
        Task("forward", ("input",), ("output",), frozenset(), _forward),
    )
}
