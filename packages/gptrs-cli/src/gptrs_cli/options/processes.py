"""Commands that several processes run together, each on devices of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator

from gptrs.api.backends import ProcessGroup
from gptrs_cli.options.settings import Settings


def group_of(settings: Settings) -> ProcessGroup | None:
    """Return the processes, None for this one alone; UsageError for a part of the options."""
    return ProcessGroup.stated(settings.coordinator, settings.processes, settings.process_id)


@contextlib.contextmanager
def printed_once(settings: Settings) -> Generator[None]:
    """Scope in which the first of several processes alone writes to standard output."""
    group = group_of(settings)
    if group is None or group.number == 0:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
