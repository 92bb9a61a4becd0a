"""`gptrs plugins`: commands for the authors of plugins."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any

import typer
from msgspec import Struct

from gptrs.errors import PluginError
from gptrs.plugins.descriptions import API_VERSION
from gptrs.plugins.discovery import DISTRIBUTION, names_of
from gptrs.plugins.manager import PluginManager, manager
from gptrs.plugins.selection import canonical
from gptrs.plugins.state import PluginRecord, PluginState, described
from gptrs.quoting import did_you_mean, quoted
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.plain_commands import Application
from gptrs_cli.plugin_check.children import (
    KITS,
    SECONDS,
    START_S,
    Child,
    answered,
    child_process,
    not_survived,
)
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import BROKEN_CODE, Check, print_check, print_result
from gptrs_cli.terminal.streams import printable
from gptrs_runtime.results import Result

# The metadata of a plugin's distribution; nothing of the plugin is imported.


_CORE = re.compile(r"gptrs(-core)?(?![\w.-])", re.IGNORECASE)
_BOUND = re.compile(r"<|==|~=")


def check_metadata(record: PluginRecord) -> Check:
    """Return the metadata of the distribution, and what is missing from it."""
    name = record.distribution or ""
    metadata = importlib.metadata.metadata(name)
    detail = f"{name} {record.version}, `{record.entry_point}`"
    missing = [
        *(["it has no summary"] if "Summary" not in metadata else []),
        *(["it has no `Requires-Python`"] if "Requires-Python" not in metadata else []),
        *_about_core(importlib.metadata.requires(name) or []),
    ]
    data = {
        "distribution": name,
        "version": record.version,
        "entry_point": record.entry_point,
        "missing": missing,
    }
    if not missing:
        return Check("metadata", "ok", detail, data=data)
    hint = "state it in the `[project]` table of its pyproject.toml"
    return Check("metadata", "note", f"{detail}: {', '.join(missing)}", hint, data)


def _about_core(requirements: list[str]) -> list[str]:
    """Return the faults of the requirement of gptrs-core."""
    ours = [text for text in requirements if _CORE.match(text)]
    if not ours:
        return ["it does not require `gptrs-core`"]
    if not any(_BOUND.search(text) for text in ours):
        return ["its requirement of `gptrs-core` has no upper bound, as in `gptrs-core>=0.1,<0.2`"]
    return []


# Checks of a plugin, from its metadata to the conformance kit, in a child process.
#
# A step that hangs, exits or crashes is a finding that names the step.


_LIGHT_S = 0.2
_MIB = 1 << 20
_CASES = 6
"""Steps whose time a check of a kit has: it compiles dozens of programs or starts processes."""


def plugins_called(plugins: PluginManager, name: str) -> list[PluginRecord]:
    """Return the plugins that `name` refers to; PluginError if there is none.

    `name` is NAME, KIND:NAME, DISTRIBUTION:NAME, or a distribution for all its plugins.
    """
    records = [r for r in plugins.installed() if r.kind != DISTRIBUTION]
    found = [r for r in records if name in _names(r)]
    if found:
        return found
    known = sorted({word for record in records for word in _names(record)})
    raise PluginError(
        f"no installed plugin or distribution is called {quoted(name)}",
        hint=f"{did_you_mean(name, known)}`gptrs list plugins` shows them",
    )


def check_plugin(
    record: PluginRecord,
    disabled: Collection[str],
    *,
    seconds: float,
    conformance: bool,
    progress: Callable[[str], None],
) -> Iterator[Check]:
    """Yield the findings of each step until one breaks; `progress` is called with each step."""
    if record.state not in (PluginState.AVAILABLE, PluginState.LOADED, PluginState.DUPLICATE):
        yield Check("state", "broken", f"it is {record.state}: {record.reason}", record.hint)
        return
    yield check_metadata(record)
    if record.state is PluginState.DUPLICATE:
        yield Check("name", "note", str(record.reason), record.hint)
    question = {
        "kind": record.kind,
        "name": f"{canonical(record.distribution or '')}:{record.name}",
        "disabled": sorted(disabled),
        "conformance": conformance,
    }
    with child_process("gptrs_cli.plugin_check.tried:try_plugin", question) as child:
        yield from _steps(child, record, seconds, conformance, progress)


def _steps(
    child: Child,
    record: PluginRecord,
    seconds: float,
    conformance: bool,
    progress: Callable[[str], None],
) -> Iterator[Check]:
    steps = [("import", "importing its description"), ("start", _STARTED[record.kind])]
    up = child.answer(START_S) is not None
    for name, what in steps:
        progress(what)
        answer = child.answer(seconds) if up else None
        if answer is None:
            yield _ended(name, record, f"{what} {child.ending(seconds)}")
            return
        found = answered(record, answer["record"])
        if "error" in answer["cost"]:
            yield _failed(name, found, answer["cost"])
            return
        yield _cost(name, what, answer["cost"])
        if name == "import":
            detail = f"it is for {found.api}, this gptrs has {API_VERSION}"
            data = {"api": found.api, "version": API_VERSION}
            yield Check("api version", "ok", detail, data=data)
    if conformance and record.kind in KITS:
        limit = seconds if record.kind == "backend" else seconds * _CASES
        yield _conformance(child, record, limit, progress)


_STARTED = {
    "backend": "making the backend",
    "model": "importing the factory",
    "functional": "importing the implementation",
    "command": "making the command",
    "trace_sink": "making the sink",
    "importer": "importing the factory",
    "exporter": "importing the factory",
    "reference": "importing the factory",
    "demo_model": "finding the folder",
}


def _conformance(
    child: Child, record: PluginRecord, seconds: float, progress: Callable[[str], None]
) -> Check:
    """Follow the kit op by op, each with its time."""
    op = "the start of the kit"
    answer = child.answer(seconds)
    while answer is not None and "next" in answer:
        op = f"`{answer['next']}`" if answer["next"] else "the end of the kit"
        progress(f"trying {op}")
        answer = child.answer(seconds)
    if answer is None:
        return _ended("conformance", record, f"{op} {child.ending(seconds)}")
    if "error" in answer:
        return Check("conformance", "note", answer["error"], answer["hint"])
    if record.kind == "backend":
        return _backend_verdict(record, answer)
    counts = f"{answer['passed']} passed, {answer['failed']} failed"
    idle = [name for name, status in answer["checks"].items() if status == "refused"]
    if answer["failed"]:
        hint = "`gptrs_conformance.plugin_suites` has the kit as a pytest class, to see more"
        shown = "; ".join(answer["failures"])
        return Check("conformance", "broken", f"{counts}: {shown}", hint, answer)
    if idle:
        hint = (
            "a test of the plugin gives them what they need, see `gptrs_conformance.plugin_suites`"
        )
        left = f"{counts}, {len(idle)} had nothing to work on: {', '.join(idle)}"
        return Check("conformance", "ok", left, hint, answer)
    return Check("conformance", "ok", counts, data=answer)


def _backend_verdict(record: PluginRecord, answer: dict[str, Any]) -> Check:
    """Return what the kit of backends comes to."""
    fell_back = f"{answer['fell_back']} right on the fallback, " if answer["fell_back"] else ""
    counts = f"{answer['passed']} passed, {answer['failed']} failed, {fell_back}"
    counts += f"{answer['refused']} refused"
    detail = f"level smoke: {counts}; {answer['share']:.1%} of all ops on all their types"
    if answer["failed"]:
        hint = f"`gptrs conformance run --backend {record.name} --level smoke` shows all failures"
        shown = "; ".join(answer["failures"])
        return Check("conformance", "broken", f"{detail}: {shown}", hint, answer)
    if not answer["passed"]:
        hint = "it refuses every op, so it can run no program"
        return Check("conformance", "broken", detail, hint, answer)
    if answer["refused"] or answer["fell_back"]:
        hint = (
            f"all its results are right; `gptrs list ops --backend {record.name}` shows what it "
            f"refuses"
        )
        return Check("conformance", "note", detail, hint, answer)
    return Check("conformance", "ok", detail, data=answer)


def _ended(name: str, record: PluginRecord, reason: str) -> Check:
    found = not_survived(record, reason)
    return Check(name, "broken", reason, found.hint)


def _failed(name: str, record: PluginRecord, cost: dict[str, Any]) -> Check:
    if record.state is PluginState.INCOMPATIBLE:
        data = {"api": record.api, "version": API_VERSION}
        return Check("api version", "broken", str(record.reason), record.hint, data)
    return Check(name, "broken", record.reason or cost["error"], record.hint or cost["hint"], cost)


def _cost(name: str, what: str, cost: dict[str, Any]) -> Check:
    packages = f", of them {' '.join(cost['packages'])}" if cost["packages"] else ""
    detail = f"{what} took {cost['seconds'] * 1e3:.0f} ms, {cost['modules']} modules{packages}"
    detail += f", {cost['bytes'] / _MIB:.0f} MiB"
    heavy = name == "import" and (cost["packages"] or cost["cpu_seconds"] > _LIGHT_S)
    if not heavy:
        return Check(name, "ok", detail, data=cost)
    hint = "lists import descriptions: let `factory` name the module that imports the rest"
    return Check(name, "note", detail, hint, cost)


def _names(record: PluginRecord) -> Collection[str]:
    return names_of(record.kind, record.name, record.distribution or "")


app = Application("Check a plugin that you write.", add_completion=False)


class CheckedPlugin(Struct, frozen=True, kw_only=True):
    """A plugin, and the checks that were run."""

    name: str
    kind: str
    distribution: str | None
    version: str | None
    ok: bool
    checks: list[Check]


class PluginsCheck(Result, frozen=True, kw_only=True, tag="gptrs.plugins.check/1"):
    """`gptrs plugins check`."""

    ok: bool
    plugins: list[CheckedPlugin]


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Make `check` a command of a group, which typer does not do for an only command."""


@app.command("check")
@command_options()
def check(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A plugin, KIND:NAME, DISTRIBUTION:NAME or a distribution."
        ),
    ],
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=0.1, help="Time limit of a step."),
    ] = SECONDS,
    conformance: Annotated[
        bool,
        typer.Option(
            "--conformance/--no-conformance", help="Run the short form of the kit of its kind."
        ),
    ] = True,
    settings: Settings,
) -> None:
    """Check a plugin: metadata, import and its cost, API version, start, conformance.

    The plugin runs in a separate process, so that a hang or an exit is a finding, too. Exits with 4
    if something is broken.
    """
    found = {
        record: _checked(record, settings, seconds, conformance)
        for record in plugins_called(manager(), name)
    }
    broken = [one for checks in found.values() for one in checks if one.state == "broken"]
    if settings.json:
        plugins = [_told(record, checks) for record, checks in found.items()]
        print_result(PluginsCheck(ok=not broken, plugins=plugins))
    if broken:
        raise typer.Exit(BROKEN_CODE)


def _checked(
    record: PluginRecord, settings: Settings, seconds: float, conformance: bool
) -> list[Check]:
    """Run the checks and return them; without JSON each is printed as soon as it is known."""
    checks: list[Check] = []
    if not settings.json:
        print(printable(described(record)))
    with Waiting(f"checking `{record.name}`") as waiting:
        for one in check_plugin(
            record,
            manager().selection.disabled,
            seconds=seconds,
            conformance=conformance,
            progress=waiting.add,
        ):
            checks.append(one)
            if not settings.json:
                print_check(one)
    return checks


def _told(record: PluginRecord, checks: list[Check]) -> CheckedPlugin:
    return CheckedPlugin(
        name=record.name,
        kind=record.kind,
        distribution=record.distribution,
        version=record.version,
        ok=all(check.state != "broken" for check in checks),
        checks=checks,
    )
