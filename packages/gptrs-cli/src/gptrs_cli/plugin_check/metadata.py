"""The metadata of a plugin's distribution; nothing of the plugin is imported."""

from __future__ import annotations

import importlib.metadata
import re

from gptrs.plugins.state import PluginRecord
from gptrs_cli.terminal.check_lines import Check

_CORE = re.compile(r"gptrs(-core)?(?![\w.-])", re.IGNORECASE)
_BOUND = re.compile(r"<|==|~=")


def check_metadata(record: PluginRecord) -> Check:
    """Return what the distribution says of itself, and what it should say besides."""
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
    """Return what is wrong with the requirement of gptrs-core."""
    ours = [text for text in requirements if _CORE.match(text)]
    if not ours:
        return ["it does not require `gptrs-core`"]
    if not any(_BOUND.search(text) for text in ours):
        return ["its requirement of `gptrs-core` has no upper bound, as in `gptrs-core>=0.1,<0.2`"]
    return []
