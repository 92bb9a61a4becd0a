"""Commands that several processes run together, each on devices of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator

from gptrs.api import ProcessGroup
from gptrs.errors import UsageError
from gptrs_cli.options.settings import Settings

_AUTO = "auto"
"""The coordinator of processes that a launcher has started."""


def group_of(settings: Settings) -> ProcessGroup | None:
    """Return the processes, None for this one alone; UsageError for a part of the options."""
    coordinator, count, number = settings.coordinator, settings.processes, settings.process_id
    if (coordinator, count, number) == (None, None, None):
        return None
    if coordinator == _AUTO:
        if (count, number) != (None, None):
            raise UsageError(
                "`--coordinator auto` takes no `--processes` and no `--process-id`",
                hint="the launcher knows them, leave them out",
            )
        return ProcessGroup.launched(os.environ)
    if coordinator is None or count is None or number is None:
        raise UsageError(
            "several processes need `--coordinator`, `--processes` and `--process-id`",
            hint="the first two are the same for all of them; or `--coordinator auto` alone, under"
            " Slurm, Open MPI and Kubernetes; docs/distributed.md",
        )
    return ProcessGroup(coordinator, count, number)


@contextlib.contextmanager
def printed_once(settings: Settings) -> Generator[None]:
    """Scope in which the first of several processes alone writes to standard output."""
    group = group_of(settings)
    if group is None or group.number == 0:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
