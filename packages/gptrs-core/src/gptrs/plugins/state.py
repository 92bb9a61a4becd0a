"""The state of a plugin, with its reason and a hint."""

from __future__ import annotations

import enum

from msgspec import Struct


class PluginState(enum.StrEnum):
    """The state of an installed plugin."""

    AVAILABLE = "available"
    """Its description was read; the rest of it is imported on first use."""
    LOADED = "loaded"
    """Its factory was imported."""
    DISABLED = "disabled"
    """The user excluded it; nothing of it was imported."""
    DUPLICATE = "duplicate"
    """Another distribution has the name; nothing of it was imported."""
    INCOMPATIBLE = "incompatible"
    """It was written for an incompatible API version."""
    MISPLACED = "misplaced"
    """Its entry point is in a group that gptrs does not have, such as `gptrs.backend`."""
    BROKEN = "broken"
    """Its entry point or its factory failed, or has the wrong type."""

    @property
    def usable(self) -> bool:
        """Whether the plugin can be used."""
        return self in (PluginState.AVAILABLE, PluginState.LOADED)


class PluginRecord(Struct, frozen=True, kw_only=True):
    """An installed plugin, as in `gptrs list plugins`; unknown fields are None.

    `kind` is that of the extension point; `distribution`, `version` and `entry_point` say where the
    plugin came from; `api` and `summary` are known once its description was read. `reason` says
    why it is not available and `hint` what to do about it.
    """

    name: str
    kind: str
    distribution: str | None
    version: str | None
    api: str | None
    state: PluginState
    reason: str | None
    hint: str | None
    entry_point: str
    summary: str | None


def described(record: PluginRecord) -> str:
    """Return a plugin with where it is from, for messages: "backend `x` (from x-dist 1.0)"."""
    source = f"(from {record.distribution} {record.version})"
    return f"{label(record.kind)} `{record.name}` {source}"


def label(kind: str) -> str:
    """Return what messages call a kind of plugin."""
    return {"model": "model kind"}.get(kind, kind.replace("_", " "))
