"""The child process of `check_plugins`: imports plugins, and says what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gptrs.errors import GptrsError
from gptrs.plugins.child_process import Tell
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.discovery import SEVERAL
from gptrs.plugins.hookspecs import EXTENSION_POINTS
from gptrs.plugins.manager import PluginManager, configure
from gptrs.plugins.state import PluginRecord


def check_all(asked: Mapping[str, Any], tell: Tell) -> None:
    """Answer with an empty line first, then with one for each plugin."""
    plugins = configure(asked["disabled"])
    plugins.discover()
    tell({})
    for kind, name in asked["plugins"]:
        tell(findings(_checked(plugins, kind, name)))


def findings(record: PluginRecord) -> dict[str, object]:
    """Return what is known of a plugin only after its import."""
    return {
        "state": record.state,
        "reason": record.reason,
        "hint": record.hint,
        "api": record.api,
        "summary": record.summary,
    }


def _checked(plugins: PluginManager, kind: str, name: str) -> PluginRecord:
    """Return the record of a plugin after its description was read, or its backend made."""
    point = next(point.description for point in EXTENSION_POINTS if point.kind == kind)
    with suppress(GptrsError):  # its record says why
        plugins.find(point, name)
        if point is BackendPlugin:
            plugins.get_backend(name)
    if name.endswith(f":{SEVERAL}"):
        return plugins.record(point, name)
    found = [record for record in plugins.installed(point) if record.name == name]
    return next((record for record in found if record.state.usable), found[0])
