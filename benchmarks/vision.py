"""Measure convolutional networks on the numba backend and on others, alternating in one process.

    python benchmarks/vision.py [--threads 1] [--rounds 9] [--cpu] [--size 224] [--networks ..]

Weights are random. Of torch both memory formats are measured; ONNX Runtime and OpenVINO take part
where they and `onnx` are installed. Medians over rounds, and the best; `--cpu` counts processor
time, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gptrs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from vision_peers import Cases, vision_peers

from vision_networks import NETWORKS, Counting, FunctionalLayers, Weights, captured

_PAUSE = 0.02
"""Seconds between turns: the threads of some libraries keep a processor busy after their work."""
_UNTIMED = 3
"""Runs of a turn before the one that counts: they wake threads and bring the weights nearer."""


def main() -> None:
    """Measure each network and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu", action="store_true", help="processor time, if others are busy")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    options = parser.parse_args()
    os.environ["GPTRS_NUM_THREADS"] = str(options.threads)
    print(f"{platform.processor() or platform.machine()}, threads {options.threads}")
    for name in options.networks:
        _measure(name, options)


def _measure(name: str, options: argparse.Namespace) -> None:
    weights = Weights()
    random = np.random.default_rng(0)
    image = random.standard_normal((1, options.size, options.size, 3)).astype(np.float32)
    cases: Cases = {"ours": _ours(name, weights, image)}
    cases |= vision_peers(name, weights, image, options.threads)
    results = {who: run() for who, run in cases.items()}
    clock = time.process_time if options.cpu else time.perf_counter
    times = _timed(cases, options.rounds, clock)
    counting = Counting()
    NETWORKS[name]((options.size, options.size), counting)
    _print_table(name, times, results, 2 * counting.products / 1e9)


def _timed(cases: Cases, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Milliseconds of every round; a turn is a pause, some runs, and the one that is timed."""
    times: dict[str, list[float]] = {who: [] for who in cases}
    for _ in range(rounds):
        for who, run in cases.items():
            time.sleep(_PAUSE)
            for _ in range(_UNTIMED):
                run()
            begin = clock()
            run()
            times[who].append(1e3 * (clock() - begin))
    return times


def _print_table(
    name: str, times: dict[str, list[float]], results: dict[str, np.ndarray], gflop: float
) -> None:
    ours = times["ours"]
    scale = np.abs(results["ours"]).max()
    for who, spent in times.items():
        middle, best = statistics.median(spent), min(spent)
        off = np.abs(results[who] - results["ours"]).max() / scale
        print(
            f"{name:12} {who:20} median {middle:7.2f} ms  best {best:7.2f} ms"
            f"  {gflop / middle * 1e3:6.1f} GFLOP/s"
            f"  ratio {middle / statistics.median(ours):5.2f} (best {best / min(ours):5.2f})"
            f"  differs by {off:.1e}",
            flush=True,
        )


def _ours(name: str, weights: Weights, image: np.ndarray) -> Callable[[], np.ndarray]:
    backend = gptrs.get_backend("numba")
    run = captured(name, FunctionalLayers(weights, backend))
    x = gptrs.tensor(image)
    return lambda: run(x).numpy()


if __name__ == "__main__":
    main()
