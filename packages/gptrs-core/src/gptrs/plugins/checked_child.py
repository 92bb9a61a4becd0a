"""The child process of `check_plugins`: imports plugins, and says what came of it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from gptrs.errors import GptrsError
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.hookspecs import EXTENSION_POINTS
from gptrs.plugins.manager import PluginManager, configure
from gptrs.plugins.state import PluginRecord


def main(writer: int) -> None:
    """Answer what standard input asks, a line for each plugin on the descriptor `writer`."""
    asked = json.load(sys.stdin)
    plugins = configure(asked["disabled"])
    plugins.discover()
    os.write(writer, b"ready\n")
    for kind, name in asked["plugins"]:
        record = _checked(plugins, kind, name)
        fields = {
            "state": record.state,
            "reason": record.reason,
            "hint": record.hint,
            "api": record.api,
            "summary": record.summary,
        }
        os.write(writer, json.dumps(fields).encode() + b"\n")
    os._exit(0)  # without what plugins do at the exit of a process


def _checked(plugins: PluginManager, kind: str, name: str) -> PluginRecord:
    """Return the record of a plugin after its description was read, or its backend made."""
    point = next(point.description for point in EXTENSION_POINTS if point.kind == kind)
    with suppress(GptrsError):  # its record says why
        plugins.find(point, name)
        if point is BackendPlugin:
            plugins.get_backend(name)
    found = [record for record in plugins.installed(point) if record.name == name]
    return next((record for record in found if record.state.usable), found[0])
