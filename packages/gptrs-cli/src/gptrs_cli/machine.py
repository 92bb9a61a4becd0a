"""What this machine grants a process: processor, cores, memory, and the Python that runs."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

_FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
"""Flags of /proc/cpuinfo that decide how fast kernels can be, on x86 and on ARM."""


def python_version() -> str:
    """Implementation, version and path of the interpreter."""
    return f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"


def processor() -> tuple[str, list[str]]:
    """Name of the processor, and which of its features matter here."""
    fields: dict[str, str] = {}
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    return name, [feature for feature in _FEATURES if feature in flags]


def cores() -> dict[str, float | int | None]:
    """Logical cores of the machine, those this process may run on, and its quota, None if free."""
    total = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    return {"machine": total, "affinity": affinity, "quota": _cpu_quota()}


def memory() -> dict[str, int | None]:
    """Bytes of memory of the machine, those available now, and the limit of the control group."""
    fields: dict[str, int] = {}
    for line in _lines(Path("/proc/meminfo")):
        key, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdigit():
            fields[key] = int(number[0]) * 1024
    return {
        "total": fields.get("MemTotal"),
        "available": fields.get("MemAvailable"),
        "limit": _memory_limit(),
    }


def _cpu_quota() -> float | None:
    """The smallest number of cores that a control group of this process allows."""
    quotas: list[float] = []
    for folder in _control_groups("cpu"):
        both = _words(folder / "cpu.max")  # version 2: "QUOTA PERIOD" or "max PERIOD"
        if not both:
            both = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(both) == 2 and both[0].isdigit() and int(both[1]) > 0:
            quotas.append(int(both[0]) / int(both[1]))
    return min(quotas, default=None)


def _memory_limit() -> int | None:
    limits: list[int] = []
    for folder in _control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += [int(word) for word in _words(folder / name) if word.isdigit()]
    limit = min(limits, default=None)
    # Version 1 says "no limit" by a number close to 2^63.
    return limit if limit is not None and limit < 1 << 60 else None


def _control_groups(controller: str) -> Iterator[Path]:
    """The folders of the control groups that this process is in, outwards from its own."""
    root = Path("/sys/fs/cgroup")
    for line in _lines(Path("/proc/self/cgroup")):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        own = base / path.lstrip("/")
        yield own
        yield from (folder for folder in own.parents if folder.is_relative_to(base))


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
