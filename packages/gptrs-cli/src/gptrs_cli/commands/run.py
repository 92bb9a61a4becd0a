"""`gptrs run`: run a program on inputs from files, or on made-up ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    settings_of,
)


def run(
    context: typer.Context,
    program: Annotated[
        Path, typer.Argument(help="A program, as text (.ptir) or as JSON.", show_default=False)
    ],
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Tensors by the names of the parameters: .safetensors, .npz, .gptrsten, or"
            " NAME.npy with one of them; can be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the results, result0 and so on; the suffix says in which of these formats.",
        ),
    ] = None,
    random_seed: Annotated[
        int | None,
        typer.Option(
            "--random-seed",
            metavar="N",
            help="Make up the inputs that no file has, the same for the same N.",
        ),
    ] = None,
    symbols: Annotated[
        list[str] | None,
        typer.Option(
            "--symbol",
            metavar="N=SIZE",
            help="The size of the dim `?N`, which inputs from files give as well; can be repeated.",
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
    """Run a program and print its results, large ones abbreviated.

    Parameters without a name are called arg0, arg1 and so on, by their position.
    """
    from gptrs.runtime.functional_overrides import command_line_overrides
    from gptrs.runtime.programs.sizes import parse_sizes
    from gptrs_cli.observation import observed
    from gptrs_cli.program_run import Request, run_and_print
    from gptrs_cli.terminal.stderr import note

    sizes = parse_sizes(symbols or ())
    request = Request(program, tuple(inputs or ()), out, random_seed, sizes)
    settings = settings_of(context)
    if settings.overrides:
        note("a program is made of ops: what overrides functionals changes nothing in it")
    with observed(settings) as found, command_line_overrides(settings.overrides):
        run_and_print(request, settings, found)
