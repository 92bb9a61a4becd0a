"""`gptrs chat`: a conversation with a model."""

from __future__ import annotations

import importlib
from dataclasses import field
from pathlib import Path
from typing import Annotated

import typer

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs_cli.generate.options import (
    AnswerFields,
    BatchOptions,
    ChoiceOptions,
    FormOptions,
    OutputOptions,
    PromptOptions,
    TemplateVariables,
)
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.model import AdapterOption, ModelOption
from gptrs_cli.options.settings import MODEL, Settings


@dataclass(frozen=True)
class ConversationOptions:
    """How the conversation begins, and what follows an answer."""

    system: Annotated[
        str | None, option("--system", "Begin with this system message.", metavar="TEXT")
    ] = None
    load: Annotated[
        Path | None,
        option("--load", "Go on with the conversation that /save wrote.", metavar="FILE"),
    ] = None
    image: Annotated[
        list[Path],
        option("--image", "Show this with the first message; can be repeated.", metavar="FILE"),
    ] = field(default_factory=list[Path])
    template_var: TemplateVariables = field(default_factory=list[str])
    stats: Annotated[
        bool, option("--stats", "Show counts and speed after each answer, as /stats on does.")
    ] = False

    @property
    def prompt(self) -> PromptOptions:
        """Return what the first message begins with, as `gptrs generate` has it."""
        variables, images = self.template_var, self.image
        return PromptOptions(chat=True, system=self.system, template_var=variables, image=images)


@command_options(*MODEL)
def chat(
    *,
    ctx: typer.Context,
    named: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="A model with a chat template: a folder, a file (.gptrschk, .gguf), or"
            " ORG/NAME[@REVISION] of the Hugging Face hub; `gptrs models list` shows those here.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    conversation: ConversationOptions,
    choice: ChoiceOptions,
    given: AnswerFields,
    form: FormOptions,
    settings: Settings,
) -> None:
    """Talk with a model, line by line.

    /help lists the commands of a conversation; Ctrl-C ends an answer, Ctrl-D the conversation. In
    a pipe, each line is answered. GPTRS_CHAT_HISTORY names the file that remembers what you type,
    or is `off`.
    """
    if settings.json:
        raise UsageError(
            "a conversation has no JSON form", hint="use `gptrs generate --chat --json`"
        )
    path = _one_model(named, model)
    prompt = conversation.prompt
    output = OutputOptions()
    request = GenerateRequest(
        path, prompt, BatchOptions(), given, output, form, choice.greedy, adapter
    )
    request.check(ctx, as_json=False)
    # Late: neither the help nor a usage error needs what runs models.
    loop = importlib.import_module("gptrs_cli.chat.loop")
    start = loop.ChatStart(conversation.load, conversation.stats)
    observed = importlib.import_module("gptrs_cli.observation").observed
    with observed(settings):
        exit_code = loop.converse(request, start, settings)
    if exit_code:
        raise typer.Exit(exit_code)


def _one_model(named: Path | None, model: Path | None) -> Path | None:
    if named is not None and model is not None:
        raise UsageError("`MODEL` and `--model` exclude each other", hint="give one")
    return named or model
