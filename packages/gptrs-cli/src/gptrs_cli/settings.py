"""The options that every command shares, accepted before and after the name of the command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import typer

from gptrs.plugins.manager import configure

Value = TypeVar("Value")


@dataclass
class Settings:
    """What the shared options say; one that follows the command wins over one before it."""

    backend: str | None = None
    threads: int | None = None
    json: bool = False
    debug: bool = False
    disabled: list[str] = field(default_factory=list[str])


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
