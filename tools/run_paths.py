"""Run the tests marked `paths` on the code for each kind of processor that this machine can be.

The numba backend has kernels for AMX, for AVX-512, for AVX2 and for any x86-64; on other machines
only the last ones. A machine takes the best that it has, so that the others would go untested.

`--others` leaves out that one, since who ran all tests has run it; `--emulate` runs AMX by
`amx_emulator` where a processor with AVX-512 lacks it. That needs a C compiler, and tells whether
results are right, not how fast they are. `--arm` runs a few strong tests on aarch64, under qemu
with Python of that machine: with NEON alone, with `sdot`, and with `usmmla` and `bfmmla`. The first
time it fetches 200 MB into `build/aarch64`. `--only NAME` runs one path, such as `AVX2` or
`neon_dot`; it can be repeated, and `-k` makes the parts smaller. Other arguments are those of
pytest; of several paths, two run at a time, each in one process.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import llvmlite.binding as llvm

from arm_emulator.environment import MACHINE, Emulated, UnavailableError, prepared

_TOGETHER = 2
_AMX = frozenset({"amx-tile", "amx-bf16"})
_EMULATOR = Path(__file__).with_name("amx_emulator")
_ARM_EMULATOR = Path(__file__).with_name("arm_emulator")
_ROOT = Path(__file__).resolve().parents[1]


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


@dataclass(frozen=True)
class ArmPath:
    """A processor of qemu, and the target of kernels that it is."""

    cpu: str
    target: str


ARM_PATHS = (
    ArmPath("cortex-a72", "neon"),
    ArmPath("neoverse-n1", "neon_dot"),
    ArmPath("max", "neon_i8mm"),
)
ARM_TESTS = (
    "test_integer_products.py::test_sums_are_exact",
    "test_integer_products.py::test_codes_are_looked_up",
    "test_bf16_linear.py::test_a_row_is_the_same_bits_in_any_company",
    "test_quantized_linear.py::test_results_are_those_of_rounded_activations",
    "test_quantized_linear.py::test_sums_of_the_largest_codes_do_not_saturate",
    "test_convolution.py::test_activations_of_all_numbers",
    "test_matrix_convolution.py",
    "test_fused_attention.py::test_keys_behind_the_last_visible_one_are_not_read",
    "test_paged_attention.py::test_whole_texts_are_right",
    "test_conversions.py",
    "test_small_models.py",
)
"""Those that tell most in little time: each computes ten times as long as on this machine."""


def main(arguments: list[str]) -> int:
    """Run pytest with `arguments` on each path; return 1 if a run fails or finds no test."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--arm", action="store_true")
    known = [each.name for each in PATHS] + [each.target for each in ARM_PATHS]
    parser.add_argument("--only", action="append", choices=known)
    options, arguments = parser.parse_known_args(arguments)
    host = host_features()
    failed, taken = False, not options.others
    only = frozenset(options.only or known)
    runs: list[tuple[str, Callable[[list[str]], int]]] = []
    for path in PATHS:
        if path.name not in only:
            continue
        reason, emulated = path.missing(host), False
        if path.name == "AMX" and reason is not None and options.emulate:
            without = cannot_emulate(host)
            reason, emulated = without and f"{reason}, and {without}", without is None
        if reason is not None:
            print(f"{path.name}: skipped, {reason}", flush=True)
            continue
        if not taken and not emulated:
            print(f"{path.name}: left out, this machine takes it anyway", flush=True)
            taken = True
            continue
        if emulated:
            runs.append((f"{path.name}, emulated", partial(run_emulated, host)))
        else:
            runs.append((path.name, partial(run, path.environment(host))))
    if options.arm:
        runs += arm_runs(only)
    if len(runs) > 1:
        # Side by side: workers of each would all import and collect, and wait at its end.
        arguments = [*arguments, "-n", "0"]
    with ThreadPoolExecutor(_TOGETHER) as pool:
        for line, status in pool.map(lambda named: _told(*named, arguments), runs):
            failed |= status != 0
            print(line, flush=True)
    return int(failed)


def arm_runs(only: frozenset[str]) -> list[tuple[str, Callable[[list[str]], int]]]:
    """Return the runs on aarch64 under qemu of the targets in `only`.

    None, with a line that says why, if qemu and Python of that machine cannot be had.
    """
    try:
        emulated = prepared(_ROOT / "build" / MACHINE)
    except UnavailableError as error:
        print(f"aarch64: skipped, {error}", flush=True)
        return []
    return [
        (f"aarch64 {path.target}", partial(run_arm, emulated, path))
        for path in ARM_PATHS
        if path.target in only
    ]


def run_arm(emulated: Emulated, path: ArmPath, arguments: list[str]) -> int:
    """Run pytest under qemu, and a compiler of kernels beside it on this machine."""
    sources = [str(each) for each in sorted(_ROOT.glob("packages/*/src"))]
    compiler = _ARM_EMULATOR / "cross_compiler.py"
    environment = {
        **emulated.variables([*sources, str(_ROOT / "tests"), str(_ARM_EMULATOR)]),
        "ARM_COMPILER": shlex.join([sys.executable, str(compiler)]),
        "HOST_PYTHONPATH": os.pathsep.join(sources),
        "HOST_GPTRS_NUMBA_TARGET": path.target,
        "GPTRS_NUMBA_COMPILERS": "1",
    }
    return run(environment, ["-p", "arm_emulator", *_alone(arguments)], path.cpu, emulated)


def _alone(arguments: list[str]) -> list[str]:
    """Return arguments without those of pytest-xdist, which is not there."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("-n")
    parser.add_argument("--dist")
    return parser.parse_known_args(arguments)[1]


def _told(name: str, run_path: Callable[[list[str]], int], arguments: list[str]) -> tuple[str, int]:
    """Run a path; return a line about it, and its exit code."""
    start = time.monotonic()
    status = run_path(arguments)
    state = "passed" if status == 0 else "FAILED"
    return f"{name}: {state} in {time.monotonic() - start:.0f} s", status


def cannot_emulate(host: frozenset[str]) -> str | None:
    """Return why AMX cannot be emulated on a processor with the features `host`, else None."""
    if "avx512f" not in host:
        return "an emulated one needs avx512f"
    return None if shutil.which("cc") else "there is no C compiler `cc` to emulate it"


def run_emulated(host: frozenset[str], arguments: list[str]) -> int:
    """Run pytest as `run` does, in one process, with an emulator of AMX."""
    with tempfile.TemporaryDirectory() as name:
        library = Path(name, "instructions.so")
        source = _EMULATOR / "instructions.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
        environment = {
            "NUMBA_CPU_NAME": llvm.get_host_cpu_name(),
            "NUMBA_CPU_FEATURES": ",".join(
                f"+{name}" for name in sorted(host | _AMX | {"amx-int8"})
            ),
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(_EMULATOR), os.environ.get("PYTHONPATH")])
            ),
            "AMX_EMULATOR": str(library),
            # Kernels hold addresses of the process that compiles them.
            "GPTRS_CACHE_DIR": str(Path(name, "cache")),
            "GPTRS_NUMBA_COMPILERS": "1",
        }
        return run(environment, ["-p", "amx_emulator", *arguments, "-n", "0"])


def run(
    environment: Mapping[str, str],
    arguments: list[str],
    cpu: str | None = None,
    emulated: Emulated | None = None,
) -> int:
    """Run pytest on the marked tests of the numba backend and return its exit code."""
    tests = ["tests/backend_numba"]
    if emulated is not None:
        tests = [f"tests/backend_numba/{each}" for each in ARM_TESTS]
    ours = ["-m", "pytest", "-q", "--backends", "numba", "-m", "paths"]
    ours += ["-p", "no:cacheprovider", *tests, *arguments]
    command = [sys.executable, *ours]
    if emulated is not None and cpu is not None:
        command = emulated.command(cpu, ours)
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
