"""Messages that a user types: lines with history and completion, or the lines of a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import platformdirs
import typer

from gptrs.quoting import quoted
from gptrs_cli.terminal.stderr import complain, has_colors, is_terminal

try:
    import readline
except ImportError:  # lines are then neither edited nor remembered
    readline = None

_PROMPT = "> "
_MORE = ". "
_BLOCK = '"""'
_MOST_LINES = 1000
_VARIABLE = "GPTRS_CHAT_HISTORY"


class Reader:
    """Reads messages; use it as a context manager, which keeps the history of lines.

    On a terminal a line that ends in a backslash goes on in the next; so do all between two lines
    of three quotation marks. In a pipe each line is a message.
    """

    def __init__(self, commands: Iterable[str]) -> None:
        self._is_terminal = is_terminal(sys.stdin)
        self._history = history_file() if self._is_terminal and readline is not None else None
        self._commands = [f"/{name}" for name in commands]
        self._known = 0

    def __enter__(self) -> Reader:
        if readline is not None and self._is_terminal:
            readline.set_completer(self._completion)
            readline.set_completer_delims("")
            readline.parse_and_bind("tab: complete")
            if self._history is not None:
                with contextlib.suppress(OSError):
                    readline.read_history_file(self._history)
            readline.set_history_length(_MOST_LINES)
            self._known = readline.get_current_history_length()
        return self

    def __exit__(self, *exception: object) -> None:
        if readline is not None and self._history is not None:
            try:
                _append(self._history, self._known)
            except OSError as error:
                shown = quoted(str(self._history), 200)
                complain("warning", f"the history is not kept in {shown}: {error.strerror}")

    def message(self) -> str | None:
        """Return the next message, "" after Ctrl-C, None at the end of the input."""
        if not self._is_terminal:
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            return _typed()
        except KeyboardInterrupt:
            print(flush=True)
            return ""
        except EOFError:
            print(flush=True)
            return None

    def _completion(self, text: str, number: int) -> str | None:
        found = [command for command in self._commands if text and command.startswith(text)]
        return found[number] if number < len(found) else None


def history_file() -> Path | None:
    """Return where lines are kept from one conversation to the next, None for nowhere.

    `GPTRS_CHAT_HISTORY` names another file; `off` keeps nothing.
    """
    named = os.environ.get(_VARIABLE)
    if named == "off":
        return None
    folder = platformdirs.user_state_path("gptrs")
    return Path(named).expanduser() if named else folder / "chat_history"


def _typed() -> str:
    line = input(_shown(_PROMPT))
    if line.strip() == _BLOCK:
        return "\n".join(iter(lambda: input(_shown(_MORE)), _BLOCK))
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input(_shown(_MORE)))
    return "\n".join(lines)


def _shown(prompt: str) -> str:
    """Return the prompt in colour where there is any; the marks tell readline its width."""
    if not has_colors(sys.stdout):
        return prompt
    start, end = typer.style("|", fg="green", bold=True).split("|")
    left, right = ("\001", "\002") if readline is not None else ("", "")
    return f"{left}{start}{right}{prompt}{left}{end}{right}"


def _append(file: Path, known: int) -> None:
    """Append what was typed since `known` lines to `file`, which nobody else may read."""
    assert readline is not None
    new = readline.get_current_history_length() - known
    if new > 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
        readline.append_history_file(new, file)
