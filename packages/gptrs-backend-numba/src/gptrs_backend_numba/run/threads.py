"""How many threads kernels may use: the argument, the environment, or what the machine grants."""

from __future__ import annotations

import math
import os
from pathlib import Path

from gptrs.errors import UsageError

VARIABLE = "GPTRS_NUM_THREADS"


MOST = 256
"""The most threads that may be asked for."""


def thread_count(requested: int | None) -> int:
    """`requested`, else `GPTRS_NUM_THREADS`, else the CPUs granted by affinity and cgroup quota.

    UsageError when one that is given is not an integer from 1 to `MOST`.
    """
    if requested is not None:
        if isinstance(requested, bool) or not 1 <= requested <= MOST:
            raise UsageError(f"`threads` must be from 1 to {MOST}, got `{requested!r}`")
        return requested
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return min(granted_cpus(), MOST)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST):
        raise UsageError(
            f"`{VARIABLE}` must be from 1 to {MOST}, got `{text}`",
            hint="unset it to use the CPUs that this process may run on",
        )
    return int(text)


def granted_cpus(root: Path = Path("/")) -> int:
    """The CPUs in the affinity mask, fewer when a cgroup below `root` has a smaller quota."""
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    return max(1, min(available, cgroup_quota(root) or available))


def cgroup_quota(root: Path) -> int | None:
    """CPUs, rounded up, that the tightest cgroup quota of this process allows; None without one."""
    quotas: list[float] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        folder = mount / path.lstrip("/")
        while folder.is_relative_to(mount):
            quotas += _quota_of(folder)
            folder = folder.parent
    return math.ceil(min(quotas)) if quotas else None


def _quota_of(folder: Path) -> list[float]:
    words = " ".join(_lines(folder / "cpu.max")).split() or [
        *_lines(folder / "cpu.cfs_quota_us"),
        *_lines(folder / "cpu.cfs_period_us"),
    ]
    try:
        quota, period = (int(word) for word in words)
    except ValueError:  # no such file, or "max": no limit at this level
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").split("\n")[:-1]
    except OSError:
        return []
