"""`gptrs generate --prompts`: many prompts, in batches, one line of JSON for each."""

from __future__ import annotations

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
from gptrs_cli.generate.prompt_lines import PromptLine, read_prompt_lines
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.generate.result_lines import ResultLines
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.model import model_shown
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import INTERRUPTED
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.stderr import note
from gptrs_cli.terminal.waiting import Waiting


def run_prompts(request: GenerateRequest, path: Path, settings: Settings) -> int:
    """Generate for each prompt of the file that has no result yet; return the exit code.

    All prompts are checked before anything is generated.
    """
    lines = read_prompt_lines(path)
    with Waiting(f"loading {model_shown(request.model)}"):
        model = loaded_model(request.model, settings)
    with ResultLines(request.batch.out, model.name) as results:
        todo = [line for line in lines if line.id not in results.done]
        size = request.batch.batch_size
        size = DEFAULT_BATCH_SIZE if size is None else size
        batches = Batches(
            model, _tasks(request, model, todo), generation_options(request, model), size
        )
        known = len(lines) - len(todo)
        done = _write_results(batches, todo, results, model, known)
    return _said(known + done, len(lines), known)


def _write_results(
    batches: Batches,
    lines: Sequence[PromptLine],
    results: ResultLines,
    model: LoadedModel,
    known: int,
) -> int:
    """Write each result as it comes; return their number, fewer than all on an interrupt."""
    done = 0
    with progress_bar("prompts") as step:
        try:
            for number, result in batches:
                fields = {"id": lines[number].id, **result_fields(result)}
                fields["prompt_token_ids"] = result.prompt_token_ids
                results.write({**fields, "model": model.name})
                done += 1
                if step is not None:
                    step(known + done, known + len(lines), "")
        except KeyboardInterrupt:
            pass
    return done


def _said(done: int, total: int, known: int) -> int:
    before = f", {known} of them before" if known else ""
    if done < total:
        note(f"interrupted: {done} of {total} prompts are done{before}; the same command goes on")
        return INTERRUPTED
    note(f"{total} prompts are done{before}")
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
