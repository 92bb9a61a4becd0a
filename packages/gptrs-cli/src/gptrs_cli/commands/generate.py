"""`gptrs generate`: continues a prompt, and streams the text."""

from __future__ import annotations

import importlib

import typer

from gptrs_cli.generate.options import (
    BatchOptions,
    ChoiceOptions,
    FormOptions,
    GenerationFields,
    OutputOptions,
    PromptOptions,
)
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import (
    MODEL,
    TOGETHER,
    AdapterOption,
    ModelOption,
    Settings,
    printed_once,
)


@command_options(*MODEL, *TOGETHER)
def generate(
    *,
    ctx: typer.Context,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    prompt: PromptOptions,
    batch: BatchOptions,
    choice: ChoiceOptions,
    given: GenerationFields,
    output: OutputOptions,
    form: FormOptions,
    settings: Settings,
) -> None:
    """Continue a prompt.

    Text goes to standard output, figures to standard error. Each option replaces one field of the
    model's generation_config.json.
    """
    request = GenerateRequest(model, prompt, batch, given, output, form, choice.greedy, adapter)
    request.check(ctx, as_json=settings.json)
    # Imported late: the help and usage errors need nothing that runs models.
    with printed_once(settings):
        exit_code = importlib.import_module("gptrs_cli.generate.run").run(request, settings)
    if exit_code:
        raise typer.Exit(exit_code)
