"""The prompt of a generation: text, a file, tokens, or what suits the demo model."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from gptrs.errors import UsageError
from gptrs_cli.terminal.failures import InputFileError

DEMO_PROMPT = "def read_file(path):\n"
_STDIN = "-"


@dataclass(frozen=True)
class Prompt:
    """Text or tokens to continue; `is_default` when the user named neither."""

    content: str | list[int]
    is_default: bool = False


@dataclass(frozen=True)
class PromptChoice:
    """What `--prompt`, `--prompt-ids` and `--prompt-file` say; None for those not given."""

    text: str | None = None
    ids: str | None = None
    file: str | None = None

    @property
    def given(self) -> dict[str, str]:
        """The options that were given."""
        options = {"--prompt": self.text, "--prompt-ids": self.ids, "--prompt-file": self.file}
        return {name: value for name, value in options.items() if value is not None}

    def read(self, *, has_default: bool) -> Prompt:
        """The prompt by the one option that is given, else the default if there is one.

        UsageError for none, for several, and for malformed tokens; InputFileError for a file that
        cannot be read as UTF-8.
        """
        given = list(self.given)
        if len(given) > 1:
            raise UsageError(f"`{given[0]}` and `{given[1]}` exclude each other", hint="give one")
        if self.text is not None:
            return Prompt(self.text)
        if self.ids is not None:
            return Prompt(parse_integers(self.ids, "--prompt-ids", "tokens"))
        if self.file is not None:
            return Prompt(_read_text(self.file))
        if has_default:
            return Prompt(DEMO_PROMPT, is_default=True)
        raise UsageError("there is no prompt", hint="give --prompt, --prompt-file or --prompt-ids")


def parse_integers(text: str, option: str, what: str) -> list[int]:
    """The numbers in a list such as 1,2,3; UsageError that `option` needs `what` otherwise."""
    parts = re.split(r"[,\s]+", text.strip())
    if not all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts):
        raise UsageError(f"`{option}` needs {what} such as 1,2,3, got `{text:.60}`")
    return [int(part) for part in parts]


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
