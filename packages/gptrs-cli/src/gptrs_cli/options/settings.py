"""The options that commands share, accepted before and after the name of the command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct, field

from gptrs.api.backends import ProcessGroup
from gptrs.plugins.manager import configure
from gptrs_cli.help_pages import FURTHER
from gptrs_cli.options.completion import (
    backend_names,
    excluded_names,
    functional_policies,
    model_names,
    trace_sink_names,
)
from gptrs_cli.options.declare import option

_RUN = "For all commands that run programs"
_TOGETHER = f"{FURTHER}Several processes"


class DumpModeChoice(StrEnum):
    """The extent of a dump."""

    all = "all"
    compile = "compile"


class WeightsChoice(StrEnum):
    """The types that weights can be loaded in."""

    q8 = "q8"
    q4 = "q4"


class PrecisionChoice(StrEnum):
    """The types of the arithmetic of products."""

    f32 = "f32"
    bf16 = "bf16"
    int8 = "int8"


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

    backend: Annotated[
        str | None,
        option(
            "--backend",
            "Run on this backend.  [env: GPTRS_BACKEND]",
            metavar="NAME",
            panel=_RUN,
            names=backend_names,
        ),
    ] = None
    threads: Annotated[
        int | None,
        option(
            "--threads",
            "Use N threads.  [env: GPTRS_NUM_THREADS]",
            metavar="N",
            panel=_RUN,
        ),
    ] = None
    device: Annotated[
        str | None,
        option(
            "--device",
            "Run on this device, such as cpu or gpu:1.",
            metavar="NAME",
            panel=_RUN,
        ),
    ] = None
    mesh: Annotated[
        str | None,
        option(
            "--mesh",
            "Split a model over devices: data=2,tensor=4.",
            metavar="AXIS=N",
            panel=_RUN,
        ),
    ] = None
    backend_options: Annotated[
        list[str],
        option(
            "--backend-option",
            "An option of the backend; repeatable.",
            metavar="NAME=VALUE",
            panel=_RUN,
        ),
    ] = field(default_factory=list[str])
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
    weight_budget: Annotated[
        str | None,
        option(
            "--weight-budget",
            "Limit the memory of the weights: 2GB, 512MiB, 50%, off.  [env: GPTRS_WEIGHT_BUDGET]",
            metavar="SIZE",
            panel=_RUN,
        ),
    ] = None
    weights: Annotated[
        WeightsChoice | None,
        option(
            "--weights",
            "Quantize the weights when they are loaded.",
            panel=_RUN,
        ),
    ] = None
    precision: Annotated[
        PrecisionChoice | None,
        option(
            "--precision",
            "Arithmetic of products; int8 is for quantized weights.  [default: the backend's own]",
            panel=_RUN,
        ),
    ] = None
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
    coordinator: Annotated[
        str | None,
        option(
            "--coordinator",
            "Address where the processes of a --mesh meet; auto asks Slurm, Open MPI or "
            "Kubernetes.",
            metavar="HOST:PORT",
            panel=_TOGETHER,
        ),
    ] = None
    processes: Annotated[
        int | None,
        option("--processes", "Number of processes.", metavar="N", min=1, panel=_TOGETHER),
    ] = None
    process_id: Annotated[
        int | None,
        option(
            "--process-id",
            "Index of this process; process 0 prints the result.",
            metavar="I",
            min=0,
            panel=_TOGETHER,
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

    def update(self, given: Mapping[str, Any]) -> None:
        """Take over the given options (neither None nor False)."""
        for name, value in given.items():
            if isinstance(value, list):
                getattr(self, name).extend(value)
            # An option that was not given after the command has its default here, which must not
            # undo the one given before it.
            elif value is not None and value is not False:
                setattr(self, name, value)


ALWAYS = ("json", "debug", "disabled")
"""The options of each command."""
OBSERVED = ("dump_dir", "dump_mode", "dump_inputs", "trace_sinks")
"""Settings of commands that run programs and let trace sinks listen."""
PLACE = ("device", "mesh", "backend_options")
"""Settings of the backend besides its name and threads."""
PROGRAM = ("backend", "threads", *PLACE, "overrides", *OBSERVED, "profile", "profile_out")
"""Settings of commands that run programs for their results."""
MODEL = (*PROGRAM, "weight_budget", "weights", "precision")
"""Settings of commands that run a model for its results."""
TOGETHER = ("coordinator", "processes", "process_id")
"""Settings of commands that several processes may run together."""
LOAD = ("backend", "threads", *PLACE, "weight_budget", "weights", "precision")
"""Settings of commands that load a model to measure it."""


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

AdapterOption = Annotated[
    Path | None,
    option("--adapter", "Apply the LoRA adapter in this folder.", metavar="DIR"),
]


def model_shown(path: Path | None) -> str:
    """Return the name of the model at `path` in messages."""
    return f"`{path}`" if path else "the demo model"


# Commands that several processes run together, each on its own devices.


def group_of(settings: Settings) -> ProcessGroup | None:
    """Return the group of processes, None for a single one; UsageError if options are missing."""
    return ProcessGroup.stated(settings.coordinator, settings.processes, settings.process_id)


@contextlib.contextmanager
def printed_once(settings: Settings) -> Generator[None]:
    """Scope in which only the first of several processes writes to standard output."""
    group = group_of(settings)
    if group is None or group.number == 0:
        yield
        return
    # The others must still run the command: collective operations wait for every process.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
