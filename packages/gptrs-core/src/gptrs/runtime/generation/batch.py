"""Several texts at once: continuations of one prompt, and prompts of unequal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gptrs.errors import ModelError, UsageError
from gptrs.runtime.generation.options import Generation, GenerationOptions
from gptrs.runtime.generation.plan import Plan, Prompt
from gptrs.runtime.generation.steps import Steps
from gptrs.runtime.generation.stream import PromptFile, read_prompt
from gptrs.runtime.generation.text_row import TextRow
from gptrs.runtime.load import LoadedModel

DEFAULT_BATCH_SIZE = 8


@dataclass(frozen=True)
class Task:
    """A prompt, and how many tokens may follow it; None leaves that to the options.

    `name` says in errors which prompt it is.
    """

    prompt: Prompt
    name: str
    max_tokens: int | None = None


class Batches:
    """An iterator over (number of a task, its outcome) as texts end, in batches of `size` tasks.

    Each text is the one that its task gives alone. All checks happen when it is made, before any
    work; an error names the task. `unfinished` gives what there is of the texts that
    are being generated.
    """

    def __init__(
        self, model: LoadedModel, tasks: Sequence[Task], options: GenerationOptions, size: int
    ) -> None:
        if size < 1:
            raise UsageError(f"the batch size must be at least 1, got {size}")
        if options.prompt_cache is not None:
            raise UsageError("a prompt cache is that of one prompt, a batch has several")
        self._plan = Plan(model, options)
        self._tasks = tasks
        self._size = size
        self._prompts = [self._checked(task) for task in tasks]
        self._running: list[tuple[int, TextRow]] = []
        self._outcomes = self._run()

    def __iter__(self) -> Iterator[tuple[int, Generation]]:
        return self

    def __next__(self) -> tuple[int, Generation]:
        return next(self._outcomes)

    @property
    def unfinished(self) -> list[tuple[int, Generation]]:
        """The texts that have begun and not ended."""
        return [(n, row.generation()) for n, row in self._running if not row.ended]

    def _checked(self, task: Task) -> list[int]:
        try:
            tokens = self._plan.prompt_tokens(task.prompt)
            self._plan.token_budget(len(tokens), task.max_tokens)
        except (UsageError, ModelError) as error:
            raise type(error)(f"{task.name}: {error.message}", hint=error.hint) from error
        return tokens

    def _run(self) -> Iterator[tuple[int, Generation]]:
        for begin in range(0, len(self._tasks), self._size):
            numbers = range(begin, min(begin + self._size, len(self._tasks)))
            rows = [self._plan.row(self._prompts[n], self._tasks[n].max_tokens) for n in numbers]
            self._running = list(zip(numbers, rows, strict=True))
            steps = self._plan.steps([row.context for row in rows])
            for row in rows:
                row.start()
            for place in grown(rows, steps, steps.begin()):
                yield numbers[place], rows[place].generation()


def grown(rows: Sequence[TextRow], steps: Steps, logits: np.ndarray) -> Iterator[int]:
    """Generate until all texts have ended; the place of each in `rows` when it does.

    Texts that have ended leave the batch when they are half of it, or when it is read anew: each
    number of rows has programs of its own.
    """
    live = list(range(len(rows)))
    while True:
        for at, place in enumerate(live):
            if not rows[place].ended:
                rows[place].take(logits[at])
                if rows[place].ended:
                    yield place
        running = [at for at, place in enumerate(live) if not rows[place].ended]
        if not running:
            return
        if len(running) < len(live) and (2 * len(running) <= len(live) or steps.must_begin):
            steps.keep(running)
            live = [live[at] for at in running]
        logits = steps.next()


def generate_batch(
    model: LoadedModel,
    prompts: Sequence[Prompt],
    options: GenerationOptions | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> list[Generation]:
    """The outcome for each prompt, the one that it has alone, `batch_size` of them at a time.

    Prompts are texts or token ids of any length. Errors as those of `stream`, before any work.
    """
    tasks = [Task(prompt, f"prompt {number}") for number, prompt in enumerate(prompts)]
    outcomes = dict(Batches(model, tasks, options or GenerationOptions(), batch_size))
    return [outcomes[number] for number in range(len(tasks))]


def generate_several(
    model: LoadedModel, prompt: Prompt, count: int, options: GenerationOptions | None = None
) -> list[Generation]:
    """`count` texts for one prompt, which is read once; errors as those of `stream`.

    Each draws from a random stream of its own; the first text is the one that `generate` gives.
    """
    return list(Several(model, prompt, count, options or GenerationOptions()).run())


class Several:
    """`count` continuations of one prompt; all checks happen when it is made."""

    def __init__(
        self, model: LoadedModel, prompt: Prompt, count: int, options: GenerationOptions
    ) -> None:
        if count < 1:
            raise UsageError(f"the number of texts must be at least 1, got {count}")
        plan = Plan(model, options)
        tokens = plan.prompt_tokens(prompt)
        self._rows = [plan.row(tokens, stream=stream) for stream in range(count)]
        self._steps = plan.steps([self._rows[0].context])
        self._file = PromptFile(model, options)
        self._known = self._file.known()

    @property
    def generations(self) -> list[Generation]:
        """The outcome of each; what there is so far where `run` has not finished."""
        return [row.generation() for row in self._rows]

    def run(self) -> list[Generation]:
        """Generate all to the end."""
        for row in self._rows:
            row.start()
        logits = read_prompt(self._steps, self._file, self._known)
        self._known = None
        self._steps.split([row.context for row in self._rows])
        for _ in grown(self._rows, self._steps, np.repeat(logits, len(self._rows), axis=0)):
            pass
        return self.generations
