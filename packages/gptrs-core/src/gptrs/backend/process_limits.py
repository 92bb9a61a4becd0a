"""Limits of this process: CPUs and memory by cgroups, threads by user settings."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

from gptrs.errors import UsageError
from gptrs.variables import Variables

THREADS_VARIABLE: Final = "GPTRS_NUM_THREADS"
_THREADS: Final = Variables(THREADS_VARIABLE)
MOST_THREADS: Final = 256
"""Most threads that a user may request."""
_ROOT: Final = Path("/")
_UNLIMITED: Final = 1 << 60
"""cgroup v1 says "no limit" by a number close to 2^63."""


def requested_threads(threads: int | None) -> int | None:
    """Return `threads`, else `GPTRS_NUM_THREADS`, else None.

    UsageError for a number that is not an integer from 1 to `MOST_THREADS`.
    """
    if threads is not None:
        is_integer = isinstance(cast("object", threads), int) and not isinstance(threads, bool)
        if not is_integer or not 1 <= threads <= MOST_THREADS:
            raise UsageError(f"`threads` must be from 1 to {MOST_THREADS}, got `{threads!r}`")
        return threads
    (given,) = _THREADS.values()
    text = (given or "").strip()
    if not text:
        return None
    number = int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
    if not 1 <= number <= MOST_THREADS:
        raise UsageError(
            f"`{THREADS_VARIABLE}` must be from 1 to {MOST_THREADS}, got `{text:.60}`",
            hint="unset it to use the CPUs that this process may run on",
        )
    return number


def granted_cpus(root: Path = _ROOT) -> int:
    """Return the number of CPUs in the affinity mask, fewer (at least 1) under a smaller cgroup
    quota."""
    available = affinity_cpus()
    quota = cpu_quota(root)
    return available if quota is None else max(1, min(available, math.ceil(quota)))


def affinity_cpus() -> int:
    """Return the number of CPUs that this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the number of CPUs that the tightest cgroup quota allows; None without one."""
    quotas: list[float] = []
    for folder in _control_groups(root, "cpu"):
        words = _words(folder / "cpu.max")  # v2: "QUOTA PERIOD" or "max PERIOD"
        if not words:
            words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        # cgroup v1: -1 means no limit.
        if len(words) == 2 and all(map(str.isdigit, words)) and int(words[0]) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Return the bytes that the tightest cgroup limit allows; None without one."""
    limits = [
        int(word)
        for folder in _control_groups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        for word in _words(folder / name)
        if word.isdigit()
    ]
    return min((limit for limit in limits if 0 < limit < _UNLIMITED), default=None)


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the cgroup folders of this process for `controller`, innermost first.

    A container may show `/` where the host has a longer path, so the mount point itself is always
    included.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        folder = mount / path.lstrip("/")
        while folder.is_relative_to(mount):
            yield folder
            folder = folder.parent


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
