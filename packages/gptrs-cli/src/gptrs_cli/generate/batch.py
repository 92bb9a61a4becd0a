"""`gptrs generate --prompts`: many prompts, many at a time, one line of JSON for each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import asdict

from gptrs.progress import StepProgress
from gptrs_cli.generate.generation_options import generation_options
from gptrs_cli.generate.options import template_variables
from gptrs_cli.generate.page import answer_of, generated_text
from gptrs_cli.generate.prompt_lines import PromptLine, prompt_parts
from gptrs_cli.generate.prompt_tasks import BadLines, runnable_tasks
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.generate.result_lines import ResultLines
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.model import model_shown
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import INTERRUPTED, OutputFileError
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.stderr import note
from gptrs_cli.terminal.waiting import Waiting
from gptrs_runtime.generation.batch import DEFAULT_BATCH_SIZE, Batches
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.outcome import Generation
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import GenerateLine


def run_prompts(request: GenerateRequest, path: Path, settings: Settings) -> int:
    """Generate for each prompt of the file that has no result yet; return the exit code.

    The prompts of a part are checked before anything is generated for it, and of the first part
    before the model is loaded.
    """
    bad = BadLines(request.batch.skip_bad)
    parts = prompt_parts(path, bad)
    first = next(parts)
    with Waiting(f"loading {model_shown(request.model)}"):
        model = loaded_model(request.model, settings, request.adapter)
        model.template_variables.update(template_variables(request.prompt.template_var))
    with ResultLines(request.batch.out, model.name) as results:
        run = _Run(request, model, generation_options(request, model, settings), results, bad)
        interrupted = False
        with progress_bar("prompts", tells_name=True) as step:
            try:
                for part in itertools.chain([first], parts):
                    run.write(part, step)
            except KeyboardInterrupt:
                interrupted = True
    return run.said(interrupted)


class _Run:
    """The generation of all parts, and how far it has come."""

    def __init__(
        self,
        request: GenerateRequest,
        model: LoadedModel,
        options: GenerationOptions,
        results: ResultLines,
        bad: BadLines,
    ) -> None:
        self._request, self._model, self._results, self._bad = request, model, results, bad
        self._options = options
        size = request.batch.batch_size
        self._size = DEFAULT_BATCH_SIZE if size is None else size
        self._read = self._known = self._done = self._tokens = self._unfinished = 0
        self._started = time.monotonic()

    def write(self, lines: Sequence[PromptLine], step: StepProgress) -> None:
        """Write the result of each line, in their order; those before it are waited for.

        After an interrupt or an error those that are done are written, whichever is missing.
        """
        todo = [line for line in lines if line.id not in self._results.done]
        self._read += len(lines)
        self._known += len(lines) - len(todo)
        todo, tasks = runnable_tasks(self._request, self._model, self._options, todo, self._bad)
        held: dict[int, Generation] = {}
        turn = 0
        try:
            for number, result in Batches(self._model, tasks, self._options, self._size):
                held[number] = result
                self._tokens += len(result.token_ids)
                while turn in held:
                    self._write(todo[turn], held.pop(turn))
                    turn += 1
                rate = self._tokens / (time.monotonic() - self._started)
                ended = self._known + self._done + len(held)
                step(ended, self._read - self._bad.refused, f"{rate:.0f} tok/s")
        except OutputFileError:  # the file may end within a line
            raise
        except BaseException:
            for number in sorted(held):
                self._write(todo[number], held[number])
            raise

    def _write(self, line: PromptLine, result: Generation) -> None:
        answer = None
        if line.conversation is not None or (self._request.prompt.chat and line.text is not None):
            answer = answer_of(self._request, self._model, result)
        self._results.write(
            GenerateLine(
                id=line.id,
                **asdict(generated_text(result, answer)),
                prompt_token_ids=result.prompt_token_ids,
                model=self._model.name,
            )
        )
        self._done += 1
        self._unfinished += result.error is not None

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
        cut = f", {self._unfinished} with an `error`" if self._unfinished else ""
        note(f"{done} prompts are done{before}{cut}{self._bad.summary()}")
        return 1 if self._bad.skipped or self._unfinished else 0
