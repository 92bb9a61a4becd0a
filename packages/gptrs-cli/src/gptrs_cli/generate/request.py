"""The request of `gptrs generate`: its options, and the check that they fit together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from msgspec import Struct

from gptrs.errors import UsageError
from gptrs_cli.generate.options import (
    BatchOptions,
    FormOptions,
    OutputOptions,
    PromptOptions,
    template_variables,
)
from gptrs_runtime.generation.options import GUESSING, all_options


class GenerateRequest(Struct, frozen=True):
    """The model and the groups of options; `given` has the options of a generation by name."""

    model: Path | None
    prompt: PromptOptions
    batch: BatchOptions
    given: Mapping[str, Any]
    output: OutputOptions
    form: FormOptions
    greedy: bool = False
    adapter: Path | None = None

    @property
    def shows_special(self) -> bool:
        """Whether the text has special tokens."""
        return "special" in self.given

    def check(self, context: typer.Context, *, as_json: bool) -> None:
        """Raise UsageError for options that exclude each other; runs before anything is loaded."""
        given = self.given
        if self.greedy:
            _refuse_with_greedy(context)
        if self.greedy and given.get("beams", 1) > 1:
            _refuse("`--greedy` and `--beams` exclude each other", "leave out one of them")
        self._check_conversation()
        if len(self.form.given) > 1:
            one, other, *_ = self.form.given
            _refuse(f"`{one}` and `{other}` exclude each other", "a text has one form")
        if "use_cache" in given and not GUESSING.isdisjoint(given):
            _refuse("guessing ahead needs a cache", "leave out --no-cache")
        count = self.output.num_return
        if count < 1:
            _refuse(f"`--num-return` must be at least 1, got {count}", "leave it out for 1")
        if self.output.stream and (not as_json or count > 1):
            _refuse("`--stream` prints JSON of one text as it comes", "add --json, for one text")
        if self.batch.prompts is None:
            only = {
                "--out": self.batch.out,
                "--batch-size": self.batch.batch_size,
                "--skip-bad": self.batch.skip_bad or None,
            }
            _refuse_given(only, "needs `--prompts`")
            if "logprobs" in given and not as_json:
                _refuse("`--logprobs` is part of JSON results only", "add --json")
            return
        one_prompt = {
            **self.prompt.given,
            "--image": self.prompt.image or None,
            "--echo": self.output.echo or None,
            "--stream": self.output.stream or None,
            "--num-return": count if count > 1 else None,
            "--prompt-cache": given.get("prompt_cache"),
        }
        _refuse_given(one_prompt, "and `--prompts` exclude each other")

    def _check_conversation(self) -> None:
        prompt = self.prompt
        if template_variables(prompt.template_var) and not (prompt.chat or self.batch.prompts):
            _refuse("`--template-var` belongs to a conversation", "add --chat")
        if prompt.image and not prompt.chat and self.batch.prompts is None:
            _refuse("`--image` belongs to a conversation", "add --chat")
        if prompt.system is not None and not prompt.chat:
            _refuse("`--system` belongs to a conversation", "add --chat")
        if prompt.chat and prompt.prompt_ids is not None:
            _refuse("`--chat` makes a message of a text, not of tokens", "use --prompt")


def _refuse_with_greedy(context: typer.Context) -> None:
    """Refuse sampling options on the command line; their environment variables are ignored."""
    for name, field in all_options().items():
        source = context.get_parameter_source(name) if field.option.samples else None
        if source is not None and source.name == "COMMANDLINE":
            _refuse(f"`--greedy` and `{field.flag}` exclude each other", "leave out one of them")


def _refuse_given(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            _refuse(f"`{name}` {why}", f"leave out {name}")


def _refuse(problem: str, hint: str) -> None:
    raise UsageError(problem, hint=hint)
