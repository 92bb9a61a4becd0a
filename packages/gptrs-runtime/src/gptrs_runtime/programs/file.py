"""Programs in files, as text or as JSON: told apart by their content, read in bounded memory."""

from __future__ import annotations

import os
from pathlib import Path

from gptrs.checkpoint.files.open_file import open_regular, read_at, read_whole
from gptrs.checkpoint.formats.foreign_files import FIRST_BYTES, foreign_format
from gptrs.errors import GptrsError, ProgramError
from gptrs.ir import parse_json, parse_program
from gptrs.ir.program import Program
from gptrs.quoting import quoted
from gptrs_runtime.sources.model_source import CONFIG

MAX_PROGRAM_BYTES = 100_000_000
"""Largest file that is read; reading takes a multiple of it in memory."""
_START_BYTES = 4096
_SUFFIXES = (".ptir", ".json")


def read_program(path: str | os.PathLike[str]) -> Program:
    """Return the program in a file, verified; JSON is what begins with `{`, all else is text.

    ProgramError if there is no such regular file, if it is larger than MAX_PROGRAM_BYTES or not
    UTF-8; ParseError or ProgramError, with the place, if it is no program.
    """
    data = read_whole(_resolved(path), MAX_PROGRAM_BYTES, ProgramError)
    foreign = foreign_format(path, data[:FIRST_BYTES])
    if foreign is not None and foreign.package is not None:
        shown = quoted(str(path), 200)
        raise ProgramError(f"{shown} is {foreign.name}, no program of PTIR", hint=foreign.hint)
    if Path(path).name == CONFIG:
        raise ProgramError(
            f"{quoted(str(path), 200)} is the settings of a model, no program",
            hint=f"name the model's folder, {quoted(str(Path(path).parent), 200)}",
        )
    if data.lstrip()[:1] == b"{":
        return parse_json(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        shown = quoted(str(path), 200)
        raise ProgramError(f"{shown} is no program: byte {problem.start} is not UTF-8") from None
    return parse_program(text)


def is_program(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is meant to be a program, sound or not, rather than a checkpoint."""
    try:
        descriptor = open_regular(_resolved(path))
    except GptrsError:
        return False
    try:
        start = read_at(descriptor, _START_BYTES, 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    if b"\0" in start:  # as in the length at the start of a safetensors file
        return False
    return start.lstrip().startswith((b"{", b"ptir.", b"//")) or Path(path).suffix in _SUFFIXES


def _resolved(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError as problem:
        raise ProgramError(f"cannot open {quoted(str(path), 200)}: {problem}") from problem
