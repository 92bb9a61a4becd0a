"""Try faults that no file has: kill writers, fill disks, damage caches, race threads, fork."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

import gptrs
from fuzzing.cache_damage import damage
from fuzzing.fault_programs import compute
from fuzzing.fault_writers import DEADLY_LIMIT, WRITERS, write_for_ever, write_within
from fuzzing.patience import Patience
from gptrs import functionals as F

BACKENDS = ("ref", "numba")
TIMEOUT_S = 120
"""Of CPU time, or without any: see `Patience`."""
LINES = 10
"""Lines on the way of a long run."""
_WRITERS = multiprocessing.get_context("fork")
_COMPUTING = multiprocessing.get_context("forkserver")
"""Children of a process that has imported all and computed nothing: none starts an interpreter."""
_COMPUTING.set_forkserver_preload(["__main__", "fuzzing.fault_programs"])


def kill(dice: random.Random, folder: Path) -> str:
    """Kill a writer at any moment: what it wrote is there or not, never a part of it."""
    name = dice.choice(list(WRITERS))
    started = _WRITERS.Event()
    process = _WRITERS.Process(target=write_for_ever, args=(name, folder, started), daemon=True)
    process.start()
    assert started.wait(TIMEOUT_S)
    time.sleep(dice.random() * dice.choice([0.3, 3]) * WRITERS[name].seconds)
    process.kill()
    process.join()
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
    limit = dice.randrange(1, 200 if writer.may_give_up else DEADLY_LIMIT)
    process = _WRITERS.Process(target=write_within, args=(name, folder, limit), daemon=True)
    process.start()
    code = _ended(process)
    assert code == (0 if writer.may_give_up else 3), f"{name}: {code}"
    assert writer.read(folder) == before, f"{name}: what was there is not"
    return "reported" if code else "given up"


def damaged(dice: random.Random, folder: Path) -> str:
    """Damage files of the cache, or exchange them: the results stay the same bits."""
    sound, expected = _sound_cache()
    shutil.copytree(sound, folder / "cache")
    what = damage(dice, folder / "cache")
    assert _computed(folder / "cache", folder / "found") == expected, f"damaged: {what}"
    return "the same bits"


@cache
def _sound_cache() -> tuple[Path, bytes]:
    """Return a folder with kernels, weights and programs, and the bits that they compute."""
    folder = Path(_scratch().name)
    expected = _computed(folder / "cache", folder / "expected")
    assert any(path.is_file() for path in (folder / "cache").rglob("*"))
    assert _computed(folder / "cache", folder / "found") == expected
    return folder / "cache", expected


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gptrs-sound-")


def _computed(cache_folder: Path, results: Path) -> bytes:
    process = _COMPUTING.Process(target=compute, args=(cache_folder, results), daemon=True)
    process.start()
    code = _ended(process)
    assert code == 0, f"computing ended with {code}"
    return results.read_bytes()


def _ended(process: BaseProcess) -> int | None:
    """Return the exit code of a child; None if it hangs."""
    assert process.pid is not None
    patience = Patience(process.pid, TIMEOUT_S)
    while process.exitcode is None and not patience.is_over():
        process.join(1)
    code = process.exitcode
    process.kill()
    return code


def threads(dice: random.Random, folder: Path) -> str:
    """Run functions from many threads at once: each result has the bits that it has alone."""
    backend = gptrs.get_backend(dice.choice(BACKENDS))
    values = np.random.default_rng(dice.randrange(1000)).standard_normal((dice.randrange(1, 9), 16))
    x = gptrs.tensor(values.astype(np.float32))
    made = [gptrs.jit(f) for f in (F.softmax, F.gelu, lambda x: F.tanh(x) * 2 + x)]
    with gptrs.use_backend(backend):
        expected = [f(x).numpy().tobytes() for f in made]
    found: list[bool] = []

    def work() -> None:
        fresh = [gptrs.jit(f) for f in (F.softmax, F.gelu)]
        with gptrs.use_backend(backend):
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
    assert found == [True] * 8 * 5, f"{backend.name}: {found}"
    return f"the same bits on {backend.name}"


def fork(dice: random.Random, folder: Path) -> str:
    """Fork a process that computes, here or in a thread: the child computes the same bits."""
    backend = gptrs.get_backend(dice.choice(BACKENDS))
    x = gptrs.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    function = gptrs.jit(dice.choice([F.softmax, F.gelu]))
    stopped = threading.Event()

    def compute() -> bytes:
        with gptrs.use_backend(backend):
            return function(x).numpy().tobytes()

    def go_on() -> None:
        while not stopped.is_set():
            compute()

    expected = compute()
    busy = threading.Thread(target=go_on)
    if dice.random() < 0.5:
        busy.start()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if compute() == expected else 1)
        finally:
            os._exit(2)
    stopped.set()
    if busy.ident is not None:
        busy.join(TIMEOUT_S)
    patience = Patience(child, TIMEOUT_S)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if patience.is_over():
            os.kill(child, 9)
            raise AssertionError(f"{backend.name}: the child hangs")
        time.sleep(0.002)
    assert status == 0, f"{backend.name}: {status}"
    return f"the same bits on {backend.name}"


FAULTS: Mapping[str, Callable[[random.Random, Path], str]] = {
    "kill": kill,
    "full-disk": full_disk,
    "damaged": damaged,
    "threads": threads,
    "fork": fork,
}


def main(arguments: list[str] | None = None) -> int:
    """Try faults as `arguments` say, a summary line for each; 1 if one was not survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {' '.join(FAULTS)}")
    parser.add_argument("--count", type=int, default=100, help="how often each")
    parser.add_argument("--seed", type=int, help="makes a run repeatable; default: the time")
    options = parser.parse_args(arguments)
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    return int(any([_tried(name, seed, options.count) for name in options.faults or FAULTS]))


def _tried(name: str, seed: int, count: int) -> int:
    """Return how many were not survived, after a line on all."""
    outcomes: dict[str, int] = {}
    started = time.monotonic()
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="gptrs-fault-") as folder:
            try:
                outcome = FAULTS[name](random.Random(f"{seed} {name} {number}"), Path(folder))
            except Exception:
                outcome = "flaw"
                print(f"{name} {number}: {traceback.format_exc()}", flush=True)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if count >= 100 and (number + 1) % (count // LINES) == 0:
            print(f"{name:12} {number + 1}: {outcomes}", flush=True)
    found = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
    print(f"{name:12} {found}, in {time.monotonic() - started:.0f} s", flush=True)
    return outcomes.get("flaw", 0)


if __name__ == "__main__":
    sys.exit(main())
