"""Optimize many random programs and compare results, bit for bit; save those that differ.

`PYTHONPATH=tests` leads to the bait for rewrites, as in `make fuzz`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fuzzing.differential import Tally, examine

CHUNK = 250


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as `arguments` say and print what came of it; 1 if a program was changed in meaning."""
    options = _parser().parse_args(arguments)
    seeds = range(options.seed, options.seed + options.programs)
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    tally, started = Tally(), time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        for done, part in enumerate(pool.map(examine, chunks), start=1):
            tally.add(part)
            if done % 40 == 0 or part.flaws:
                print(f"{tally.programs:8} programs, {len(tally.flaws)} differ", flush=True)
            for seed, flaw in part.flaws.items():
                _save(options.out, seed, flaw)
    _report(tally, seeds, time.monotonic() - started)
    return 1 if tally.flaws else 0


def _report(tally: Tally, seeds: range, seconds: float) -> None:
    for name, times in sorted(tally.fired.items()):
        print(f"{times:8} times {name}")
    for name, programs in sorted(tally.changed.items()):
        print(f"{programs:8} programs changed by {name}")
    print(f"{tally.programs:8} programs, seeds {seeds.start} to {seeds.stop - 1}", end="")
    print(f", {tally.smaller} became smaller, in {seconds:.0f} s")
    print(f"{len(tally.flaws):8} differ: seeds {sorted(tally.flaws)[:20]}")


def _save(folder: Path, seed: int, flaw: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"optimizer-{seed}.txt").write_text(flaw, encoding="utf-8", errors="replace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100_000, help="how many to try")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at a time")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="where to save")
    return parser


if __name__ == "__main__":
    sys.exit(main())
