"""Kinds of processors that kernels are compiled for in advance: in packs and in shared libraries.

A process that the variable `GPTRS_NUMBA_TARGET` names one to chooses kernels, and packs weights, as
that processor needs them. What it runs itself meanwhile is the same code, made for this machine.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from msgspec import Struct

from gptrs.errors import UsageError
from gptrs.quoting import quoted

VARIABLE: Final = "GPTRS_NUMBA_TARGET"
"""The name of the target, for the processes of tools."""
_V2: Final = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf")
_V3: Final = (*_V2, "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "xsave")
_V4: Final = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni")
_BF16: Final = (*_V4, "avx512bf16")
_AMX: Final = (*_BF16, "avx512fp16", "amx-tile", "amx-int8", "amx-bf16")
_DOT: Final = ("neon", "lse", "fullfp16", "dotprod")
_I8MM: Final = (*_DOT, "fp16fml", "i8mm", "bf16")


class Target(Struct, frozen=True):
    """A kind of processors: a name for files and people, and what LLVM is told."""

    name: str
    machine: str
    """Its instruction set, as `processor.this_machine` has it."""
    cpu: str
    features: tuple[str, ...]
    words: str

    @property
    def triple(self) -> str:
        """Return LLVM's name of the system: Linux, whose calls libraries and packs are for."""
        return f"{self.machine}-unknown-linux-gnu"

    @property
    def listed(self) -> str:
        """Return the features as LLVM reads them."""
        # A processor of another make may lack what the name stands for beside these.
        lacks = ("-sse4a",) if self.machine == "x86_64" else ()
        return ",".join((*(f"+{name}" for name in self.features), *lacks))


TARGETS: Final = (
    Target("portable", "x86_64", "nehalem", _V2, "any x86-64 with SSE 4.2"),
    Target("avx2", "x86_64", "haswell", _V3, "AVX2"),
    Target("avx2_vnni", "x86_64", "alderlake", (*_V3, "avxvnni"), "AVX2 with VNNI"),
    Target("avx512", "x86_64", "icelake-server", _V4, "AVX-512 with VNNI"),
    Target("avx512_bf16", "x86_64", "znver4", _BF16, "AVX-512 with VNNI and bf16"),
    Target("amx", "x86_64", "sapphirerapids", _AMX, "AMX"),
    Target("neon", "aarch64", "generic", ("neon",), "any aarch64"),
    Target("neon_dot", "aarch64", "neoverse-n1", _DOT, "aarch64 with dot products"),
    Target("neon_i8mm", "aarch64", "neoverse-v1", _I8MM, "aarch64 with i8mm and bf16"),
)
"""From the least to the best of each instruction set."""


def target_named(name: str) -> Target:
    """Return the target called `name`; UsageError if there is none."""
    for each in TARGETS:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in TARGETS)
    raise UsageError(f"there is no target {quoted(name)}", hint=f"targets are {known}")


@cache
def chosen_target() -> Target | None:
    """Return the target of this process; None if kernels are for this machine alone."""
    name = os.environ.get(VARIABLE)
    return target_named(name) if name else None
