"""The options that commands share, accepted before and after the name of the command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.plugins.manager import configure
from gptrs_cli.options.completion import (
    backend_names,
    excluded_names,
    functional_policies,
    model_names,
    trace_sink_names,
)
from gptrs_cli.options.declare import option, option_of
from gptrs_runtime.load_options import LoadOptions, MachineOptions
from gptrs_runtime.option_fields import option_fields

_RUN = "For all commands that run programs"


class DumpModeChoice(StrEnum):
    """The extent of a dump."""

    all = "all"
    compile = "compile"


def settings_of(context: typer.Context) -> Settings:
    """Return the settings of this run, created when the first option is parsed."""
    return context.ensure_object(Settings)


def _exclude_plugins(context: typer.Context, value: list[str] | None) -> list[str] | None:
    """Start over without the plugins named by `no:NAME`; BadParameter for any other form."""
    disabled = settings_of(context).disabled
    for item in value or []:
        word, _, name = item.partition(":")
        if word != "no" or not name:
            raise typer.BadParameter(f"expected `no:NAME`, got `{item}`")
        disabled.append(name)
    if value:
        configure(disabled)
    return None  # they are in `disabled`


class Settings(Struct):
    """The values of the shared options.

    An option after the command wins over the same one before it; repeatable options add up.
    """

    load: LoadOptions = LoadOptions()
    overrides: Annotated[
        list[str],
        option(
            "--override",
            "Replace a functional: gelu=NAME, gelu=prefer=NAME, gelu=benchmark; can be repeated.  "
            "[env: GPTRS_OVERRIDES]",
            metavar="FUNCTIONAL=POLICY",
            panel=_RUN,
            names=functional_policies,
        ),
    ] = field(default_factory=list[str])
    dump_dir: Annotated[
        Path | None,
        option(
            "--dump-dir",
            "Write programs and their runs to this folder.",
            metavar="DIR",
            panel=_RUN,
        ),
    ] = None
    dump_mode: Annotated[
        DumpModeChoice | None,
        option(
            "--dump-mode",
            "compile: without runs.  [default: all]",
            panel=_RUN,
        ),
    ] = None
    dump_inputs: Annotated[
        bool,
        option(
            "--dump-inputs",
            "Also dump the inputs of their first runs.",
            panel=_RUN,
        ),
    ] = False
    dump_weights: Annotated[
        bool,
        option(
            "--dump-weights",
            "Dump these inputs and the weights, too.",
            panel=_RUN,
        ),
    ] = False
    trace_sinks: Annotated[
        list[str],
        option(
            "--trace-sink",
            "Send events of runs to this plugin; can be repeated.  [env: GPTRS_TRACE_SINKS]",
            metavar="NAME",
            panel=_RUN,
            names=trace_sink_names,
        ),
    ] = field(default_factory=list[str])
    profile: Annotated[
        bool,
        option(
            "--profile",
            "Time each kernel; this slows runs.",
            panel=_RUN,
        ),
    ] = False
    profile_out: Annotated[
        Path | None,
        option(
            "--profile-out",
            "Write it to this folder, with report.html.",
            metavar="DIR",
            panel=_RUN,
        ),
    ] = None
    json: Annotated[bool, option("--json", "Print the result, or the error, as JSON.")] = False
    debug: Annotated[bool, option("--debug", "Show the traceback of an error.")] = False
    disabled: Annotated[
        list[str],
        option(
            "-p",
            "Disable a plugin: NAME, KIND:NAME, DISTRIBUTION:NAME or DISTRIBUTION; can be "
            "repeated.",
            metavar="no:NAME",
            names=excluded_names,
            callback=_exclude_plugins,
            is_eager=True,  # parsed before --help, which lists the commands of plugins
        ),
    ] = field(default_factory=list[str])

    @property
    def backend(self) -> str | None:
        """The name of the backend, if one is given."""
        return cast("str | None", self.load.backend)

    def update(self, given: Mapping[str, Any]) -> None:
        """Take over the given options (neither None nor False)."""
        loading: dict[str, Any] = {}
        for name, value in given.items():
            if name in LOADING:
                if isinstance(value, list | tuple):
                    several = cast("Sequence[str]", value)
                    loading[name] = (*getattr(self.load, name), *several)
                elif value is not None:
                    loading[name] = LOADING[name].meant(value)
            elif isinstance(value, list):
                getattr(self, name).extend(value)
            # An option that was not given after the command has its default here, which must not
            # undo the one given before it.
            elif value is not None and value is not False:
                setattr(self, name, value)
        self.load = replace(self.load, **loading)


LOADING: Final = option_fields(LoadOptions)
"""Settings that say how a model is loaded."""
COMPLETED: Final[Mapping[str, Callable[[], Iterable[str]]]] = {"backend": backend_names}
"""Options whose values the shell completes."""
ALWAYS: Final = ("json", "debug", "disabled")
"""The options of each command."""
OBSERVED: Final = ("dump_dir", "dump_mode", "dump_inputs", "dump_weights", "trace_sinks")
"""Settings of commands that run programs and let trace sinks listen."""
TOGETHER: Final = tuple(name for name, each in LOADING.items() if each.option.further)
"""Settings of commands that several processes may run together."""
_MACHINE: Final = tuple(name for name in option_fields(MachineOptions) if name not in TOGETHER)
_MODEL: Final = tuple(
    name for name in LOADING if name not in (*option_fields(MachineOptions), "adapter")
)
PROGRAM: Final = (*_MACHINE, "overrides", *OBSERVED, "profile", "profile_out")
"""Settings of commands that run programs for their results."""
LOAD: Final = (*_MACHINE, *_MODEL)
"""Settings of commands that load a model to measure it."""
MODEL: Final = (*_MACHINE, "overrides", *_MODEL, *OBSERVED, "profile", "profile_out")
"""Settings of commands that run a model for its results."""


# The option that names a model, shared by all commands that run one.


ModelOption = Annotated[
    Path | None,
    option(
        "--model",
        "A folder, a file (.gptrschk, .gguf), or ORG/NAME[:Q4_K_M] of the hub.  [default: demo]",
        metavar="MODEL",
        names=model_names,
    ),
]

AdapterOption = Annotated[Path | None, option_of(LOADING["adapter"])]


def model_shown(path: Path | None) -> str:
    """Return the name of the model at `path` in messages."""
    return f"`{path}`" if path else "the demo model"


# Commands that several processes run together, each on its own devices.


@contextlib.contextmanager
def printed_once(settings: Settings) -> Generator[None]:
    """Scope in which only the first of several processes writes to standard output."""
    group = settings.load.group()
    if group is None or group.number == 0:
        yield
        return
    # The others must still run the command: collective operations wait for every process.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
