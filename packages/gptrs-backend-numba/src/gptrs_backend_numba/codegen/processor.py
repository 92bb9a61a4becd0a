"""The processor and its features, told without LLVM, whose library takes 25 to 90 ms to load."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gptrs.lazy_module import lazy_module

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = lazy_module("llvmlite.binding")

_CPUINFO = Path("/proc/cpuinfo")
_FIRST_BYTES = 1 << 14
"""Enough for the first processor: Linux writes this file while it is read, and of hundreds of
processors that takes long."""
_SAME = (
    *("adx", "aes", "avx", "avx2", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512ifma"),
    *("avx512vbmi", "avx512vl", "bmi2", "f16c", "fma", "fxsr", "gfni", "mmx", "movbe", "popcnt"),
    *("sse2", "ssse3", "vaes", "vpclmulqdq"),
)
"""Features that Linux and LLVM call alike."""
_OTHERS = {
    "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "abm": "lzcnt", "bmi1": "bmi",
    "pclmulqdq": "pclmul", "cx16": "cx16", "lahf_lm": "sahf", "xsave": "xsave",
    "avx_vnni": "avxvnni", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16", "avx512_vbmi2": "avx512vbmi2", "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq", "amx_tile": "amx-tile", "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
}  # fmt: skip
"""LLVM's names of those that Linux calls otherwise."""
_LLVM_NAMES = {**{name: name for name in _SAME}, **_OTHERS}
ARM_BASELINE = "neon"
"""The feature that every processor of aarch64 has, whether the system reports any or not."""
AUXILIARY = (16, 26)
"""The numbers of the words `AT_HWCAP` and `AT_HWCAP2` that Linux passes to processes."""
ARM_BITS: Mapping[str, tuple[int, int]] = {
    "lse": (0, 8), "fullfp16": (0, 10), "dotprod": (0, 20), "fp16fml": (0, 23), "i8mm": (1, 13),
    "bf16": (1, 14),
}  # fmt: skip
"""Word and bit of features, from Linux's `asm/hwcap.h` for arm64."""
KNOWN_FEATURES: Mapping[str, frozenset[str]] = {
    "x86_64": frozenset(_LLVM_NAMES.values()),
    "aarch64": frozenset({ARM_BASELINE, *ARM_BITS}),
}
"""All features that are found on an instruction set, as LLVM calls them."""
_APPLE_NAMES: Mapping[str, str] = {
    "lse": "LSE", "fullfp16": "FP16", "dotprod": "DotProd", "fp16fml": "FHM", "i8mm": "I8MM",
    "bf16": "BF16",
}  # fmt: skip
"""Apple's names of features, without `hw.optional.arm.FEAT_`."""


@cache
def this_machine() -> str:
    """Return the instruction set of this process, `x86_64` or `aarch64` among others."""
    found = platform.machine().lower()  # macOS says arm64, Windows ARM64 and AMD64
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(found, found)


def _arm_features() -> frozenset[str]:
    """Return what Linux or macOS says of a processor of aarch64, as LLVM calls it.

    LLVM reads a file for people, which is that of another processor under emulation.
    """
    process = ctypes.CDLL(None)
    if platform.system() == "Darwin":
        found = (name for name, apple in _APPLE_NAMES.items() if _apple_has(process, apple))
        return frozenset({ARM_BASELINE, *found})
    process.getauxval.argtypes, process.getauxval.restype = (ctypes.c_ulong,), ctypes.c_ulong
    words = [int(process.getauxval(number)) for number in AUXILIARY]
    found = (name for name, (word, bit) in ARM_BITS.items() if words[word] >> bit & 1)
    return frozenset({ARM_BASELINE, *found})


def _apple_has(process: ctypes.CDLL, name: str) -> bool:
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    asked = f"hw.optional.arm.FEAT_{name}".encode()
    failed = process.sysctlbyname(asked, ctypes.byref(value), ctypes.byref(size), None, 0)
    return not failed and value.value == 1


@cache
def host_features() -> frozenset[str]:
    """Return the features of this processor that matter to kernels, as LLVM calls them.

    Linux and macOS are asked, else LLVM, which names all features.
    """
    if this_machine() == "aarch64" and platform.system() in ("Linux", "Darwin"):
        return _arm_features()
    flags = _first_processor().get("flags", "").split()
    if flags:
        return frozenset(_LLVM_NAMES[flag] for flag in flags if flag in _LLVM_NAMES)
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


@cache
def host_description() -> str:
    """Return everything that LLVM's choice of a processor and its features depends on."""
    found = _first_processor()
    if found.get("flags"):
        model = [found.get(key, "") for key in ("vendor_id", "cpu family", "model", "stepping")]
        return repr((platform.machine(), model, sorted(found["flags"].split())))
    return repr((llvm.get_process_triple(), llvm_name(), sorted(host_features())))


def host_name() -> str:
    """Return a name of this processor for people."""
    return _first_processor().get("model name") or llvm_name()


def llvm_name() -> str:
    """Return LLVM's name of this processor."""
    return llvm.get_host_cpu_name()


@cache
def _first_processor() -> dict[str, str]:
    """Return what Linux tells of the first processor on x86-64; nothing elsewhere."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return {}
    try:
        with _CPUINFO.open("rb", buffering=0) as file:
            text = file.read(_FIRST_BYTES).decode(errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
