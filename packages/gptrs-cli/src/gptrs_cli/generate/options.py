"""The options of `gptrs generate`, in groups."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import shown_value
from gptrs_cli.help_pages import FURTHER
from gptrs_cli.options.declare import option
from gptrs_cli.options.model import CacheDtypeOption

_PENALTIES = f"{FURTHER}Penalties"
_BEAMS = f"{FURTHER}Beams: the likeliest whole text"


TemplateVariables = Annotated[
    list[str],
    option("--template-var", "Tell the chat template this.", metavar="NAME=VALUE"),
]


def template_variables(given: Sequence[str]) -> dict[str, object]:
    """Return the variables in texts NAME=VALUE: a VALUE of JSON is that, any other one is text.

    UsageError for what is no NAME=VALUE, or names one twice.
    """
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in found:
            raise UsageError(
                f"`--template-var` takes NAME=VALUE, each name once, got {shown_value(text)}",
                hint="write --template-var enable_thinking=false",
            )
        found[name] = _value(value)
    return found


def _value(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(word: str) -> None:
    raise ValueError(word)


@dataclass(frozen=True)
class PromptOptions:
    """The prompt: text, tokens or a file, perhaps as a message of a conversation."""

    title: ClassVar[str] = "The prompt"

    text: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The text to continue; without it, what is piped in.",
            show_default=False,
        ),
    ] = None
    prompt: Annotated[str | None, option("--prompt", "The same.", metavar="TEXT")] = None
    prompt_ids: Annotated[
        str | None, option("--prompt-ids", "The tokens to continue.", metavar="1,2,3")
    ] = None
    prompt_file: Annotated[
        str | None,
        option(
            "--prompt-file",
            "Continue a UTF-8 file; `-`: standard input.",
            metavar="FILE",
        ),
    ] = None
    chat: Annotated[
        bool,
        option(
            "--chat",
            "Send the prompt as a message of a chat.",
        ),
    ] = False
    system: Annotated[
        str | None, option("--system", "With --chat: the system message.", metavar="TEXT")
    ] = None
    template_var: TemplateVariables = field(default_factory=list[str])
    image: Annotated[
        list[Path],
        option("--image", "With --chat: an image; can be repeated.", metavar="FILE"),
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


@dataclass(frozen=True)
class BatchOptions:
    """A file of prompts, where the results go, and how many prompts run at once."""

    title: ClassVar[str] = "Many prompts"
    further: ClassVar[bool] = True

    prompts: Annotated[
        Path | None,
        option(
            "--prompts",
            "Many prompts, each an object on a line: `prompt`, `prompt_ids` or `messages`, perhaps"
            " `id` and `max_tokens`; each result is a line. `-` is standard input.",
            metavar="FILE.jsonl",
        ),
    ] = None
    out: Annotated[
        Path | None,
        option(
            "--out",
            "With --prompts: append the results to a file; skip prompts whose results it has.",
            metavar="FILE.jsonl",
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        option("--batch-size", "With --prompts: how many at once.  [default: 32]", metavar="N"),
    ] = None
    skip_bad: Annotated[
        bool,
        option(
            "--skip-bad",
            "With --prompts: warn of lines that cannot be run and go on; exit code 1 at the end.",
        ),
    ] = False


@dataclass(frozen=True)
class LimitOptions:
    """The limits at which a text ends."""

    title: ClassVar[str] = "Where a text ends"

    max_tokens: Annotated[
        int | None,
        option(
            "--max-tokens",
            "Stop after N new tokens; by default the model's own limit, else 128.",
            metavar="N",
            variable="GPTRS_MAX_TOKENS",
        ),
    ] = None
    stop: Annotated[
        list[str],
        option("--stop", "End before this text appears; can be repeated.", metavar="TEXT"),
    ] = field(default_factory=list[str])
    ignore_eos: Annotated[
        bool, option("--ignore-eos", "Go on after a token that ends the text.")
    ] = False


@dataclass(frozen=True)
class SamplingOptions:
    """The choice of each token; None where the model decides."""

    title: ClassVar[str] = "How tokens are chosen"

    greedy: Annotated[bool, option("--greedy", "Always take the most likely token.")] = False
    temperature: Annotated[
        float | None,
        option(
            "--temperature",
            "Sample; below 1 surer, 0: greedy.",
            metavar="X",
            variable="GPTRS_TEMPERATURE",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        option(
            "--top-k", "Sample among the K likeliest; 0: all.", metavar="K", variable="GPTRS_TOP_K"
        ),
    ] = None
    top_p: Annotated[
        float | None,
        option(
            "--top-p",
            "Sample among the likeliest, P together.",
            metavar="P",
            variable="GPTRS_TOP_P",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        option(
            "--min-p",
            "Keep those P times as likely as the best.",
            metavar="P",
            variable="GPTRS_MIN_P",
        ),
    ] = None
    seed: Annotated[
        int | None,
        option("--seed", "Make sampling repeatable.", metavar="N", variable="GPTRS_SEED"),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        option(
            "--repetition-penalty",
            "Above 1, tokens that occurred, in the prompt too, become less likely.",
            metavar="X",
            variable="GPTRS_REPETITION_PENALTY",
            panel=_PENALTIES,
        ),
    ] = None
    presence_penalty: Annotated[
        float,
        option(
            "--presence-penalty",
            "Subtract X from the logits of tokens that were generated before.",
            metavar="X",
            variable="GPTRS_PRESENCE_PENALTY",
            panel=_PENALTIES,
            show_default=False,
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        option(
            "--frequency-penalty",
            "Subtract X from the logit of a token each time that it was generated.",
            metavar="X",
            variable="GPTRS_FREQUENCY_PENALTY",
            panel=_PENALTIES,
            show_default=False,
        ),
    ] = 0.0
    beams: Annotated[
        int | None,
        option(
            "--beams",
            "Grow N texts side by side, and take the likeliest whole one.",
            metavar="N",
            panel=_BEAMS,
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        option(
            "--length-penalty",
            "Divide the score of a text by its tokens to the power of X: above 0 long texts gain.",
            metavar="X",
            panel=_BEAMS,
        ),
    ] = None


@dataclass(frozen=True)
class FormOptions:
    """The form that texts have, one at most."""

    title: ClassVar[str] = "The form of a text"
    further: ClassVar[bool] = True

    json_schema: Annotated[
        str | None,
        option("--json-schema", "Write JSON of the schema in a file.", metavar="FILE.json"),
    ] = None
    grammar: Annotated[
        str | None,
        option("--grammar", "Write a text of the Lark grammar in a file.", metavar="FILE"),
    ] = None
    regex: Annotated[
        str | None, option("--regex", "Write a text that the regex matches as a whole.")
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


@dataclass(frozen=True)
class OutputOptions:
    """The number of texts, and what is shown of them."""

    title: ClassVar[str] = "What is shown"

    num_return: Annotated[
        int,
        option(
            "--num-return",
            "Generate N texts from one prompt.",
            metavar="N",
            show_default=False,
        ),
    ] = 1
    logprobs: Annotated[
        int | None,
        option(
            "--logprobs",
            "With --json: log-probabilities, also of the N likeliest.",
            metavar="N",
        ),
    ] = None
    stream: Annotated[
        bool, option("--stream", "With --json: print each piece as a line of JSON.")
    ] = False
    special: Annotated[
        bool,
        option(
            "--special",
            "Show special tokens, such as those that end a text.",
        ),
    ] = False
    echo: Annotated[bool, option("--echo", "Print the prompt before its text.")] = False


@dataclass(frozen=True)
class GuessOptions:
    """Sources of guessed tokens; the text is the same without them."""

    title: ClassVar[str] = "Guessing ahead: the same text, sooner"
    further: ClassVar[bool] = True

    prompt_lookup: Annotated[
        bool,
        option(
            "--prompt-lookup",
            "Guess that the text goes on as it did before where its last words stood already.",
        ),
    ] = False
    draft: Annotated[
        Path | None,
        option(
            "--draft",
            "Have a smaller model with the same tokenizer guess.",
            metavar="MODEL",
        ),
    ] = None


@dataclass(frozen=True)
class ContextOptions:
    """The memory of a generation: the key/value cache and the cache of prompts."""

    title: ClassVar[str] = "Context and cache"
    further: ClassVar[bool] = True

    context_size: Annotated[
        int | None,
        option(
            "--context",
            "Let the model see N tokens at most, prompt and text together.",
            metavar="N",
        ),
    ] = None
    context_shift: Annotated[
        bool,
        option(
            "--context-shift",
            "When the context is full, forget the first half of it and read the rest anew; without"
            " it, what does not fit is refused.",
        ),
    ] = False
    keep: Annotated[
        int,
        option(
            "--keep",
            "With --context-shift: never forget the first N tokens.",
            metavar="N",
            show_default=False,
        ),
    ] = 0
    prefill_chunk: Annotated[
        int | None,
        option(
            "--prefill-chunk",
            "Read prompts in steps of N tokens: fewer need less memory.  [default: 256]",
            metavar="N",
        ),
    ] = None
    cache_budget: Annotated[
        str | None,
        option(
            "--cache-budget",
            "Give the key/value cache at most this much memory: 2GB, 512MiB, 25%; prompts that do"
            " not fit wait.  [env: GPTRS_CACHE_BUDGET]  [default: 50%, 8 contexts at most]",
            metavar="SIZE",
        ),
    ] = None
    cache_dtype: CacheDtypeOption = None
    prompt_cache: Annotated[
        Path | None,
        option(
            "--prompt-cache",
            "Keep the key/value cache of the prompt in a file; prompts that begin alike reuse it.",
            metavar="FILE.safetensors",
        ),
    ] = None
    no_cache: Annotated[
        bool, option("--no-cache", "Compute the whole text anew for each token: slow.")
    ] = False
