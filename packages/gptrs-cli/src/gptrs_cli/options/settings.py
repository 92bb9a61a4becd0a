"""The options that every command shares, accepted before and after the name of the command."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gptrs.plugins.manager import configure

Value = TypeVar("Value")


class DumpModeChoice(StrEnum):
    """What an execution dump holds."""

    all = "all"
    compile = "compile"


@dataclass
class Settings:
    """What the shared options say; one that follows the command wins over one before it."""

    backend: str | None = None
    threads: int | None = None
    json: bool = False
    debug: bool = False
    disabled: list[str] = field(default_factory=list[str])
    overrides: list[str] = field(default_factory=list[str])
    dump_dir: Path | None = None
    dump_mode: DumpModeChoice | None = None
    trace_sinks: list[str] = field(default_factory=list[str])
    profile: bool = False
    profile_out: Path | None = None
    weight_budget: str | None = None


def settings_of(context: typer.Context) -> Settings:
    """The settings of this run, which exist once the first option was parsed."""
    return context.ensure_object(Settings)


def _backend(context: typer.Context, value: str | None) -> str | None:
    settings = settings_of(context)
    settings.backend = value or settings.backend
    return value


def _threads(context: typer.Context, value: int | None) -> int | None:
    settings = settings_of(context)
    settings.threads = settings.threads if value is None else value
    return value


def _json(context: typer.Context, value: bool) -> bool:
    settings_of(context).json |= value
    return value


def _debug(context: typer.Context, value: bool) -> bool:
    settings_of(context).debug |= value
    return value


def _plugins(context: typer.Context, value: list[str] | None) -> list[str] | None:
    for item in value or []:
        word, _, name = item.partition(":")
        if word != "no" or not name:
            raise typer.BadParameter(f"expected `no:NAME`, got `{item}`")
        settings_of(context).disabled.append(name)
    if value:
        configure(settings_of(context).disabled)
    return value


def _dump_dir(context: typer.Context, value: Path | None) -> Path | None:
    settings = settings_of(context)
    settings.dump_dir = value or settings.dump_dir
    return value


def _dump_mode(context: typer.Context, value: DumpModeChoice | None) -> DumpModeChoice | None:
    settings = settings_of(context)
    settings.dump_mode = value or settings.dump_mode
    return value


def _trace_sinks(context: typer.Context, value: list[str] | None) -> list[str] | None:
    settings_of(context).trace_sinks.extend(value or [])
    return value


def _profile(context: typer.Context, value: bool) -> bool:
    settings_of(context).profile |= value
    return value


def _profile_out(context: typer.Context, value: Path | None) -> Path | None:
    settings = settings_of(context)
    settings.profile_out = value or settings.profile_out
    return value


def _weight_budget(context: typer.Context, value: str | None) -> str | None:
    settings = settings_of(context)
    settings.weight_budget = settings.weight_budget if value is None else value
    return value


def _overrides(context: typer.Context, value: list[str] | None) -> list[str] | None:
    settings_of(context).overrides.extend(value or [])
    return value


BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="Run on this backend; `gptrs list backends` shows them.  [env: GPTRS_BACKEND]",
        callback=_backend,
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        help="Use N threads; the backend decides without it.  [env: GPTRS_NUM_THREADS]",
        callback=_threads,
    ),
]
OverrideOption = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        metavar="FUNCTIONAL=POLICY",
        help="Compute a functional another way: gelu=NAME, gelu=prefer=NAME, gelu=benchmark; can be"
        " repeated. `gptrs list functionals` shows the names.  [env: GPTRS_OVERRIDES]",
        callback=_overrides,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result, or the error, as JSON.", callback=_json)
]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_debug)
]
PluginsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        metavar="no:NAME",
        help="Do without a plugin, by its name, KIND:NAME or distribution; can be repeated.",
        callback=_plugins,
        is_eager=True,  # before --help, which lists the commands of plugins
    ),
]
DumpDirOption = Annotated[
    Path | None,
    typer.Option(
        "--dump-dir",
        metavar="DIR",
        help="Write each program, as captured and optimized, and its runs to this folder.",
        callback=_dump_dir,
    ),
]
DumpModeOption = Annotated[
    DumpModeChoice | None,
    typer.Option(
        "--dump-mode",
        help="all: each run as well; compile: programs and what the optimizer did.  [default: all]",
        callback=_dump_mode,
    ),
]
TraceSinkOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trace-sink",
        metavar="NAME",
        help="Let this plugin listen to the programs that run; can be repeated."
        "  [env: GPTRS_TRACE_SINKS]",
        callback=_trace_sinks,
    ),
]
ProfileOption = Annotated[
    bool,
    typer.Option(
        "--profile",
        help="Time each kernel, which makes runs slower, and show where the time goes.",
        callback=_profile,
    ),
]
ProfileOutOption = Annotated[
    Path | None,
    typer.Option(
        "--profile-out",
        metavar="DIR",
        help="Write the profile to this folder instead: profile.json and profile.txt.",
        callback=_profile_out,
    ),
]
WeightBudgetOption = Annotated[
    str | None,
    typer.Option(
        "--weight-budget",
        metavar="SIZE",
        help="Keep at most this much of the weights in memory and read the others again in each"
        " step: 2GB, 512MiB, 50%, off.  [env: GPTRS_WEIGHT_BUDGET]",
        callback=_weight_budget,
    ),
]
