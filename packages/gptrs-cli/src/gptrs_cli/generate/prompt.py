"""The prompt of a generation: text, a file, tokens, or what suits the demo model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from gptrs.errors import UsageError
from gptrs_cli.generate.options import PromptOptions
from gptrs_cli.options.inputs import parse_integers
from gptrs_cli.terminal.failures import InputFileError

DEMO_PROMPT = "def read_file(path):\n"
_STDIN = "-"


@dataclass(frozen=True)
class Prompt:
    """Text or tokens to continue; `is_default` when the user named neither."""

    content: str | list[int]
    is_default: bool = False


def read_prompt(options: PromptOptions, *, has_default: bool) -> Prompt:
    """Return the prompt of the one option that is given, else DEMO_PROMPT if `has_default`.

    UsageError without a prompt, for two of them, and for malformed tokens; InputFileError for a
    file that cannot be read as UTF-8.
    """
    given = list(options.given)
    if len(given) > 1:
        raise UsageError(f"`{given[0]}` and `{given[1]}` exclude each other", hint="give one")
    if options.prompt is not None:
        return Prompt(options.prompt)
    if options.prompt_ids is not None:
        return Prompt(parse_integers(options.prompt_ids, "--prompt-ids"))
    if options.prompt_file is not None:
        return Prompt(_read_text(options.prompt_file))
    if has_default:
        return Prompt(DEMO_PROMPT, is_default=True)
    raise UsageError("there is no prompt", hint="give --prompt, --prompt-file or --prompt-ids")


def _read_text(file: str) -> str:
    shown = "standard input" if file == _STDIN else f"`{file}`"
    try:
        data = sys.stdin.buffer.read() if file == _STDIN else Path(file).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise InputFileError(f"cannot read the prompt from {shown}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputFileError(
            f"the prompt from {shown} is not UTF-8: byte {error.start}",
            hint="convert the file to UTF-8",
        ) from error
