"""`gptrs list backends`, `models` and `plugins`: lists plugins and their state."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from gptrs.api.backends import DeviceInfo
from gptrs.errors import GptrsError
from gptrs.install_hints import install_own
from gptrs.plugins.descriptions import BackendPlugin, DemoModelPlugin, ModelPlugin
from gptrs.plugins.manager import manager
from gptrs.plugins.selection import is_own
from gptrs.plugins.state import PluginRecord
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.plugin_check.children import check_plugins
from gptrs_cli.summaries import remember
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.results import Result

# Notes below a list: why some plugins cannot be used.


def explain_unusable(records: Iterable[PluginRecord]) -> None:
    """Print the reason and the hint for each plugin that is not usable."""
    for record in records:
        if not record.state.usable:
            hint = f"; {record.hint}" if record.hint else ""
            reason = f"{record.reason}{hint}"
            print(printable(f"\n{record.kind} `{record.name}` is {record.state}: {reason}"))


GIB = 1 << 30


def shown_device(device: DeviceInfo) -> str:
    """Return a device as `gpu:1 (NVIDIA H200, 139.7 GiB)*`, with `*` if the backend runs on it."""
    memory = "" if device.memory is None else f", {device.memory / GIB:.1f} GiB"
    kind = "" if not memory and device.name.startswith(device.kind) else f" ({device.kind}{memory})"
    return f"{device.name}{kind}{'*' if device.used else ''}"


class BackendRecord(Struct, frozen=True, kw_only=True):
    """An installed backend."""

    name: str
    kind: str
    distribution: str | None
    version: str | None
    api: str | None
    state: str
    reason: str | None
    hint: str | None
    entry_point: str
    summary: str | None
    priority: int | None
    default: bool
    devices: list[DeviceInfo] | UnsetType = UNSET
    """With `--devices`."""


class ListBackends(Result, frozen=True, kw_only=True, tag="gptrs.list.backends/1"):
    """`gptrs list backends`."""

    backends: list[BackendRecord]


class RefusedKind(Struct, frozen=True):
    """A known kind of model that is not supported, and the nearest supported one."""

    name: str
    nearest: str


class ListModels(Result, frozen=True, kw_only=True, tag="gptrs.list.models/1"):
    """`gptrs list models`: kinds of models, and bundled models."""

    models: list[PluginRecord]
    refused: list[RefusedKind] | UnsetType = UNSET
    """With `--all`."""


class ListPlugins(Result, frozen=True, kw_only=True, tag="gptrs.list.plugins/1"):
    """`gptrs list plugins`."""

    plugins: list[PluginRecord]


@command_options()
def backends(
    settings: Settings,
    devices: Annotated[
        bool, typer.Option("--devices", help="Start the backends, and show their devices.")
    ] = False,
) -> None:
    """List the backends.

    `*` marks the default backend, and the devices it runs on.
    """
    usable = manager().descriptions(BackendPlugin)
    # By name at last, so that equal priorities give the same default on each machine.
    best = min(usable, key=lambda plugin: (-plugin.priority, plugin.name), default=None)
    default = _default_backend(best.name if best else None)
    records = manager().records(BackendPlugin)
    priority = {
        # With the distribution: two plugins may have one name.
        record: manager().find(BackendPlugin, f"{record.distribution}:{record.name}").priority
        for record in records
        if record.state.usable
    }
    if settings.json:
        told = [
            BackendRecord(
                **asdict(record),
                priority=priority.get(record),
                default=record == default,
                devices=list(_devices(record)) if devices else UNSET,
            )
            for record in records
        ]
        return print_result(ListBackends(backends=told))
    rows = [
        [
            record.name,
            "*" if record == default else "",
            record.state,
            str(priority.get(record, "")),
            *([", ".join(map(shown_device, _devices(record)))] if devices else ()),
            *_source_and_summary(record),
        ]
        for record in records
    ]
    columns = ["name", "default", "state", "priority", "distribution", "version", "summary"]
    columns[4:4] = ["devices"] if devices else []
    _print(columns, rows, [*records, *manager().misplaced()], "no backend is installed")


def _devices(record: PluginRecord) -> Sequence[DeviceInfo]:
    """Return the devices of a backend; none if it is unusable or does not list them."""
    if not record.state.usable:
        return ()
    try:
        return manager().get_backend(f"{record.distribution}:{record.name}").devices()
    except GptrsError as error:
        # A driver that is missing must not hide the devices of the other backends.
        note(f"{record.name}: {error.message}")
        return ()


def _default_backend(best: str | None) -> PluginRecord | None:
    """Return the backend that `GPTRS_BACKEND` names, else `best`; None if it is unusable."""
    name = os.environ.get("GPTRS_BACKEND") or best
    if name is None:
        return None
    try:
        manager().find(BackendPlugin, name)
    except GptrsError:
        return None
    return manager().record(BackendPlugin, name)


@command_options()
def models(
    settings: Settings,
    every: Annotated[
        bool,
        typer.Option("--all", help="Also show unsupported kinds, and the nearest supported ones."),
    ] = False,
) -> None:
    """List the kinds of models, and the bundled models."""
    records = [*manager().records(ModelPlugin), *manager().records(DemoModelPlugin)]
    refused = sorted(manager().relatives().items()) if every else []
    if settings.json:
        kinds = [RefusedKind(name, near) for name, near in refused]
        return print_result(ListModels(models=records, refused=kinds if every else UNSET))
    kinds = {"model": "kind of model", "demo_model": "bundled model"}
    rows = [
        [record.name, kinds[record.kind], record.state, *_source_and_summary(record)]
        for record in records
    ]
    rows += [
        [name, kinds["model"], "refused", "", "", f"not supported; nearest is {near}"]
        for name, near in refused
    ]
    columns = ["name", "what", "state", "distribution", "version", "summary"]
    _print(columns, rows, [*records, *manager().misplaced()], "no model is installed")


@command_options()
def plugins(
    settings: Settings,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Import the plugins and start the backends, in a separate process."
        ),
    ] = False,
) -> None:
    """List every plugin.

    The list includes plugins that are broken, disabled or written for another version.
    """
    if check:
        check_plugins(manager())
    records = manager().installed() if check else manager().records()
    commands = (record for record in records if record.kind == "command")
    # The help then lists them without importing anything.
    remember(record for record in commands if not is_own(record.distribution))
    if settings.json:
        return print_result(ListPlugins(plugins=list(records)))
    rows = [
        [record.kind, record.name, record.state, record.api or "", *_source_and_summary(record)]
        for record in records
    ]
    columns = ["kind", "name", "state", "api", "distribution", "version", "summary"]
    _print(columns, rows, records, "no plugin is installed")


def _source_and_summary(record: PluginRecord) -> list[str]:
    return [record.distribution or "", record.version or "", record.summary or ""]


def _print(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    records: Sequence[PluginRecord],
    none: str,
) -> None:
    if rows:
        print_table(columns, rows)
    else:
        note(f"{none}; to install those of gptrs, {install_own('gptrs')}")
    explain_unusable(records)
