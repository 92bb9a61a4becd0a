"""Texts in a file: lines, or an object with `text` on each line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gptrs.errors import UsageError
from gptrs.quoting import quoted, shown_value
from gptrs.strict_json import parse_object
from gptrs_cli.terminal.failures import InputFileError

_JSON_LINES: Final = ".jsonl"


def read_texts(given: list[str] | None, file: Path | None) -> list[str]:
    """The texts of the options `--text` and `--input`, of which one is needed.

    Lines of white space alone are skipped. InputFileError for a file that cannot be read, has no
    texts, or has a malformed line, which it names.
    """
    if (not given) == (file is None):
        found = "both" if given else "neither"
        raise UsageError(f"`--text` or `--input` is needed, got {found}", hint="give one of them")
    if file is None:
        return given or []
    shown = quoted(str(file), 200)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputFileError(f"cannot read the texts from {shown}: {error.strerror}") from error
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
