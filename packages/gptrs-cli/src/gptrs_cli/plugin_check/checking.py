"""A plugin checked from its metadata to the kit, in a child process that it cannot leave.

A step that hangs, exits or crashes is a finding that names the step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from gptrs.errors import PluginError
from gptrs.plugins.child_checks import answered, not_survived
from gptrs.plugins.child_process import START_S, Child, child_process
from gptrs.plugins.descriptions import API_VERSION
from gptrs.plugins.discovery import DISTRIBUTION, names_of
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import canonical
from gptrs.plugins.state import PluginRecord, PluginState
from gptrs.quoting import did_you_mean, quoted
from gptrs_cli.plugin_check.metadata import check_metadata
from gptrs_cli.terminal.check_lines import Check

SECONDS = 20.0
"""The time for each step; the kit has it for each op."""
_LIGHT_S = 0.2
_MIB = 1 << 20


def plugins_called(plugins: PluginManager, name: str) -> list[PluginRecord]:
    """Return the plugins that `name` stands for; PluginError if there is none.

    That is NAME, KIND:NAME, DISTRIBUTION:NAME or a distribution, for all of its plugins.
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
    """Yield what each step finds, up to the first that breaks; `progress` gets what is tried."""
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
    if conformance and record.kind == "backend":
        yield _conformance(child, record, seconds, progress)


_STARTED = {
    "backend": "making the backend",
    "model": "importing the factory",
    "functional": "importing the implementation",
    "command": "making the command",
    "trace_sink": "making the sink",
    "importer": "importing the factory",
    "exporter": "importing the factory",
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
    counts = f"{answer['passed']} passed, {answer['failed']} failed, {answer['refused']} refused"
    detail = f"level smoke: {counts}; {answer['share']:.1%} of all ops on all their types"
    if answer["failed"]:
        hint = f"`gptrs conformance run --backend {record.name} --level smoke` shows all failures"
        shown = "; ".join(answer["failures"])
        return Check("conformance", "broken", f"{detail}: {shown}", hint, answer)
    if not answer["passed"]:
        hint = "it refuses every op, and so can run no program"
        return Check("conformance", "broken", detail, hint, answer)
    if answer["refused"]:
        hint = (
            f"what it runs is right; `gptrs list ops --backend {record.name}` shows what it refuses"
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
