"""One text: an argument, a file, or standard input."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Struct, field

from gptrs.errors import UsageError
from gptrs.quoting import quoted, shown_value
from gptrs.strict_json import parse_object, record_of
from gptrs_cli.options.declare import option
from gptrs_cli.terminal.failures import InputFileError
from gptrs_cli.terminal.streams import note
from gptrs_runtime.model_inputs import InputChoice

LARGEST_TEXT = 256 << 20
"""In bytes: an endless file, such as a device, must not fill the memory."""
STDIN = "-"


class TextInput(Struct, frozen=True):
    """A text on the command line, in a file, or piped in."""

    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]",
            help="The text; by default, standard input if it is piped.",
            show_default=False,
        ),
    ] = None
    file: Annotated[
        str | None,
        option("--file", "A UTF-8 file; `-` is standard input.", metavar="FILE"),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether the command line names a text."""
        return self.text is not None or self.file is not None

    def read(self) -> str:
        """Return the text; UsageError for none or two, InputFileError for an unreadable file.

        Prints a note if the text is the name of a file.
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
    except (AttributeError, OSError, ValueError):  # missing, closed or replaced
        return False
    # Not merely "no terminal": under cron or a service, `/dev/null` would be taken for a text.
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def piped_text(what: str) -> str:
    """Return standard input without its last line break, which `echo` adds."""
    return read_text(STDIN, what).removesuffix("\n").removesuffix("\r")


def read_text(file: str, what: str) -> str:
    """Return the text of a UTF-8 file, or of standard input for `-`; errors call it `what`.

    Raises InputFileError if it cannot be read, is not UTF-8, or is larger than LARGEST_TEXT.
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
    """Return the bytes of a file, or of standard input for `-`, and its name in errors.

    Raises InputFileError if it cannot be read, or is larger than LARGEST_TEXT.
    """
    shown = "standard input" if file == STDIN else quoted(file, 200)
    try:
        if file == STDIN:
            # One byte more than allowed tells a text of exactly the limit from a longer one.
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


# Texts in a file: lines, or an object with `text` on each line.


_JSON_LINES: Final = ".jsonl"


class TextOptions(Struct, frozen=True):
    """Texts on the command line, or in a file."""

    text: Annotated[
        list[str],
        typer.Option("--text", metavar="TEXT", help="A text; repeatable."),
    ] = field(default_factory=list[str])
    file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help='Texts in a file, one a line; in a .jsonl file lines such as {"text": "..."}.'
            " `-` is standard input, one a line.",
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether the command line names texts."""
        return bool(self.text) or self.file is not None

    def read(self) -> list[str]:
        """Return the texts; blank lines are skipped.

        Raises UsageError unless one of the options is given; InputFileError if the file cannot be
        read, has no texts, or has a malformed line.
        """
        if bool(self.text) == (self.file is not None):
            found = "both" if self.text else "neither"
            raise UsageError(
                f"`--text` or `--input` is needed, got {found}", hint="give one of them"
            )
        return self.text if self.file is None else _read_file(self.file)


def _read_file(file: Path) -> list[str]:
    data, shown = read_bytes(str(file), "the texts")
    texts = list(_texts(data, shown, as_json=file.suffix.lower() == _JSON_LINES))
    if not texts:
        raise InputFileError(f"{shown} has no texts", hint="each line is one")
    return texts


def _texts(data: bytes, shown: str, *, as_json: bool) -> Iterator[str]:
    # Bytes are split before they are decoded: an error then names its line.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            where = f"line {number} of {shown}"
            yield _of_object(line, where) if as_json else _of_line(line, where)


def _of_line(line: bytes, where: str) -> str:
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputFileError(
            f"{where} is not UTF-8: byte {error.start}", hint="convert the file to UTF-8"
        ) from error


class _TextLine(Struct, frozen=True):
    text: str


def _of_object(line: bytes, where: str) -> str:
    hint = 'a line is {"text": "..."}'
    record = parse_object(line, where, InputFileError, hint=hint)
    return record_of(record, _TextLine, where, InputFileError, hint=hint).text


# The options that say what a model is run on once, shared by the commands that do so.


class InputOptions(Struct, frozen=True):
    """Files, tokens or a text as the input of a model, else made-up ones."""

    inputs: Annotated[
        list[Path],
        option(
            "--input",
            "An image, or a tensor as .npy, .npz, .safetensors or .gptrsten; several of one size"
            " make a batch.",
            metavar="FILE",
        ),
    ] = field(default_factory=list[Path])
    input_key: Annotated[
        str | None,
        option("--input-key", "Which tensor of a file that has several.", metavar="NAME"),
    ] = None
    tokens: Annotated[
        str | None, option("--tokens", "Tokens, for a model of text.", metavar="1,2,3")
    ] = None
    prompt: Annotated[
        str | None, option("--prompt", "Text, for a model of text.", metavar="TEXT")
    ] = None
    seed: Annotated[
        int,
        option(
            "--seed",
            "Where no input is given, make one up, the same for the same N.",
            metavar="N",
        ),
    ] = 0

    def choice(self, *made_up: int) -> InputChoice:
        """Return the choice for `batch_of`; `made_up`: its count and length of made-up inputs.

        UsageError for malformed tokens.
        """
        ids = None if self.tokens is None else tuple(parse_integers(self.tokens, "--tokens"))
        return InputChoice(
            tuple(self.inputs), self.input_key, ids, self.prompt, self.seed, *made_up
        )


def parse_integers(text: str, option: str, what: str = "tokens") -> list[int]:
    """Return the numbers in a list such as 1,2,3; else UsageError: `option` needs `what`."""
    parts = re.split(r"[,\s]+", text.strip())
    # Not by `int`: it takes `1_000` and digits of other scripts, and quadratic time for long ones.
    if not all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts):
        raise UsageError(f"`{option}` needs {what} such as 1,2,3, got `{text:.60}`")
    return [int(part) for part in parts]


def parse_numbers(text: str, option: str) -> tuple[float, ...]:
    """Return the numbers in a list such as 0,0.2; else UsageError: `option` takes them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"`{option}` takes numbers with commas between them, got {shown_value(text)}",
            hint=f"write {option} 0,0.2,0.4,0.6,0.8,1",
        ) from None
