"""Prompts of a file become checked tasks, and those that cannot be run become warnings."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.errors import GptrsError, ModelError, UsageError
from gptrs_cli.generate.prompt_lines import PromptLine
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.terminal.failures import InputFileError
from gptrs_cli.terminal.stderr import complain
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.chat.template import ChatTemplateError
from gptrs_runtime.generation.batch import Task
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.images.image_prompts import has_images
from gptrs_runtime.loaded_model import LoadedModel


class BadLines:
    """Told of lines that cannot be run: raises their errors, or warns and counts them."""

    def __init__(self, skips: bool) -> None:
        self.skips = skips
        self.skipped = 0
        self.refused = 0
        """How many of the skipped lines were read as prompts, and refused then."""

    def __call__(self, error: GptrsError) -> None:
        """Raise the error, or print it as a warning."""
        if not self.skips:
            raise error
        self.skipped += 1
        complain("warning", f"left out: {error.message}")

    def refuse(self, error: GptrsError) -> None:
        """Take a line that is a prompt, but not one for this model."""
        self(error)
        self.refused += 1

    def summary(self) -> str:
        """Return how many were left out, as the end of a sentence; empty for none."""
        return f", {self.skipped} bad ones were left out" if self.skipped else ""


def runnable_tasks(
    request: GenerateRequest,
    model: LoadedModel,
    options: GenerationOptions,
    lines: Sequence[PromptLine],
    bad: BadLines,
) -> tuple[list[PromptLine], list[Task]]:
    """Return the lines that are run, and a task for each; `bad` is told of the others.

    Without `bad.skips` prompts are checked by what runs them.
    """
    kept, tasks = _tasks(request, model, lines, bad)
    if not bad.skips:
        return kept, tasks
    setup = GenerationSetup(model, options)
    good: list[tuple[PromptLine, Task]] = []
    for line, task in zip(kept, tasks, strict=True):
        try:
            tokens = model.prompt_tokens(task.prompt)
            setup.token_budget(len(tokens), task.max_tokens)
        except (ModelError, UsageError) as error:
            bad.refuse(type(error)(f"{line.where}: {error.message}"))
        else:
            good.append((line, Task(tokens, task.name, task.max_tokens)))
    return [line for line, _ in good], [task for _, task in good]


def _tasks(
    request: GenerateRequest, model: LoadedModel, lines: Sequence[PromptLine], bad: BadLines
) -> tuple[list[PromptLine], list[Task]]:
    """Return lines and their tasks; all conversations are rendered together."""
    said: dict[int, Conversation] = {}
    talks: set[int] = set()
    for number, line in enumerate(lines):
        if line.conversation is not None:
            said[number] = line.conversation
        elif request.prompt.chat and line.text is not None:
            try:
                said[number] = line.as_message(request.prompt.system)
            except InputFileError as error:
                bad.refuse(error)
                talks.add(number)
    talks |= said.keys()
    prompts = _rendered(model, lines, dict(said), bad)
    kept = [number for number in range(len(lines)) if number not in talks or number in prompts]
    tasks = [
        Task(
            prompts.get(number) or lines[number].tokens or lines[number].text or "",
            lines[number].where,
            lines[number].max_tokens,
        )
        for number in kept
    ]
    return [lines[number] for number in kept], tasks


def _rendered(
    model: LoadedModel, lines: Sequence[PromptLine], said: dict[int, Conversation], bad: BadLines
) -> dict[int, Sequence[int]]:
    """Return the tokens of conversations by their numbers, without those that are refused."""
    if not said:
        return {}
    if "image_lm" in model.capabilities or any(has_images(each.messages) for each in said.values()):
        return _with_images(model, lines, said, bad)
    while said:
        try:
            tokens = model.all_conversation_tokens(list(said.values()))
        except ChatTemplateError as error:
            if error.conversation is None:
                raise
            number = list(said)[error.conversation]
            where = lines[number].where
            bad.refuse(ModelError(f"{where}: {error.message}", hint=error.hint))
            del said[number]
        else:
            return dict(zip(said, tokens, strict=True))
    return {}


def _with_images(
    model: LoadedModel, lines: Sequence[PromptLine], said: dict[int, Conversation], bad: BadLines
) -> dict[int, Sequence[int]]:
    """Return the tokens of conversations that may have images, as `_rendered` does."""
    found: dict[int, Sequence[int]] = {}
    for number, conversation in said.items():
        try:
            found[number] = model.prompt_tokens(conversation)
        except (ModelError, UsageError) as error:
            where = lines[number].where
            bad.refuse(type(error)(f"{where}: {error.message}", hint=error.hint))
    return found
