"""Summaries of descriptions that were read before: for lists that import no plugin.

One private JSON file in the cache. An entry counts while the distribution and the module of the
description are those of then.
"""

from __future__ import annotations

import json
import os
import sys
from typing import cast

from gptrs.plugins.discovery import Candidate
from gptrs.private_files import private_folder, read_own, whole_file, write_all

_LARGEST_FILE = 1 << 18
_MOST_ENTRIES = 500


def remembered(candidates: list[Candidate]) -> dict[str, str]:
    """Return the summaries that still hold, by the name of the plugin."""
    kept = _load() if candidates else {}
    found = {each.entry_point.name: kept.get(each.identity) for each in candidates}
    return {
        each.entry_point.name: entry["summary"]
        for each in candidates
        if (entry := found[each.entry_point.name]) and _is_good(each, entry)
    }


def remember(candidate: Candidate, summary: str) -> None:
    """Keep a summary for later processes, if there is a cache folder that can be written."""
    module = sys.modules.get(candidate.entry_point.module)
    file = getattr(module, "__file__", None)
    if not candidate.stamp or not isinstance(file, str):
        return
    entry = {**_key(candidate), "file": file, "changed": _changed(file), "summary": summary}
    kept = _load()
    if kept.get(candidate.identity) == entry:
        return
    kept = dict(list(kept.items())[-_MOST_ENTRIES:])
    _save({**kept, candidate.identity: entry})


def _key(candidate: Candidate) -> dict[str, str]:
    value = candidate.entry_point.value
    return {"version": candidate.version, "stamp": candidate.stamp, "entry_point": value}


def _is_good(candidate: Candidate, entry: dict[str, str]) -> bool:
    key = _key(candidate)
    return {**entry, **key} == entry and _changed(entry["file"]) == entry["changed"]


def _changed(file: str) -> str:
    """Return what changes with the content of a file, as a rule: its time and size."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return ""
    return f"{found.st_mtime_ns} {found.st_size}"


def _load() -> dict[str, dict[str, str]]:
    try:
        data = read_own(private_folder("plugins") / "summaries.json", _LARGEST_FILE)
        found: object = json.loads(data or b"{}")
    except (OSError, ValueError, RecursionError):
        return {}
    entries = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    return {
        name: cast("dict[str, str]", entry) for name, entry in entries.items() if _is_entry(entry)
    }


def _is_entry(entry: object) -> bool:
    fields = {"version", "stamp", "entry_point", "file", "changed", "summary"}
    if not isinstance(entry, dict):
        return False
    values = cast("dict[str, object]", entry)
    return values.keys() == fields and all(isinstance(value, str) for value in values.values())


def _save(entries: dict[str, dict[str, str]]) -> None:
    try:
        with whole_file(private_folder("plugins") / "summaries.json") as descriptor:
            write_all(descriptor, json.dumps(entries, indent=1).encode())
    except OSError:
        return
