"""Tasks of a model on rows (generate, forward, the verbs); each adds columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from msgspec import Struct

from gptrs.api import GptrsError, UsageError
from gptrs.checkpoint.config_fields import is_integer
from gptrs_runtime.chat.conversation import FIELDS, conversation_of
from gptrs_runtime.generation.generate import generate, generate_batch
from gptrs_runtime.generation.keyword_options import options_for
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import plain
from gptrs_runtime.text_batches import Prompt
from gptrs_runtime.verbs import VERBS, Verb

Row = dict[str, Any]
"""Columns of a row by name: JSON values, or their forms in Ray Data."""
Rows = Sequence[Row]

ERROR: Final = "error"
"""The column with the reason why a row could not be run, if bad rows are skipped."""


class Task(Struct, frozen=True):
    """A task, which reads the first present column of `columns` and adds the columns `adds`.

    `options` names the options it takes; None: those of a generation, which `check` knows.
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
        for name in options:
            if self.options is not None and name not in self.options:
                known = ", ".join(f"`{each}`" for each in sorted(self.options)) or "none"
                raise UsageError(
                    f"the task `{self.name}` has no option `{name}`", hint=f"it takes {known}"
                )
        self.check(options)

    def empty(self, *, skip_bad: bool) -> Row:
        """Return nulls in the columns that a run adds."""
        return dict.fromkeys((*self.adds, ERROR) if skip_bad else self.adds)

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
    `error`, which is null in other rows. Otherwise the first error is raised.
    """
    found = row_results(model, task, rows, column=column, options=options, stops=not skip_bad)
    if not skip_bad:
        for each in found:
            if isinstance(each, GptrsError):
                raise each
        return [{**row, **cast("Row", each)} for row, each in zip(rows, found, strict=True)]
    empty = task.empty(skip_bad=True)
    pairs = zip(rows, found, strict=True)
    return [{**row, **empty, **_shown_result(each)} for row, each in pairs]


def _shown_result(found: Row | GptrsError | None) -> Row:
    assert found is not None, "no error stops the rows after it"
    return {ERROR: found.message} if isinstance(found, GptrsError) else found


def row_results(
    model: LoadedModel,
    task: Task,
    rows: Rows,
    *,
    column: str | None = None,
    options: Mapping[str, Any] | None = None,
    stops: bool,
) -> list[Row | GptrsError | None]:
    """Return the columns that the task adds to each row, or the error of a row.

    Rows run together. Where that fails, they run one by one, so that the error is that of its row;
    if the first one `stops` the others, those that were not run have None.
    """
    given = dict(options or {})
    found: list[Row | GptrsError | None] = [None] * len(rows)
    inputs: dict[int, Any] = {}
    for index, row in enumerate(rows):
        try:
            inputs[index] = _checked_input(task, row, column)
        except GptrsError as error:
            found[index] = error
    try:
        results = task.run(model, list(inputs.values()), given) if inputs else []
        for index, result in zip(inputs, results, strict=True):
            found[index] = result
    # An error of a batch does not say which row it is of. Only then is the time of single runs
    # spent.
    except GptrsError:
        for index, value in inputs.items():
            try:
                (found[index],) = task.run(model, [value], given)
            except GptrsError as error:
                found[index] = error
                if stops:
                    break
    return found


def plain_row(row: Row) -> Row:
    """Return a row of JSON values, where JSON can represent them."""
    return {name: plain(value) for name, value in row.items()}


def _checked_input(task: Task, row: Row, column: str | None) -> Any:
    task.require_free(row)
    return task.input_of(row, column)


def _generate(model: LoadedModel, inputs: list[Any], options: Mapping[str, Any]) -> list[Row]:
    fields = cast("Any", dict(options))
    if len(inputs) == 1:  # errors of a batch begin with the number of a prompt in it
        fields.pop("batch_size", None)
        found = [generate(model, inputs[0], **fields)]
    else:
        found = generate_batch(model, inputs, **fields)
    return [
        {
            "generated": each.text,
            "generated_token_ids": list(each.token_ids),
            "finish_reason": each.finish_reason,
        }
        for each in found
    ]


def _check_generation(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that no model accepts."""
    fields = dict(options)
    size = fields.pop("batch_size", 1)
    if not is_integer(size) or size < 1:
        raise UsageError(f"the batch size must be at least 1, got {json.dumps(size)}")
    options_for({}, None, cast("Any", fields))


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
    # JSON has no types: floats are what models take as activations, integers as token ids.
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
            _check_generation,
        ),
        *(_of_verb(verb) for verb in VERBS.values() if verb.each),
        Task("forward", ("input",), ("output",), frozenset(), _forward),
    )
}
