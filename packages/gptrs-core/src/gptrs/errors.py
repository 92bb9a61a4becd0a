"""Every exception a user can catch, each saying when it is raised.

Each class has an exit code for the command line and a short machine-readable code, so that one
function can turn any of them into a line of text or a JSON object.
"""

from __future__ import annotations

import errno
import traceback
from types import FrameType
from typing import ClassVar

_EXCERPT = 100
"""Longest excerpt of a source line in an error, in characters."""


class GptrsError(Exception):
    """Root of all errors that gptrs raises on purpose; `hint` says what to do about it."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "runtime"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def _render_traceback_(self) -> list[str]:  # the name by which IPython asks
        """Return the lines that a notebook shows: without the calls within gptrs and its causes.

        They say nothing about a wrong name, and may be hundreds of lines.
        """
        shown: list[tuple[FrameType, int]] = []
        below = False
        for frame, line in traceback.walk_tb(self.__traceback__):
            module = str(frame.f_globals.get("__name__"))
            below = below or module.partition(".")[0].startswith("gptrs")
            # A function of the caller may run below, as in `jit`.
            if module == "__main__" or not (below or module.startswith("IPython.")):
                shown.append((frame, line))
        return [
            "Traceback (most recent call last):",
            *(line.rstrip("\n") for line in traceback.StackSummary.extract(shown).format()),
            f"{type(self).__name__}: {self}",
        ]


class ExecutionError(GptrsError):
    """A program failed while it ran: an index out of range, an integer division by zero."""


class ConsumedTensorError(GptrsError):
    """A tensor was read after it had been donated to a compiled step."""

    code = "consumed"


class UsageError(GptrsError):
    """An argument has a wrong value or type, or arguments do not fit together.

    `argument` is the name of the one at fault, None if the message alone says it.
    """

    exit_code = 2
    code = "usage"

    def __init__(
        self, message: str, *, hint: str | None = None, argument: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.argument = argument


class ContextLengthError(UsageError):
    """A prompt and the requested tokens do not fit into the context of the model."""

    code = "context"


class NoTokenError(UsageError):
    """No next token is allowed: the required form or the suppressed tokens leave none."""

    code = "no_token"


class CacheBudgetError(UsageError):
    """The budget of the key/value cache has no room for a text."""

    code = "cache_budget"


class EngineBusyError(GptrsError):
    """An engine's queue is full: try again later.

    `retry_after`: estimated seconds to wait, None if unknown.
    """

    code = "busy"
    retry_after: float = 1.0


class TimeLimitError(GptrsError):
    """An answer was incomplete at the time limit of its request."""

    code = "time_limit"


class EngineClosedError(GptrsError):
    """An engine accepts no more requests, or ended before an answer was complete."""

    code = "closed"


class ProgramError(GptrsError):
    """A PTIR program is malformed: wrong operand types, attributes, shapes or structure."""

    exit_code = 3
    code = "program"


class ParseError(ProgramError):
    """Program text is not PTIR; carries the position of the first offending character."""

    code = "parse"

    def __init__(self, message: str, *, line: int, column: int, source_line: str) -> None:
        excerpt, position = _excerpt(source_line, column)
        shown = f"\n  {excerpt}\n  {' ' * position}^" if source_line.strip() else ""
        super().__init__(f"line {line}, column {column}: {message}{shown}")
        self.line = line
        self.column = column
        self.source_line = source_line


def _excerpt(source_line: str, column: int) -> tuple[str, int]:
    """Return at most `_EXCERPT` characters around `column`, safe for a terminal, and the column's
    offset in them."""
    start = max(0, min(column - 1 - _EXCERPT // 2, len(source_line) - _EXCERPT))
    end = start + _EXCERPT
    before = "..." if start else ""
    after = "..." if end < len(source_line) else ""
    # A tab would shift the caret; an escape sequence in a hostile file could move the cursor.
    shown = "".join(c if c.isprintable() else " " for c in source_line[start:end])
    return before + shown + after, len(before) + column - 1 - start


class ModelError(GptrsError):
    """A model directory cannot be used: a file is missing, a setting or kind is unknown."""

    exit_code = 3
    code = "model"


class CheckpointError(ModelError):
    """A checkpoint file is damaged, hostile, or lacks a tensor that the model needs."""

    code = "checkpoint"


class PluginError(GptrsError):
    """A plugin requested by name is unknown, disabled, incompatible or broken."""

    exit_code = 4
    code = "plugin"


class BackendError(PluginError):
    """A requested backend cannot be created or broke its contract."""

    code = "backend"


class MissingLibraryError(GptrsError):
    """An optional library that is needed is not installed."""

    exit_code = 4
    code = "missing_library"


class UnsupportedError(GptrsError):
    """A backend does not support an op or dtype of a program; raised before anything runs."""

    exit_code = 5
    code = "unsupported"


_SIGNS_OF_NO_MEMORY = ("failed to map segment", "cannot allocate memory", "out of memory")
"""Phrases for a lack of memory in ImportErrors and OSErrors of the dynamic linker and libraries."""


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error, or any in its chain of causes, is a lack of memory."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if isinstance(error, ImportError | OSError) and any(
            sign in str(error).lower() for sign in _SIGNS_OF_NO_MEMORY
        ):
            return True
        error = error.__cause__ or error.__context__
    return False
