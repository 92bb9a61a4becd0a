"""Processes with kernels that are compiled beside them: at once, in forks, and when they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
import numpy as np
from gptrs.backend.contract import InputRole
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import NumbaBackend

TEXT = '''ptir.v0.5
func @main(%a: f32[99, 7], %b: f32[7]) -> f32[99, 7] {
  %0 = broadcast_to %b {shape = [99, 7]} : f32[99, 7]
  %1 = add %a, %0 : f32[99, 7]
  %2 = maximum %1, %a : f32[99, 7]
  return %2
}'''
program = NumbaBackend(1).compile(parse_program(TEXT), [InputRole.ARGUMENT] * 2)
a, b = np.ones((99, 7), np.float32), np.arange(7, dtype=np.float32)

def tier():
    told = []
    (found,) = program.run_profiled([a, b], told.append)
    assert np.array_equal(found, np.maximum(a + b, a))
    return "parts" if "(parts)" in told[0].kernel else "kernel"

def wait_for_the_kernel():
    until = time.monotonic() + 300
    while tier() == "parts" and time.monotonic() < until:
        time.sleep(0.05)
    return tier()

"""
WAITS = "print(tier(), wait_for_the_kernel())"
FORKS = """
before = tier(), tier()
child = os.fork()
after = wait_for_the_kernel()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(*before, after)
else:
    os._exit(0 if after == "kernel" else 1)
"""
ENDS = "print(tier(), tier())"


def environment(folder: Path, **others: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if "COMPILERS" not in name},
        "GPTRS_CACHE_DIR": str(folder), "GPTRS_NUMBA_PACK": "0", **others,
    }  # fmt: skip


def start(folder: Path, script: str, **others: str) -> subprocess.Popen[str]:
    """Start a process; what it prints of others than the script is an error."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder, **others),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache that has the parts of the program, and not its kernel."""
    done = start(tmp_path, ENDS, GPTRS_NUMBA_PARTS="only").communicate(timeout=400)
    assert done == ("parts parts\n", "")
    return tmp_path


@pytest.mark.long
def test_two_processes_go_over_to_the_kernel_that_one_compiles(folder: Path) -> None:
    running = [start(folder, WAITS) for _ in range(2)]
    assert [each.communicate(timeout=400) for each in running] == [("parts kernel\n", "")] * 2
    assert start(folder, WAITS).communicate(timeout=400) == ("kernel kernel\n", "")


@pytest.mark.exhaustive
def test_a_fork_goes_over_as_its_parent_does(folder: Path) -> None:
    assert start(folder, FORKS).communicate(timeout=400) == ("parts parts kernel\n", "")


@pytest.mark.exhaustive
def test_a_process_ends_at_once_while_its_kernel_is_compiled(folder: Path) -> None:
    kept = sorted(folder.glob("numba/[0-9a-f]*"))
    assert start(folder, ENDS).communicate(timeout=400) == ("parts parts\n", "")
    # What compiles, ten times as long as the end takes, has neither pipe of the process: it would
    # be waited for otherwise.
    assert sorted(folder.glob("numba/[0-9a-f]*")) == kept != []
