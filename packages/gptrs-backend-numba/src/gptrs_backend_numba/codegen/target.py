"""The processor that kernels are compiled for: the host, or what numba's variables say instead."""

from __future__ import annotations

import os
from functools import cache

import llvmlite.binding as llvm

_CPU_NAME, _CPU_FEATURES = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"


@cache
def cpu_name() -> str:
    """Return LLVM's name of the processor; `NUMBA_CPU_NAME` is meant for tests."""
    return os.environ.get(_CPU_NAME) or llvm.get_host_cpu_name()


@cache
def features() -> frozenset[str]:
    """Return LLVM's names of usable CPU features.

    Another CPU than the host has no AVX-512, and no sums of products of bytes (VNNI).
    """
    given = os.environ.get(_CPU_FEATURES)
    if given is None and cpu_name().lower() == "generic":  # to numba that one has none
        given = ""
    if given is not None:
        return frozenset(word[1:] for word in given.split(",") if word.startswith("+"))
    host = {name for name, present in llvm.get_host_cpu_features().items() if present}
    if cpu_name() != llvm.get_host_cpu_name():
        host = {name for name in host if not name.startswith(("avx512", "avxvnni"))}
    return frozenset(host)


@cache
def description() -> str:
    """Return all that decides which machine code numba makes of a source, besides its version."""
    settings = {k: v for k, v in os.environ.items() if k.startswith("NUMBA_")}
    found = sorted(name for name, present in llvm.get_host_cpu_features().items() if present)
    return repr(
        (llvm.get_process_triple(), llvm.get_host_cpu_name(), found, sorted(settings.items()))
    )
