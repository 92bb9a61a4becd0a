"""One text: an argument, a file, or standard input."""

from __future__ import annotations

import os
import stat
import sys
from typing import Annotated

import typer

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted
from gptrs_cli.options.declare import option
from gptrs_cli.terminal.failures import InputFileError
from gptrs_cli.terminal.stderr import note

LARGEST_TEXT = 256 << 20
"""Bytes: a file without an end, such as a device, must not fill the memory."""
STDIN = "-"


@dataclass(frozen=True)
class TextInput:
    """A text on the command line, in a file, or piped in."""

    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]",
            help="The text; without it, what is piped to standard input.",
            show_default=False,
        ),
    ] = None
    file: Annotated[
        str | None,
        option("--file", "A UTF-8 file, used as it is; `-` is standard input.", metavar="FILE"),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether the command line names a text."""
        return self.text is not None or self.file is not None

    def read(self) -> str:
        """Return the text; UsageError for none or two, InputFileError for an unreadable file.

        A note tells of a text that is the name of a file.
        """
        if self.text is not None and self.file is not None:
            raise UsageError("a text and `--file` exclude each other", hint="give one")
        if self.text is not None:
            if os.path.isfile(self.text):
                note(f"the text is the name of a file; `--file {self.text}` reads what it holds")
            return self.text
        if self.file is not None:
            return read_text(self.file, "the text")
        if is_piped():
            return piped_text("the text")
        raise UsageError(
            "there is no text", hint="give it as an argument, pipe it in, or name --file"
        )


def is_piped() -> bool:
    """Return whether standard input is a pipe, a file or a socket, so that it ends."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # none at all, closed, or replaced
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def piped_text(what: str) -> str:
    """Return standard input without its last line break, which `echo` adds."""
    return read_text(STDIN, what).removesuffix("\n").removesuffix("\r")


def read_text(file: str, what: str) -> str:
    """Return the content of a UTF-8 file, of standard input for `-`; `what` it is in errors.

    InputFileError for one that cannot be read, is not UTF-8, or is larger than LARGEST_TEXT.
    """
    data, shown = read_bytes(file, what)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputFileError(
            f"{what} from {shown} is not UTF-8: byte {error.start}",
            hint="convert the file to UTF-8",
        ) from error


def read_bytes(file: str, what: str) -> tuple[bytes, str]:
    """Return the bytes of a file, of standard input for `-`, and how errors call it.

    InputFileError for one that cannot be read, or is larger than LARGEST_TEXT.
    """
    shown = "standard input" if file == STDIN else quoted(file, 200)
    try:
        if file == STDIN:
            data = sys.stdin.buffer.read(LARGEST_TEXT + 1)
        else:
            with open(file, "rb") as source:
                data = source.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise InputFileError(f"cannot read {what} from {shown}: {error.strerror}") from error
    if len(data) > LARGEST_TEXT:
        raise InputFileError(
            f"cannot read {what} from {shown}: it has more than {LARGEST_TEXT} bytes"
        )
    return data, shown
