"""The options of `gptrs generate`, in groups."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from msgspec import Struct, field

from gptrs.errors import UsageError
from gptrs.quoting import shown_value
from gptrs_cli.options.declare import option, option_of
from gptrs_runtime.generation.options import all_options
from gptrs_runtime.option_fields import OptionsOf

_SHOWN = "What is shown"

GenerationFields = Annotated[dict[str, Any], OptionsOf(all_options())]
"""The given options of a generation by field; `draft` is a path."""
AnswerFields = Annotated[dict[str, Any], OptionsOf(all_options(), without=_SHOWN)]
"""The same, without options that only concern what is shown."""
CacheDtypeOption = Annotated[str | None, option_of(all_options()["cache_dtype"])]

TemplateVariables = Annotated[
    list[str],
    option("--template-var", "Pass a variable to the chat template.", metavar="NAME=VALUE"),
]


def template_variables(given: Sequence[str]) -> dict[str, object]:
    """Parse template variables NAME=VALUE; a VALUE that is not JSON is a string.

    Raises UsageError for another form, or a name that is given twice.
    """
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        # Jinja reads variables by identifiers; another name would never be seen.
        if not equals or not name.isidentifier() or name in found:
            raise UsageError(
                f"`--template-var` takes NAME=VALUE, each name once, got {shown_value(text)}",
                hint="write --template-var enable_thinking=false",
            )
        found[name] = _value(value)
    return found


def _value(text: str) -> object:
    try:
        # `NaN` is a word to users, and a number to Python's reader alone.
        return json.loads(text, parse_constant=_no_number)
    # `[[[[...` a thousand deep ends in a RecursionError, and is a text like any other.
    except (ValueError, RecursionError):
        return text


def _no_number(word: str) -> None:
    raise ValueError(word)


class PromptOptions(Struct, frozen=True):
    """The prompt: text, tokens or a file, perhaps as a message of a conversation."""

    title: ClassVar[str] = "The prompt"

    text: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The text to continue; default: what is piped in.",
            show_default=False,
        ),
    ] = None
    prompt: Annotated[str | None, option("--prompt", "The same.", metavar="TEXT")] = None
    prompt_ids: Annotated[
        str | None, option("--prompt-ids", "Token ids to continue.", metavar="1,2,3")
    ] = None
    prompt_file: Annotated[
        str | None,
        option(
            "--prompt-file",
            "A UTF-8 file to continue; `-`: standard input.",
            metavar="FILE",
        ),
    ] = None
    chat: Annotated[
        bool,
        option(
            "--chat",
            "Send the prompt as a chat message.",
        ),
    ] = False
    system: Annotated[
        str | None, option("--system", "With --chat: the system message.", metavar="TEXT")
    ] = None
    template_var: TemplateVariables = field(default_factory=list[str])
    image: Annotated[
        list[Path],
        option("--image", "With --chat: an image; repeatable.", metavar="FILE"),
    ] = field(default_factory=list[Path])

    @property
    def given(self) -> dict[str, str]:
        """Return the prompts that were given, by their options."""
        options = {
            "PROMPT": self.text,
            "--prompt": self.prompt,
            "--prompt-ids": self.prompt_ids,
            "--prompt-file": self.prompt_file,
        }
        return {name: value for name, value in options.items() if value is not None}


class BatchOptions(Struct, frozen=True):
    """A file of prompts, where the results go, and how many prompts run at once."""

    title: ClassVar[str] = "Many prompts"
    further: ClassVar[bool] = True

    prompts: Annotated[
        Path | None,
        option(
            "--prompts",
            "A file of prompts as JSON lines with `prompt`, `prompt_ids` or `messages`, and "
            "optionally `id` and `max_tokens`; each result is a line. `-` is standard input.",
            metavar="FILE.jsonl",
        ),
    ] = None
    out: Annotated[
        Path | None,
        option(
            "--out",
            "With --prompts: append the results to this file, and skip prompts that have one in "
            "it.",
            metavar="FILE.jsonl",
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        option("--batch-size", "With --prompts: concurrent texts.  [default: 32]", metavar="N"),
    ] = None
    skip_bad: Annotated[
        bool,
        option(
            "--skip-bad",
            "With --prompts: skip lines that cannot be run with a warning; exits with 1.",
        ),
    ] = False


class ChoiceOptions(Struct, frozen=True):
    """How tokens are chosen, besides the options of a generation."""

    title: ClassVar[str] = "How tokens are chosen"

    greedy: Annotated[bool, option("--greedy", "Always take the most likely token.")] = False


class FormOptions(Struct, frozen=True):
    """The form of texts; at most one."""

    title: ClassVar[str] = "The form of a text"
    further: ClassVar[bool] = True

    json_schema: Annotated[
        str | None,
        option(
            "--json-schema",
            "Generate JSON that matches the JSON schema in this file.",
            metavar="FILE.json",
        ),
    ] = None
    grammar: Annotated[
        str | None,
        option(
            "--grammar",
            "Generate text that matches the Lark or GBNF grammar in this file.",
            metavar="FILE",
        ),
    ] = None
    regex: Annotated[
        str | None, option("--regex", "Generate text that matches this regex as a whole.")
    ] = None

    @property
    def given(self) -> dict[str, str]:
        """Return the forms that were given, by their options."""
        options = {
            "--json-schema": self.json_schema,
            "--grammar": self.grammar,
            "--regex": self.regex,
        }
        return {name: value for name, value in options.items() if value is not None}


class OutputOptions(Struct, frozen=True):
    """The number of texts, and how they are shown."""

    title: ClassVar[str] = _SHOWN

    num_return: Annotated[
        int,
        option(
            "--num-return",
            "Generate N texts from one prompt.",
            metavar="N",
            show_default=False,
        ),
    ] = 1
    stream: Annotated[
        bool, option("--stream", "With --json: print each piece as a line of JSON.")
    ] = False
    echo: Annotated[bool, option("--echo", "Print the prompt before its text.")] = False
