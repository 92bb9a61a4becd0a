"""Try faults that no file has: kill writers, fill disks, swap cache files, race threads, fork."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import gptrs
from fuzzing import fault_writers
from fuzzing.fault_writers import DEADLY_LIMIT, WRITERS
from gptrs import functionals as F

TIMEOUT_S = 120
_COMPUTE = """
import os, sys, numpy as np, gptrs
from gptrs import functionals as F
x = gptrs.tensor(np.linspace(-3, 3, 60, dtype=np.float32).reshape(6, 10))
functions = (F.softmax, F.tanh)
results = [gptrs.jit(f)(x) for f in functions]
sys.stdout.buffer.write(b"".join(r.numpy().tobytes() for r in results))
"""


def kill(dice: random.Random, folder: Path) -> str:
    """Kill a writer at any moment: what it wrote is there or not, never a part of it."""
    name = dice.choice(list(WRITERS))
    command = [sys.executable, fault_writers.__file__, name, str(folder), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(dice.random() * 0.1)
        process.kill()
    found = WRITERS[name].read(folder)
    WRITERS[name].write(folder, 1)  # another writer goes on
    assert WRITERS[name].read(folder) == 1
    return "nothing there" if found is None else "whole"


def full_disk(dice: random.Random, folder: Path) -> str:
    """Let a disk take a part of a file: an error is reported, and what was there is there."""
    name = dice.choice(list(WRITERS))
    writer = WRITERS[name]
    before = dice.choice([None, 0])
    if before is not None:
        writer.write(folder, before)
    limit = str(dice.randrange(1, 200 if writer.may_give_up else DEADLY_LIMIT))
    command = [sys.executable, fault_writers.__file__, name, str(folder), limit]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
    assert done.returncode == (0 if writer.may_give_up else 3), f"{name}: {done.returncode}"
    assert writer.read(folder) == before, f"{name}: what was there is not"
    return "reported" if done.returncode else "given up"


def swapped(dice: random.Random, folder: Path) -> str:
    """Exchange files of the cache: the results stay the same bits."""
    environment = {**os.environ, "GPTRS_CACHE_DIR": str(folder), "GPTRS_BACKEND": "numba"}

    def compute() -> bytes:
        done = subprocess.run(
            [sys.executable, "-c", _COMPUTE],
            env=environment,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-500:]
        return done.stdout

    expected = compute()
    for parent in {path.parent for path in folder.rglob("*") if path.is_file()}:
        files = sorted(path for path in parent.iterdir() if path.is_file() and path.stat().st_size)
        contents = [path.read_bytes() for path in files]
        dice.shuffle(contents)
        for path, content in zip(files, contents, strict=True):
            path.write_bytes(content)
    assert compute() == expected
    return "the same bits"


def threads(dice: random.Random, folder: Path) -> str:
    """Run functions from many threads at once: each result has the bits that it has alone."""
    values = np.random.default_rng(dice.randrange(1000)).standard_normal((dice.randrange(1, 9), 16))
    x = gptrs.tensor(values.astype(np.float32))
    made = [gptrs.jit(f) for f in (F.softmax, F.gelu, lambda x: F.tanh(x) * 2 + x)]
    expected = [f(x).numpy().tobytes() for f in made]
    found: list[bool] = []

    def work() -> None:
        fresh = [gptrs.jit(f) for f in (F.softmax, F.gelu)]
        for f, bits in zip([*made, *fresh], [*expected, *expected], strict=False):
            found.append(f(x).numpy().tobytes() == bits)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=work) for _ in range(8)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(TIMEOUT_S)
    finally:
        sys.setswitchinterval(before)
    assert found == [True] * 8 * 5
    return "the same bits"


def fork(dice: random.Random, folder: Path) -> str:
    """Fork a process that has computed, also from a thread: the child computes the same bits."""
    x = gptrs.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    function = gptrs.jit(dice.choice([F.softmax, F.gelu]))
    expected = function(x).numpy().tobytes()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if function(x).numpy().tobytes() == expected else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, 9)
            raise AssertionError("the child hangs")
        time.sleep(0.002)
    assert status == 0
    return "the same bits"


FAULTS: Mapping[str, Callable[[random.Random, Path], str]] = {
    "kill": kill,
    "full-disk": full_disk,
    "swapped": swapped,
    "threads": threads,
    "fork": fork,
}


def main(arguments: list[str] | None = None) -> int:
    """Try faults as `arguments` say, a summary line for each; 1 if one was not survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {' '.join(FAULTS)}")
    parser.add_argument("--count", type=int, default=100, help="how often each; swapped a tenth")
    parser.add_argument("--seed", type=int, help="makes a run repeatable; default: the time")
    options = parser.parse_args(arguments)
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    os.environ["GPTRS_BACKEND"] = "ref"  # for threads and forks, which numba's pool has tests of
    return int(any([_tried(name, seed, options.count) for name in options.faults or FAULTS]))


def _tried(name: str, seed: int, count: int) -> int:
    """Return how many were not survived, after a line on all."""
    outcomes: dict[str, int] = {}
    started = time.monotonic()
    for number in range(max(1, count // 10) if name == "swapped" else count):
        with tempfile.TemporaryDirectory(prefix="gptrs-fault-") as folder:
            try:
                outcome = FAULTS[name](random.Random(f"{seed} {name} {number}"), Path(folder))
            except Exception:
                outcome = "flaw"
                print(f"{name} {number}: {traceback.format_exc()}", flush=True)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    found = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
    print(f"{name:12} {found}, in {time.monotonic() - started:.0f} s", flush=True)
    return outcomes.get("flaw", 0)


if __name__ == "__main__":
    sys.exit(main())
