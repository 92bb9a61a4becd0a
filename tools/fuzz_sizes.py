"""Compile random programs for all sizes; compare results with programs for each size, bit for bit.

Those that differ are saved. Backends without symbols get the optimized program with numbers in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from gptrs.backend.contract import Backend
from gptrs.errors import GptrsError
from gptrs.plugins.manager import manager
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.checks.symbolic import require_all_sizes
from gptrs_conformance.program_generator import random_program

CHUNK = 100


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as `arguments` say and print what came of it; 1 if a program gave other results."""
    options = _parser().parse_args(arguments)
    seeds = range(options.seed, options.seed + options.programs)
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    differ = False
    for name in options.backends.split(","):
        sizes, flaws, started = 0, dict[int, str](), time.monotonic()
        with ProcessPoolExecutor(options.processes) as pool:
            for compared, found in pool.map(partial(_examine, name), chunks):
                sizes += compared
                flaws |= found
        for seed, flaw in flaws.items():
            _save(options.out, f"sizes-{name}-{seed}.txt", flaw)
        print(
            f"{len(seeds):8} programs on {name}, {sizes} sizes, seeds {seeds.start} to"
            f" {seeds.stop - 1}, in {time.monotonic() - started:.0f} s"
        )
        print(f"{len(flaws):8} differ: seeds {sorted(flaws)[:20]}", flush=True)
        differ = differ or bool(flaws)
    return 1 if differ else 0


def _examine(name: str, seeds: Iterable[int]) -> tuple[int, dict[int, str]]:
    """Return how many sizes were compared, and what is wrong by seed."""
    backend = manager().get_backend(name)
    compared, flaws = 0, dict[int, str]()
    for seed in seeds:
        try:
            compared += _compared(backend, seed)
        except (CheckFailure, GptrsError) as error:
            flaws[seed] = f"{type(error).__name__}: {error}"
    return compared, flaws


def _compared(backend: Backend, seed: int) -> int:
    program = random_program(
        seed, accepts=lambda op, given, made: backend.refusal(op, given, made) is None
    )
    return require_all_sizes(backend, program, seed)


def _save(folder: Path, name: str, flaw: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(flaw, encoding="utf-8", errors="replace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=5_000, help="how many to try")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--backends", default="ref,numba", help="comma list")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at a time")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="where to save")
    return parser


if __name__ == "__main__":
    sys.exit(main())
