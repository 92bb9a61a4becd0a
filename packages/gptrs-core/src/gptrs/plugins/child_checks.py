"""Check plugins in a child process: one that hangs, exits or crashes is one finding, no more.

The child answers with one line for each plugin, in order. After a plugin that it did not survive, a
new child goes on with the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gptrs.plugins.child_process import START_S, child_process
from gptrs.plugins.discovery import SEVERAL
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import canonical
from gptrs.plugins.state import PluginRecord, PluginState

SECONDS = 20.0
"""The time for each plugin; importing and starting our slowest backend takes 1 to 2."""


def check_plugins(plugins: PluginManager, seconds: float = SECONDS) -> None:
    """Import every description and make every backend in a child process, for their records.

    Each has so many `seconds`. What hangs or ends the process counts as broken afterwards.
    """
    usable = [record for record in plugins.installed() if record.state.usable]
    plugins.take_over(list(_checked(usable, plugins.selection.disabled, seconds)))


def answered(record: PluginRecord, answer: dict[str, Any]) -> PluginRecord:
    """Return `record` as the child found the plugin."""
    return replace(record, **{**answer, "state": PluginState(answer["state"])})


def not_survived(record: PluginRecord, reason: str) -> PluginRecord:
    """Return `record` of a plugin that the child did not survive."""
    hint = f"update or reinstall `{record.distribution}`, or leave it out by"
    hint += f" `-p no:{record.kind}:{record.name}`"
    return replace(record, state=PluginState.BROKEN, reason=reason, hint=hint)


def _name(record: PluginRecord) -> str:
    """Return the name that a child knows a plugin by; several at once go by their package."""
    if record.name != SEVERAL:
        return record.name
    return f"{canonical(record.distribution or '')}:{SEVERAL}"


def _checked(
    plugins: Sequence[PluginRecord], disabled: Collection[str], seconds: float
) -> Iterator[PluginRecord]:
    """Yield the record of each plugin as the child finds it."""
    left, fatal = list(plugins), set[str]()
    while left:
        names = [(record.kind, _name(record)) for record in left]
        question = {"plugins": names, "disabled": sorted({*disabled, *fatal})}
        with child_process("gptrs.plugins.checked_child:check_all", question) as child:
            # The first line says that the child itself is up; only then a plugin is to blame.
            up = child.answer(START_S) is not None
            while left:
                answer = child.answer(seconds)
                if answer is None:
                    break
                yield answered(left.pop(0), answer)
            else:
                return
            ending = child.ending(seconds)
        blamed = "its import" if up else "a process that checks it"
        if left[0].name == SEVERAL:  # it would be imported with every other plugin of its kind
            fatal.add(_name(left[0]))
        yield not_survived(left.pop(0), f"{blamed} {ending}")
