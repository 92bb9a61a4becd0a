"""Texts in a file: lines, or an object with `text` on each line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Annotated, Final

import typer

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import shown_value
from gptrs.strict_json import parse_object
from gptrs_cli.options.text_input import read_bytes
from gptrs_cli.terminal.failures import InputFileError

_JSON_LINES: Final = ".jsonl"


@dataclass(frozen=True)
class TextOptions:
    """Texts on the command line, or in a file."""

    text: Annotated[
        list[str],
        typer.Option("--text", metavar="TEXT", help="A text; can be repeated."),
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

    def read(self) -> list[str]:
        """Return the texts; lines of white space alone are skipped.

        UsageError unless one of the options is given; InputFileError for a file that cannot be
        read, has no texts, or has a malformed line, which it names.
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


def _of_object(line: bytes, where: str) -> str:
    record = parse_object(line, where, InputFileError, hint='a line is {"text": "..."}')
    text = record.get("text")
    if not isinstance(text, str):
        found = "nothing" if text is None else shown_value(text)
        raise InputFileError(f"{where} needs a string `text`, found {found}")
    return text
