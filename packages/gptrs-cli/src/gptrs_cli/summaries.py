"""Cached summaries of commands from plugins, so that the help imports no plugin.

A private JSON file in the cache. An entry is valid while the version of the distribution and the
module of the description are unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import msgspec

from gptrs.plugins.selection import canonical
from gptrs.plugins.state import PluginRecord
from gptrs.private_files import private_folder, read_own, whole_file, write_all

_FILE = "summaries.json"
_LARGEST_FILE = 1 << 18
_MOST_ENTRIES = 500


class _Entry(msgspec.Struct, frozen=True):
    """A summary, and the state of the module that it was read from."""

    version: str | None
    entry_point: str
    file: str
    changed: str
    summary: str


def remembered(commands: Iterable[PluginRecord]) -> dict[str, str]:
    """Return the valid summaries by the name of the command."""
    kept = _load()
    found: dict[str, str] = {}
    for record in commands:
        entry = kept.get(_identity(record))
        if entry is not None and entry == _entry(record, entry.file, entry.summary):
            found[record.name] = entry.summary
    return found


def remember(commands: Iterable[PluginRecord]) -> None:
    """Save summaries for later processes, if the cache folder is writable."""
    kept = _load()
    new: dict[str, _Entry] = {}
    for record in commands:
        module = sys.modules.get(record.entry_point.partition(":")[0])
        file = getattr(module, "__file__", None)
        if record.summary and isinstance(file, str):
            new[_identity(record)] = _entry(record, file, record.summary)
    if all(kept.get(name) == entry for name, entry in new.items()):
        return
    entries = dict(list({**kept, **new}.items())[-_MOST_ENTRIES:])
    try:
        with whole_file(private_folder("plugins") / _FILE) as descriptor:
            write_all(descriptor, msgspec.json.encode(entries))
    except OSError:
        return


def _identity(record: PluginRecord) -> str:
    return f"{record.name}@{canonical(record.distribution or '')}"


def _entry(record: PluginRecord, file: str, summary: str) -> _Entry:
    """Return an entry for a description with the present state of its module `file`."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        changed = ""
    else:
        changed = f"{found.st_mtime_ns} {found.st_size}"
    return _Entry(record.version, record.entry_point, file, changed, summary)


def _load() -> dict[str, _Entry]:
    try:
        data = read_own(private_folder("plugins") / _FILE, _LARGEST_FILE)
        return msgspec.json.decode(data or b"{}", type=dict[str, _Entry])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return {}
