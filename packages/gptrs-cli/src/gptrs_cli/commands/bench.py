"""`gptrs bench`: how fast a model runs here, and how far that is from what the machine can do."""

from __future__ import annotations

from typing import Annotated

import typer

from gptrs_cli.options.model import ModelOption
from gptrs_cli.options.settings import (
    BackendOption,
    DebugOption,
    JsonOption,
    PluginsOption,
    ThreadsOption,
    WeightBudgetOption,
    settings_of,
)

app = typer.Typer(
    help="Measure a model on a backend, and the machine itself.",
    no_args_is_help=False,
    rich_markup_mode=None,
)
_RoundsOption = Annotated[
    int, typer.Option("--rounds", metavar="N", min=1, help="Take the median of N rounds.")
]


@app.command()
def generate(
    context: typer.Context,
    model: ModelOption = None,
    prompt_lengths: Annotated[
        str,
        typer.Option("--prompt-lengths", metavar="128,512", help="Read prompts of so many tokens."),
    ] = "128",
    context_length: Annotated[
        int,
        typer.Option("--context", metavar="N", min=1, help="Generate after so many tokens."),
    ] = 128,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", metavar="N", min=1, help="Generate so many tokens.")
    ] = 32,
    rounds: _RoundsOption = 5,
    backend: BackendOption = None,
    threads: ThreadsOption = None,
    weight_budget: WeightBudgetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Measure loading, compiling, prompts and the generation of text."""
    from gptrs_cli.benchmark import measure_generation
    from gptrs_cli.generate.prompt import parse_integers

    lengths = parse_integers(prompt_lengths, "--prompt-lengths", "numbers of tokens")
    settings = settings_of(context)
    measure_generation(model, lengths, context_length, new_tokens, rounds, settings)


@app.command()
def forward(
    context: typer.Context,
    model: ModelOption = None,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=1, help="Run on so many tokens.")
    ] = 128,
    rounds: _RoundsOption = 5,
    backend: BackendOption = None,
    threads: ThreadsOption = None,
    weight_budget: WeightBudgetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Measure one run of a model."""
    from gptrs_cli.benchmark import measure_forward

    measure_forward(model, tokens, rounds, settings_of(context))
