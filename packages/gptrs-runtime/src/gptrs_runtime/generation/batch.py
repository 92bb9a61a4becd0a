"""Generates several texts at once: continuations of one prompt, or prompts of any length."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Unpack

from msgspec import Struct

from gptrs.errors import ModelError, UsageError
from gptrs_runtime.generation.beams import BeamSearch
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.keyword_options import generation_options, tells_options
from gptrs_runtime.generation.keywords import OptionFields
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.outcome import Generation
from gptrs_runtime.generation.prompt_cache import PromptFile
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.text_batches import Prompt

DEFAULT_BATCH_SIZE = 32


class Task(Struct, frozen=True):
    """A prompt and its token limit; None for the limit of the options.

    Errors call the prompt `name`.
    """

    prompt: Prompt
    name: str
    max_tokens: int | None = None


class Batches:
    """An iterator over (task number, outcome) as texts end, `size` of them running at a time.

    Each text is the same as if its task ran alone. All checks happen in the constructor, before any
    work; an error names the task. The next task starts when a text ends and the cache has room.
    `unfinished` has the texts being generated.
    """

    def __init__(
        self, model: LoadedModel, tasks: Sequence[Task], options: GenerationOptions, size: int
    ) -> None:
        if size < 1:
            raise UsageError(f"the batch size must be at least 1, got {size}")
        if options.prompt_cache is not None:
            raise UsageError("a prompt cache is for one prompt, a batch has several")
        self._setup = GenerationSetup(model, options)
        self._model = model
        self._tasks = tasks
        # All at once: an error in the last prompt should not come after an hour of work.
        self._prompts = [self._checked(task) for task in tasks]
        self._searched: list[tuple[int, GeneratedText]] = []
        if self._setup.beams is not None:
            self._outcomes = self._search()
            return
        self._scheduler = self._setup.new_scheduler(size)
        self._numbers = {self._add(n): n for n in range(len(tasks))}
        self._outcomes = self._run()

    def __iter__(self) -> Iterator[tuple[int, Generation]]:
        return self

    def __next__(self) -> tuple[int, Generation]:
        return next(self._outcomes)

    @property
    def unfinished(self) -> list[tuple[int, Generation]]:
        """Return the texts that have started but not ended."""
        if self._setup.beams is not None:
            return [(number, text.generation()) for number, text in self._searched]
        running = self._scheduler.running
        return [(self._numbers[text], text.generation()) for text in running if not text.ended]

    def _checked(self, task: Task) -> Sequence[int]:
        with _named(task):
            tokens = self._model.prompt_tokens(task.prompt)
            self._setup.token_budget(len(tokens), task.max_tokens)
            return tokens

    def _add(self, number: int) -> GeneratedText:
        task = self._tasks[number]
        text = self._setup.new_text(self._prompts[number], task.max_tokens)
        with _named(task):
            self._scheduler.add(text)
        return text

    def _search(self) -> Iterator[tuple[int, Generation]]:
        """Run beam search for one text after another."""
        for number, task in enumerate(self._tasks):
            text = self._setup.new_text(self._prompts[number], task.max_tokens)
            self._searched = [(number, text)]
            with _named(task):
                search = self._setup.search(text, task.max_tokens)
                text.start()
                (best, *_) = search.run()
            text.replay(best.tokens, search.prompt_read)
            self._searched = []
            yield number, text.generation()

    def _run(self) -> Iterator[tuple[int, Generation]]:
        try:
            while self._scheduler.busy:
                for text, _ in self._scheduler.step():
                    if text.ended:
                        yield self._numbers[text], text.generation()
        finally:
            self._scheduler.close()


@contextmanager
def _named(task: Task) -> Generator[None]:
    """Prefix errors with the name of a task."""
    try:
        yield
    except (UsageError, ModelError) as error:
        # Of the same type, since callers tell errors of usage from those of models.
        raise type(error)(f"{task.name}: {error.message}", hint=error.hint) from error


@tells_options
def generate_batch(
    model: LoadedModel,
    prompts: Sequence[Prompt],
    options: GenerationOptions | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    **fields: Unpack[OptionFields],
) -> list[Generation]:
    """Return the outcome for each prompt, the same as if run alone, `batch_size` at a time.

    Prompts are of any length. Options and errors as for `stream`, checked before any work.
    """
    if isinstance(prompts, str):
        raise UsageError("`generate_batch` takes a list of prompts, got one text")
    options = generation_options(model, options, fields)
    tasks = [Task(prompt, f"prompt {number}") for number, prompt in enumerate(prompts)]
    outcomes = dict(Batches(model, tasks, options, batch_size))
    return [outcomes[number] for number in range(len(tasks))]


@tells_options
def generate_several(
    model: LoadedModel,
    prompt: Prompt,
    count: int,
    options: GenerationOptions | None = None,
    **fields: Unpack[OptionFields],
) -> list[Generation]:
    """Return `count` texts for one prompt, which is read once; options and errors as of `stream`.

    Each has its own random stream; the first text equals that of `generate`. With beams they are
    the best texts of one search, at most one per beam.
    """
    return list(Several(model, prompt, count, generation_options(model, options, fields)).run())


class Several:
    """`count` continuations of one prompt; all checks happen in the constructor."""

    def __init__(
        self, model: LoadedModel, prompt: Prompt, count: int, options: GenerationOptions
    ) -> None:
        if count < 1:
            raise UsageError(f"the number of texts must be at least 1, got {count}")
        setup = GenerationSetup(model, options)
        tokens = model.prompt_tokens(prompt)
        self._texts = [setup.new_text(tokens, stream=stream) for stream in range(count)]
        self._search: BeamSearch | None = None
        if setup.beams is not None:
            if count > setup.beams.count:
                raise UsageError(
                    f"{setup.beams.count} beams give as many texts, asked for {count}",
                    hint="ask for more beams",
                )
            self._search = setup.search(self._texts[0])
            return
        self._scheduler = setup.new_scheduler()
        file = PromptFile(model, options, setup.cache)
        # The others branch off when the prompt is read: it is read and kept once for all.
        self._scheduler.add(self._texts[0], self._texts[1:], file.save)

    @property
    def generations(self) -> list[Generation]:
        """The outcome of each so far; complete once `run` has finished."""
        return [text.generation() for text in self._texts]

    def run(self) -> list[Generation]:
        """Generate all texts to their end."""
        if self._search is not None:
            for text in self._texts:
                text.start()
            for text, found in zip(self._texts, self._search.run(), strict=False):
                text.replay(found.tokens, self._search.prompt_read)
            return self.generations
        try:
            while self._scheduler.busy:
                self._scheduler.step()
        finally:
            self._scheduler.close()
        return self.generations
