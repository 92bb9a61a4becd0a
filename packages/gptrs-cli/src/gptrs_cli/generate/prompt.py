"""The prompt of a generation: text, a file, tokens, or what suits the demo model."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass

from gptrs.errors import UsageError
from gptrs_cli.generate.options import PromptOptions
from gptrs_cli.options.inputs import parse_integers
from gptrs_cli.terminal.failures import InputFileError

DEMO_PROMPT = "def read_file(path):\n"
LARGEST_PROMPT = 256 << 20
"""Bytes: a file without an end, such as a device, must not fill the memory."""
_STDIN = "-"


@dataclass(frozen=True)
class Prompt:
    """Text or tokens to continue; `is_default` when the user named neither."""

    content: str | list[int]
    is_default: bool = False


def read_prompt(options: PromptOptions, *, has_default: bool) -> Prompt:
    """Return the one prompt that is given, else what is piped in, else DEMO_PROMPT if it may be.

    A piped text loses its last line break, which `echo` adds. UsageError without a prompt, for two
    of them, and for malformed tokens; InputFileError for a file that cannot be read as UTF-8.
    """
    given = list(options.given)
    if len(given) > 1:
        raise UsageError(f"`{given[0]}` and `{given[1]}` exclude each other", hint="give one")
    text = options.prompt if options.text is None else options.text
    if text is not None:
        return Prompt(text)
    if options.prompt_ids is not None:
        return Prompt(parse_integers(options.prompt_ids, "--prompt-ids"))
    if options.prompt_file is not None:
        return Prompt(_read_text(options.prompt_file))
    if _is_piped() and (piped := _read_text(_STDIN).removesuffix("\n").removesuffix("\r")):
        return Prompt(piped)
    if has_default:
        return Prompt(DEMO_PROMPT, is_default=True)
    raise UsageError(
        "there is no prompt",
        hint='give it as an argument, `gptrs generate "Once upon a time"`, pipe it in,'
        " or name --prompt-file or --prompt-ids",
    )


def _is_piped() -> bool:
    """Return whether standard input is a pipe, a file or a socket, so that it ends."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # none at all, closed, or replaced
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_text(file: str) -> str:
    shown = "standard input" if file == _STDIN else f"`{file}`"
    try:
        if file == _STDIN:
            data = sys.stdin.buffer.read(LARGEST_PROMPT + 1)
        else:
            with open(file, "rb") as source:
                data = source.read(LARGEST_PROMPT + 1)
        if len(data) > LARGEST_PROMPT:
            raise InputFileError(f"the prompt from {shown} has more than {LARGEST_PROMPT} bytes")
        return data.decode("utf-8")
    except OSError as error:
        raise InputFileError(f"cannot read the prompt from {shown}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputFileError(
            f"the prompt from {shown} is not UTF-8: byte {error.start}",
            hint="convert the file to UTF-8",
        ) from error
