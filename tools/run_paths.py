"""Run the tests marked `paths` on the code for each kind of processor that this machine can be.

The numba backend has kernels for AMX, for AVX-512, for AVX2 and for any x86-64; on other machines
only the last ones. A machine takes the best that it has, so that the others would go untested.
`--others`, before the arguments for pytest, leaves out that one: who ran all tests has run it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding as llvm

_AMX = frozenset({"amx-tile", "amx-bf16"})


@dataclass(frozen=True)
class CodePath:
    """Code for processors that have `needs` and do not have what begins with one of `without`."""

    name: str
    cpu: str | None
    needs: frozenset[str]
    without: tuple[str, ...] = ()

    def missing(self, host: frozenset[str]) -> str | None:
        """Return why a processor with the features `host` cannot run it, None if it can."""
        absent = sorted(self.needs - host)
        return f"the processor has no {', '.join(absent)}" if absent else None

    def environment(self, host: frozenset[str]) -> dict[str, str]:
        """Return the variables that make numba and our kernels take this path."""
        if self.cpu is None:
            return {}
        kept = sorted(name for name in host if not name.startswith(self.without))
        return {
            "NUMBA_CPU_NAME": self.cpu,
            # Without a list LLVM would use all that the host has, whatever the name says.
            "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in kept),
        }


PATHS = (
    CodePath("AMX", None, _AMX | {"avx512f"}),
    CodePath("AVX-512", "skylake-avx512", frozenset({"avx512f"}), ("amx",)),
    CodePath("AVX2", "haswell", frozenset({"avx2", "fma"}), ("amx", "avx512", "avx10", "avxvnni")),
    CodePath("portable", "generic", frozenset(), ("",)),
)


def main(arguments: list[str]) -> int:
    """Run pytest with `arguments` on each path; return 1 if a run fails or finds no test."""
    host = host_features()
    failed, taken = False, arguments[:1] != ["--others"]
    arguments = arguments if taken else arguments[1:]
    for path in PATHS:
        reason = path.missing(host)
        if reason is not None:
            print(f"{path.name}: skipped, {reason}", flush=True)
            continue
        if not taken:
            print(f"{path.name}: left out, this machine takes it anyway", flush=True)
            taken = True
            continue
        start = time.monotonic()
        status = run(path.environment(host), arguments)
        failed |= status != 0
        state = "passed" if status == 0 else "FAILED"
        print(f"{path.name}: {state} in {time.monotonic() - start:.0f} s", flush=True)
    return int(failed)


def run(environment: Mapping[str, str], arguments: list[str]) -> int:
    """Run pytest on the marked tests of the numba backend and return its exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "--backends", "numba"]
    command += ["-m", "paths and not exhaustive"]
    command += ["-p", "no:cacheprovider", "tests/backend_numba", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(done.stdout[-8000:], done.stderr[-2000:], sep="\n")
    return done.returncode


def host_features() -> frozenset[str]:
    """Return what the processor has, as LLVM calls it."""
    return frozenset(name for name, has in llvm.get_host_cpu_features().items() if has)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
