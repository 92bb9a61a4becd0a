"""`gptrs validate`: run a model beside torch and transformers, and say how far they are apart."""

from __future__ import annotations

from typing import Annotated

import typer

from gptrs_cli.options.inputs import (
    InputKeyOption,
    InputOption,
    PromptOption,
    SeedOption,
    TokensOption,
)
from gptrs_cli.options.model import ModelOption
from gptrs_cli.options.settings import (
    BackendOption,
    DebugOption,
    DumpDirOption,
    DumpModeOption,
    JsonOption,
    OverrideOption,
    PluginsOption,
    ProfileOption,
    ProfileOutOption,
    ThreadsOption,
    TraceSinkOption,
    WeightBudgetOption,
    settings_of,
)


def validate(
    context: typer.Context,
    model: ModelOption = None,
    inputs: InputOption = None,
    input_key: InputKeyOption = None,
    tokens: TokensOption = None,
    prompt: PromptOption = None,
    seed: SeedOption = 0,
    count: Annotated[
        int, typer.Option("--inputs", metavar="N", min=1, help="Make up N inputs if none is given.")
    ] = 2,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            metavar="N",
            min=0,
            help="Let language models go on greedily for N tokens.",
        ),
    ] = 32,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Compare the hidden states, too.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            metavar="X",
            help="Largest error that is right, as a share of the range of the numbers.",
        ),
    ] = 1e-4,
    backend: BackendOption = None,
    threads: ThreadsOption = None,
    override: OverrideOption = None,
    weight_budget: WeightBudgetOption = None,
    dump_dir: DumpDirOption = None,
    dump_mode: DumpModeOption = None,
    trace_sinks: TraceSinkOption = None,
    profile: ProfileOption = False,
    profile_out: ProfileOutOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Compare a model with what transformers computes, at f32.

    Both load the same folder. Exits with 1 where they differ by more than the tolerance. Needs
    torch and transformers.
    """
    from gptrs.runtime.compare.validation import MADE_UP_TOKENS, ValidationOptions
    from gptrs.runtime.functional_overrides import command_line_overrides
    from gptrs.runtime.model_inputs import InputChoice
    from gptrs_cli.generate.prompt import parse_integers
    from gptrs_cli.observation import observed
    from gptrs_cli.validation_run import Request, run_and_print

    ids = None if tokens is None else tuple(parse_integers(tokens, "--tokens", "tokens"))
    files = tuple(inputs or ())
    choice = InputChoice(files, input_key, ids, prompt, seed, count, MADE_UP_TOKENS)
    request = Request(model, choice, ValidationOptions(tolerance, max_tokens, per_layer))
    settings = settings_of(context)
    with observed(settings) as found, command_line_overrides(settings.overrides):
        agrees = run_and_print(request, settings, found)
    if not agrees:
        raise typer.Exit(1)
