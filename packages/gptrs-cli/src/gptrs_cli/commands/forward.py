"""`gptrs forward`: run a model once, on an image, tokens or tensors, and show what scores best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gptrs_cli.settings import (
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
    settings_of,
)


def forward(
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="A model directory (config.json, model.safetensors, for images"
            " preprocessor_config.json); the bundled demo model without it.",
        ),
    ] = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="An image, or a tensor as .npy, .npz, .safetensors or .gptrsten; several of one"
            " size make a batch.",
        ),
    ] = None,
    input_key: Annotated[
        str | None,
        typer.Option(
            "--input-key", metavar="NAME", help="Which tensor of a file that has several."
        ),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="1,2,3", help="Tokens of a language model.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Text of a language model.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", help="Makes up the input where none is given, the same for N."
        ),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the tensor `logits`; the suffix says in which of these formats.",
        ),
    ] = None,
    backend: BackendOption = None,
    threads: ThreadsOption = None,
    override: OverrideOption = None,
    dump_dir: DumpDirOption = None,
    dump_mode: DumpModeOption = None,
    trace_sinks: TraceSinkOption = None,
    profile: ProfileOption = False,
    profile_out: ProfileOutOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    plugins: PluginsOption = None,
) -> None:
    """Run a model once; prints the five classes, or next tokens, that score best.

    Images are prepared as the files of the model say, and batches keep the order of their inputs.
    """
    from gptrs.runtime.functional_overrides import command_line_overrides
    from gptrs.runtime.model_inputs import InputChoice
    from gptrs_cli.forward_run import Request, run_and_print
    from gptrs_cli.observation import observed
    from gptrs_cli.prompt import parse_integers

    ids = None if tokens is None else tuple(parse_integers(tokens, "--tokens", "tokens"))
    choice = InputChoice(tuple(inputs or ()), input_key, ids, prompt, seed)
    settings = settings_of(context)
    with observed(settings) as found, command_line_overrides(settings.overrides):
        run_and_print(Request(model, choice, out), settings, found)
