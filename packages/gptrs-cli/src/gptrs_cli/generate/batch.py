"""`gptrs generate --prompts`: runs many prompts at once, and writes a line of JSON for each."""

from __future__ import annotations

import itertools
import os
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from msgspec.structs import asdict

from gptrs.errors import GptrsError, ModelError, UsageError
from gptrs.operating_system import lock_file
from gptrs.private_files import write_all
from gptrs.progress import StepProgress
from gptrs.quoting import quoted, shown_value
from gptrs.strict_json import parse_object
from gptrs_cli.generate.generation_options import generation_options
from gptrs_cli.generate.options import template_variables
from gptrs_cli.generate.page import answer_of, generated_text
from gptrs_cli.generate.prompt_lines import Id, PromptLine, prompt_parts
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.settings import Settings, model_shown
from gptrs_cli.terminal.failures import INTERRUPTED, InputFileError, OutputFileError, Waiting
from gptrs_cli.terminal.json_result import as_line
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.streams import complain, note
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.chat.template import ChatTemplateError
from gptrs_runtime.generation.batch import DEFAULT_BATCH_SIZE, Batches, Task
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.outcome import Generation
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.images.image_prompts import has_images
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import GenerateLine

# Results as JSON lines: to standard output, or to a file that a later run continues.


class ResultLines:
    """A writer of one record a line; use it as a context manager.

    Lines are written unbuffered, and synced to the disk when the scope ends. An existing file at
    `path` is continued: `done` has the ids it holds already, and a torn last line, left by a killed
    run, is removed. The file is locked against a second run. Raises OutputFileError if it cannot be
    written, is locked, or has lines other than results of `model`.
    """

    def __init__(self, path: Path | None, model: str) -> None:
        self._shown = "" if path is None else quoted(str(path), 200)
        self._model = model
        self.done: frozenset[Id] = frozenset()
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = _opened(path, self._shown)
                self.done = self._resumed(self._file)
            except OSError as error:
                self._close()
                raise self._unwritable(error) from error
            except OutputFileError:
                self._close()
                raise

    def __enter__(self) -> ResultLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            try:
                # Once at the end: a sync after each line would cost more than a short text, and
                # after a crash the next run repeats what is missing.
                os.fsync(self._file.fileno())
            except OSError as problem:
                raise self._unwritable(problem) from problem
            finally:
                self._close()

    def write(self, result: GenerateLine) -> None:
        """Append a result as a line; OutputFileError if it cannot be written."""
        line = as_line(result)
        if self._file is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        try:
            write_all(self._file.fileno(), line.encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def _resumed(self, file: BinaryIO) -> frozenset[Id]:
        """Return the ids of the complete lines, and truncate the file after the last one."""
        ids: set[Id] = set()
        end, torn = 0, False
        # A duplicate, so that closing the buffered reader leaves the locked file open.
        with os.fdopen(os.dup(file.fileno()), "rb") as reader:
            for number, line in enumerate(reader, start=1):
                torn = not line.endswith(b"\n")
                record = self._parsed(line, number, torn)
                if record is None:
                    torn = False
                    break
                ids.add(self._checked_id(record, number))
                end += len(line)
        # A torn line cannot be completed: its text may depend on sampling.
        file.truncate(end)
        file.seek(end)
        if torn:
            write_all(file.fileno(), b"\n")
        return frozenset(ids)

    def _parsed(self, line: bytes, number: int, torn: bool) -> dict[str, object] | None:
        """Return the object on a line, None if the line is torn."""
        try:
            return parse_object(line, f"line {number} of {self._shown}", OutputFileError)
        except GptrsError as error:
            if torn:
                return None
            raise OutputFileError(
                f"{error.message}: the file has lines that are not results",
                hint="name another file with --out",
            ) from error

    def _checked_id(self, record: dict[str, object], number: int) -> Id:
        found, model = record.get("id"), record.get("model")
        if isinstance(found, bool) or not isinstance(found, str | int):
            raise OutputFileError(
                f"line {number} of {self._shown} is not a result: it has no `id`",
                hint="name another file with --out",
            )
        if model != self._model:
            raise OutputFileError(
                f"line {number} of {self._shown} is a result of the model {shown_value(model)},"
                f" not of `{self._model}`",
                hint="name another file with --out",
            )
        return found

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _unwritable(self, error: OSError) -> OutputFileError:
        return OutputFileError(f"cannot write {self._shown}: {error.strerror or error}")


def _opened(path: Path, shown: str) -> BinaryIO:
    """Open the regular file at `path`, made if missing, locked and unbuffered."""
    # O_NONBLOCK: opening a FIFO by mistake would wait for a reader before it can be refused.
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
    file = os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OutputFileError(f"cannot write {shown}: it is not a regular file")
    try:
        lock_file(file.fileno())
    except BlockingIOError as error:
        file.close()
        raise OutputFileError(f"another process writes to {shown}") from error
    return file


# Prompts of a file become checked tasks; prompts that cannot be run become warnings.


class BadLines:
    """Handles lines that cannot be run: raises their errors, or warns and counts them."""

    def __init__(self, skips: bool) -> None:
        self.skips = skips
        self.skipped = 0
        self.refused = 0
        """The number of skipped lines that were well-formed prompts, but refused by the model."""

    def __call__(self, error: GptrsError) -> None:
        """Raise the error, or print it as a warning."""
        if not self.skips:
            raise error
        self.skipped += 1
        complain("warning", f"left out: {error.message}")

    def refuse(self, error: GptrsError) -> None:
        """Handle a well-formed prompt that this model refuses."""
        self(error)
        self.refused += 1

    def summary(self) -> str:
        """Return the number of skipped lines as the end of a sentence; empty for none."""
        return f", {self.skipped} bad ones were left out" if self.skipped else ""


def runnable_tasks(
    request: GenerateRequest,
    model: LoadedModel,
    options: GenerationOptions,
    lines: Sequence[PromptLine],
    bad: BadLines,
) -> tuple[list[PromptLine], list[Task]]:
    """Return the lines to run with their tasks; the other lines go to `bad`.

    Unless `bad.skips`, prompts are checked when they run.
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
    """Return the tokens of conversations by index, except refused ones."""
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
            # The template renders all conversations in one call of its process, and stops at the
            # first bad one: the others are tried again without it.
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


def run_prompts(request: GenerateRequest, path: Path, settings: Settings) -> int:
    """Generate for each prompt of the file that has no result yet; return the exit code.

    The prompts of a part are checked before any of them runs; those of the first part before the
    model is loaded.
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
    """The generation of all parts, and its progress."""

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
        """Write the results in the order of the lines; a result waits for those before it.

        After an interrupt or an error, all finished results are written, even if earlier ones are
        missing.
        """
        todo = [line for line in lines if line.id not in self._results.done]
        self._read += len(lines)
        self._known += len(lines) - len(todo)
        todo, tasks = runnable_tasks(self._request, self._model, self._options, todo, self._bad)
        # Texts of a batch end in any order, but the file keeps that of the prompts. Few are held,
        # as batches are filled in order.
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
            # Finished texts are kept although earlier ones are missing: the next run goes by ids,
            # not by order.
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
        """Report how many of the prompts are done; return the exit code."""
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
