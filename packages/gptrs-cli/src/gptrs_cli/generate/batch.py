"""`gptrs generate --prompts`: many prompts, in batches, one line of JSON for each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from gptrs.errors import ModelError
from gptrs.runtime.chat.messages import Message
from gptrs.runtime.chat.template import ChatTemplateError, chat_template_of
from gptrs.runtime.generation.batch import DEFAULT_BATCH_SIZE, Batches, Task
from gptrs.runtime.generation.chat_session import conversation
from gptrs.runtime.load import LoadedModel
from gptrs_cli.generate.generation_options import generation_options
from gptrs_cli.generate.page import result_fields
from gptrs_cli.generate.prompt_lines import PromptLine, prompt_parts
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.generate.result_lines import ResultLines
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.model import model_shown
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import INTERRUPTED
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.stderr import Step, note
from gptrs_cli.terminal.waiting import Waiting


def run_prompts(request: GenerateRequest, path: Path, settings: Settings) -> int:
    """Generate for each prompt of the file that has no result yet; return the exit code.

    The prompts of a part are checked before anything is generated for it, and of the first part
    before the model is loaded.
    """
    parts = prompt_parts(path)
    first = next(parts)
    with Waiting(f"loading {model_shown(request.model)}"):
        model = loaded_model(request.model, settings)
    with ResultLines(request.batch.out, model.name) as results:
        run = _Run(request, model, results)
        interrupted = False
        with progress_bar("prompts") as step:
            try:
                for part in itertools.chain([first], parts):
                    run.write(part, step)
            except KeyboardInterrupt:
                interrupted = True
    return run.said(interrupted)


class _Run:
    """The generation of all parts, and how far it has come."""

    def __init__(self, request: GenerateRequest, model: LoadedModel, results: ResultLines) -> None:
        self._request, self._model, self._results = request, model, results
        self._options = generation_options(request, model)
        size = request.batch.batch_size
        self._size = DEFAULT_BATCH_SIZE if size is None else size
        self._read = self._known = self._done = 0

    def write(self, lines: Sequence[PromptLine], step: Step | None) -> None:
        """Write the result of each line as it comes."""
        todo = [line for line in lines if line.id not in self._results.done]
        self._read += len(lines)
        self._known += len(lines) - len(todo)
        tasks = _tasks(self._request, self._model, todo)
        for number, result in Batches(self._model, tasks, self._options, self._size):
            fields = {"id": todo[number].id, **result_fields(result)}
            fields["prompt_token_ids"] = result.prompt_token_ids
            self._results.write({**fields, "model": self._model.name})
            self._done += 1
            if step is not None:
                step(self._known + self._done, self._read, "")

    def said(self, interrupted: bool) -> int:
        """Say how many prompts are done of those that were read; return the exit code."""
        done = self._known + self._done
        before = f", {self._known} of them before" if self._known else ""
        if interrupted:
            note(
                f"interrupted: {done} of {self._read} prompts are done{before}; the same command"
                " goes on"
            )
            return INTERRUPTED
        note(f"{self._read} prompts are done{before}")
        return 0


def _tasks(request: GenerateRequest, model: LoadedModel, lines: Sequence[PromptLine]) -> list[Task]:
    """Return a task for each line; all conversations are rendered together."""
    said = {
        number: _messages(request, line)
        for number, line in enumerate(lines)
        if line.messages is not None or (request.prompt.chat and line.text is not None)
    }
    rendered = _rendered(model, [lines[number] for number in said], list(said.values()))
    prompts = dict(zip(said, rendered, strict=True))
    return [
        Task(prompts.get(number) or line.tokens or line.text or "", line.where, line.max_tokens)
        for number, line in enumerate(lines)
    ]


def _messages(request: GenerateRequest, line: PromptLine) -> list[Message]:
    if line.messages is not None:
        return line.messages
    return conversation(request.prompt.system, line.text or "")


def _rendered(
    model: LoadedModel, lines: Sequence[PromptLine], said: Sequence[list[Message]]
) -> list[list[int]]:
    """Return the tokens of conversations; ModelError names the line that the template refuses."""
    if not said:
        return []
    template = chat_template_of(model.files, model.name)
    try:
        texts = template.render_all(said)
    except ChatTemplateError as error:
        if error.conversation is None:
            raise
        where = lines[error.conversation].where
        raise ModelError(f"{where}: {error.message}", hint=error.hint) from error
    return [model.tokenizer.encode(text, special=False) for text in texts]
