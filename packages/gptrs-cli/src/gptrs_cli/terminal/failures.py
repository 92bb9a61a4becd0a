"""Failures of commands: the message and the exit code of each exception."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import typer

from gptrs.errors import GptrsError
from gptrs.lazy_module import lazy_module
from gptrs.quoting import clipped, quoted
from gptrs_cli.help_pages import examples_of
from gptrs_cli.terminal.streams import complain, is_of_stdout, is_terminal, note, rich_output
from gptrs_runtime.option_fields import OptionError

if TYPE_CHECKING:
    from gptrs_cli.terminal.rich_output import LiveLine


if TYPE_CHECKING:
    from gptrs_cli.terminal import json_result
else:
    json_result = lazy_module("gptrs_cli.terminal.json_result")

USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

# typer does not export `UsageError`, the base of `BadParameter` that covers unknown options,
# missing arguments and so on. It lies in click, and in which module of it depends on typer's
# version.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Failure(NamedTuple):
    """An exit code with its machine-readable name, and the message and hint for the user."""

    exit_code: int
    code: str
    message: str
    hint: str | None


class InputFileError(GptrsError):
    """An input file of a command cannot be read."""

    exit_code = 3
    code = "file"


class OutputFileError(GptrsError):
    """An output file of a command cannot be written."""

    exit_code = 3
    code = "file"


def is_usual_end(error: BaseException) -> bool:
    """Return whether `error` ends a command on purpose: a usage error or an exit code."""
    return isinstance(error, (_UsageError, typer.Exit, typer.Abort))


def report(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Report `error` to the user (with `debug`, its traceback, too); return the exit code."""
    if isinstance(error, BrokenPipeError):
        _give_up_stdout()
        return BROKEN_PIPE
    failure = _failure(error)
    if debug:
        traceback.print_exception(error)
    # If standard output itself failed, the error goes to standard error even with --json.
    if _written(_as_line(failure) if as_json else "") and as_json:
        return failure.exit_code
    if isinstance(error, KeyboardInterrupt):
        note(failure.message)
    else:
        hint = f"; {failure.hint}" if failure.hint else ""
        complain("error", f"{failure.message}{hint}")
    return failure.exit_code


def _as_line(failure: Failure) -> str:
    error = json_result.Error(failure.code, failure.message, failure.hint)
    return json_result.as_line(error)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, GptrsError):
        told = error.on_command_line if isinstance(error, OptionError) else error.message
        return Failure(error.exit_code, error.code, told, error.hint)
    if isinstance(error, _UsageError):
        return _usage_failure(cast("typer.BadParameter", error))
    if isinstance(error, KeyboardInterrupt):
        where = "".join(f" {text}" for text in getattr(error, "__notes__", ())[:1])
        return Failure(INTERRUPTED, "interrupted", f"interrupted{where}", None)
    if isinstance(error, MemoryError):
        return Failure(1, "memory", "out of memory", "close other programs or use a smaller model")
    if isinstance(error, OSError):
        return _system_failure(error)
    kind, text = type(error).__name__, " ".join(str(error).split())
    return Failure(
        1,
        "internal",
        f"this is a bug in gptrs or a plugin: {kind}: {text}",
        "run it again with --debug and report the output",
    )


def _system_failure(error: OSError) -> Failure:
    """Return the failure of a system call, with its purpose if known."""
    reason = error.strerror or str(error)
    if error.filename:
        name = quoted(os.fsdecode(error.filename), 200)
        return Failure(3, "file", f"the system refuses {name}: {reason}", None)
    if is_of_stdout(error):
        return Failure(1, "system", f"cannot write to standard output: {reason}", None)
    if isinstance(error, FileNotFoundError) and not _has_folder():
        return Failure(1, "system", "the current folder was removed", "change to another one")
    return Failure(1, "system", reason, None)


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _usage_failure(error: typer.BadParameter) -> Failure:
    """Return the failure of a usage error of typer, whose sentence becomes a clause."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = _of_value(message, error.__cause__)
    parameter = getattr(error, "param", None)
    if parameter is not None and _of_environment(error.ctx, parameter):
        message = message.replace(f"'{parameter.opts[0]}'", _assignment(parameter.envvar))
    command = error.ctx.command_path if error.ctx else "gptrs"
    clause = message[:1].lower() + message[1:]
    hint = f"see `{command} --help`"
    examples = examples_of(error.ctx) if clause.startswith("missing ") and error.ctx else []
    if examples:
        hint = f"for example `{examples[0]}`, {hint}"
    if "extra argument" in clause and _takes_texts(error.ctx):
        hint = f"a text stands after `--text`, {hint}"
    # Some commands take the model as an argument, others by --model; the usual message would only
    # say that there is no such option.
    if getattr(error, "option_name", None) == "--model" and _takes_arguments(error.ctx):
        clause = "no such option: --model"
        hint = f"the model stands there without it, as in `{command} MODEL`, {hint}"
    return Failure(USAGE, "usage", clause, hint)


def _of_value(message: str, cause: Any) -> str:
    """Return the message on a value, which typer converts by pydantic: what it must be, and is."""
    message = message.replace("': Value error, ", "': ", 1)  # pydantic names the class of the error
    must = re.sub(r"': Input should be ([^,]*)(, unable to .*)?$", r"': must be \1", message)
    if must == message or not hasattr(cause, "errors"):
        return message
    return f"{must}, got {quoted(str(cause.errors()[0]['input']))}"


def _takes_texts(context: Any) -> bool:
    """Return whether a command takes texts by an option and not as arguments."""
    return context is not None and any("--text" in each.opts for each in context.command.params)


def _takes_arguments(context: Any) -> bool:
    """Return whether a command takes arguments."""
    return context is not None and any(
        each.param_type_name == "argument" for each in context.command.params
    )


def _of_environment(context: Any, parameter: Any) -> bool:
    """Return whether the value of an option comes from its environment variable."""
    source = context.get_parameter_source(parameter.name) if context else None
    return source is not None and source.name == "ENVIRONMENT"


def _assignment(variable: str) -> str:
    return f"the variable `{variable}={clipped(os.environ.get(variable, ''))}`"


def _written(text: str) -> bool:
    """Write and flush `text`; return whether standard output took it."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        _give_up_stdout()
        return False
    return True


def _give_up_stdout() -> None:
    """Send standard output to the null device; else the interpreter's last flush fails again."""
    # By descriptor: closing or replacing `sys.stdout` would leave the buffer, which the interpreter
    # flushes at exit with an exit code of 120.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# A status line with elapsed seconds, shown on a terminal during long work.


_DELAY_S = 0.4
"""Delay in seconds before the line appears, so that short waits do not flicker."""


class Waiting:
    """A line on a terminal that names the work in progress and counts seconds.

    Use it as a context manager; `stop` ends it early and may be called again.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._details = ""
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._stopped = False
        self._line: LiveLine | None = None
        self._timer = threading.Timer(_DELAY_S, self._appear)
        # A process that ends by an exception must not wait for the line to appear.
        self._timer.daemon = True

    def __enter__(self) -> Waiting:
        if is_terminal(sys.stderr):
            self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def now(self, what: str) -> None:
        """Name the next work in progress, and restart the count."""
        self._what, self._details, self._started = what, "", time.monotonic()
        self._update()

    def add(self, details: str) -> None:
        """Replace the details after the name."""
        self._details = f", {details}"
        self._update()

    def stop(self) -> None:
        """Erase the line."""
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._line is not None:
                self._line.stop()
                self._line = None

    def _appear(self) -> None:
        output = rich_output()
        with self._lock:
            # The timer may fire while `stop` runs: without the flag, the line would appear after
            # the result and stay.
            if not self._stopped:
                line: LiveLine = output.LiveLine(self._what + self._details, self._started)
                line.start()
                self._line = line

    def _update(self) -> None:
        with self._lock:
            if self._line is not None:
                self._line.show(self._what + self._details, self._started)
