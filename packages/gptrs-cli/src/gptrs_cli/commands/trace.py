"""`gptrs trace`: run a model once and show what it computes on the way, layer by layer."""

from __future__ import annotations

from pathlib import Path
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


def trace(
    context: typer.Context,
    model: ModelOption = None,
    inputs: InputOption = None,
    input_key: InputKeyOption = None,
    tokens: TokensOption = None,
    prompt: PromptOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write each state under its name as .npz, .safetensors or .gptrsten.",
        ),
    ] = None,
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
    """Run a model once and print statistics of its hidden states.

    They come in the order of computation. The names are those of transformers' `hidden_states`:
    embeddings, layer.0, layer.1, and so on.
    """
    from gptrs.runtime.functional_overrides import command_line_overrides
    from gptrs.runtime.model_inputs import InputChoice
    from gptrs_cli.generate.prompt import parse_integers
    from gptrs_cli.observation import observed
    from gptrs_cli.trace_run import Request, run_and_print

    ids = None if tokens is None else tuple(parse_integers(tokens, "--tokens", "tokens"))
    choice = InputChoice(tuple(inputs or ()), input_key, ids, prompt, seed)
    settings = settings_of(context)
    with observed(settings) as found, command_line_overrides(settings.overrides):
        run_and_print(Request(model, choice, out), settings, found)
