"""What capture takes from the layers above it: named by them, imported on first use."""

from __future__ import annotations

from collections.abc import Callable

_sinks: list[Callable[[], None]] = []


def set_sink_loader(load: Callable[[], None]) -> None:
    """Let `load` install the trace sinks that the user named, before a program is compiled."""
    _sinks[:] = [load]


def load_sinks() -> None:
    """Install the trace sinks that the user named, if they are not there yet."""
    for load in _sinks:
        load()
