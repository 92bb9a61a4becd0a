"""The resources of this process: processor, cores, memory, and its Python."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from gptrs.api.backends import affinity_cpus, cpu_quota, memory_limit

_FEATURES = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
"""Flags of /proc/cpuinfo that decide how fast kernels can be, on x86 and on ARM."""


def python_version() -> str:
    """Return implementation, version and path of the interpreter."""
    return f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"


def processor() -> tuple[str, list[str]]:
    """Return the name of the processor, and those of its features that are in `_FEATURES`."""
    fields: dict[str, str] = {}
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    return name, [feature for feature in _FEATURES if feature in flags]


def cores() -> dict[str, float | int | None]:
    """Return the logical cores of the machine, those of this process, and its quota or None."""
    return {"machine": os.cpu_count() or 1, "affinity": affinity_cpus(), "quota": cpu_quota()}


def memory() -> dict[str, int | None]:
    """Return bytes of memory: of the machine, available now, the control group's limit or None."""
    fields: dict[str, int] = {}
    for line in _lines(Path("/proc/meminfo")):
        key, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdigit():
            fields[key] = int(number[0]) * 1024
    return {
        "total": fields.get("MemTotal"),
        "available": fields.get("MemAvailable"),
        "limit": memory_limit(),
    }


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
