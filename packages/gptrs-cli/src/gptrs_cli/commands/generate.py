"""`gptrs generate`: stream the text that a model continues a prompt with."""

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


def generate(
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="A model directory (config.json, model.safetensors, tokenizer.json);"
            " the bundled demo model without it.",
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="The text to continue.")
    ] = None,
    prompt_ids: Annotated[
        str | None,
        typer.Option("--prompt-ids", metavar="1,2,3", help="The tokens to continue."),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help="Continue the text of a UTF-8 file, used as it is; `-` reads standard input.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            metavar="N",
            help="Stop after N new tokens; without it as the model says, else 128.",
        ),
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always take the most likely token.")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", metavar="X", help="Sample; below 1 the likely tokens gain, 0: greedy."
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", metavar="K", help="Sample among the K likeliest; 0: all."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", metavar="P", help="Sample among the fewest that reach probability P."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Make sampling repeatable.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", metavar="TEXT", help="End before this text appears; can be repeated."
        ),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after a token that ends the text.")
    ] = False,
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Compute the whole text anew for each token: slow."),
    ] = False,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before its text.")] = False,
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
    """Continue a prompt; the text streams to standard output, figures follow on standard error.

    Sampling options replace single fields of what the model's generation_config.json asks for.
    """
    from gptrs.errors import UsageError
    from gptrs.runtime.functional_overrides import command_line_overrides
    from gptrs_cli.generation import Request, run
    from gptrs_cli.observation import observed
    from gptrs_cli.prompt import read_prompt

    sampling = {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p}
    conflicting = [name for name, value in sampling.items() if value is not None]
    if greedy and conflicting:
        raise UsageError(
            f"`--greedy` and `{conflicting[0]}` exclude each other", hint="leave out one of them"
        )
    settings = settings_of(context)
    request = Request(
        model=model,
        prompt=read_prompt(prompt, prompt_ids, prompt_file, has_default=model is None),
        max_tokens=max_tokens,
        temperature=0.0 if greedy else temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        use_cache=not no_cache,
        echo=echo,
    )
    with observed(settings) as found, command_line_overrides(settings.overrides):
        exit_code = run(request, settings, found)
    if exit_code:
        raise typer.Exit(exit_code)
