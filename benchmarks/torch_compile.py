"""Times models of torch run by torch, by Inductor, and by gptrs, in turns.

Run it as `python benchmarks/torch_compile.py [MODEL ...] [--threads N ...] [--no-inductor]`; it
needs torch, transformers and, for Inductor, a C++ compiler. Models have random weights and the
sizes that people use; each is timed in a process of its own. The last lines are geometric means.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch_models import MODELS

LEAST_SECONDS = 0.1
"""A turn of one contestant: as many calls as take this long."""
MAX_GAP = 1e-2
"""Most that a result may be off, of its largest element: other roundings, through many layers."""


def contestants(model: nn.Module, threads: int, *, inductor: bool) -> dict[str, Callable[..., Any]]:
    """Return what runs the model, by name."""
    compile_ = cast("Any", torch).compile
    found: dict[str, Callable[..., Any]] = {"torch": model}
    if inductor and shutil.which("g++"):
        found["inductor"] = compile_(model)
    found["gptrs"] = compile_(model, backend="gptrs", options={"threads": threads})
    return found


def measured(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds a call, over as many calls as take LEAST_SECONDS."""
    count, start, cpu = 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - start) < LEAST_SECONDS or not count:
        call()
        count += 1
    return passed / count, (time.process_time() - cpu) / count


def first_tensor(output: Any) -> torch.Tensor:
    """Return the first result of a model."""
    while not isinstance(output, torch.Tensor):
        output = output.to_tuple() if hasattr(output, "to_tuple") else output
        output = output if isinstance(output, torch.Tensor) else output[0]
    return output


def gap(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference, of the largest element."""
    return float((mine - theirs).abs().max() / theirs.abs().max())


def times_of(
    name: str, threads: int, rounds: int, *, inductor: bool
) -> dict[str, dict[str, float]]:
    """Return the least and median microseconds of each contestant, which take turns.

    ValueError if a result is not that of torch.
    """
    torch.set_num_threads(threads)
    cast("Any", torch).manual_seed(0)
    model, given = MODELS[name]()
    runners = contestants(model.eval(), threads, inductor=inductor)
    times: dict[str, list[tuple[float, float]]] = {each: [] for each in runners}
    with torch.inference_mode(), torch._dynamo.config.patch(allow_rnn=True):
        expected = first_tensor(model(**given))
        for each, run in runners.items():
            apart = gap(first_tensor(run(**given)), expected)
            if not apart < MAX_GAP:
                raise ValueError(f"{each} gives another result for {name}, {apart:.2g} off")
        for _ in range(rounds):
            for each, run in runners.items():
                times[each].append(measured(lambda run=run: run(**given)))
    found: dict[str, dict[str, float]] = {}
    for each, pairs in times.items():
        wall, cpu = zip(*pairs, strict=True)
        figures = {"least": min(wall), "median": statistics.median(wall), "cpu": min(cpu)}
        found[each] = {kind: seconds * 1e6 for kind, seconds in figures.items()}
    return found


def compare(name: str, threads: int, rounds: int, *, inductor: bool) -> Mapping[str, float] | None:
    """Print how a model does in a process of its own; return times by contestant, None for none."""
    words = [name, "--threads", str(threads), "--rounds", str(rounds), "--json"]
    command = [sys.executable, str(Path(__file__)), *words]
    done = subprocess.run(
        command if inductor else [*command, "--no-inductor"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{name:10} {threads} threads: failed")
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    for each, figures in found.items():
        print(
            f"{name:10} {threads} threads {each:9} {figures['least']:10.1f} us least,"
            f" {figures['median']:10.1f} us median, {figures['cpu']:10.1f} us CPU",
            flush=True,
        )
    return {each: figures["median"] for each, figures in found.items()}


def summarize(threads: int, found: Mapping[str, Mapping[str, float]]) -> None:
    """Print geometric means of how many times as fast gptrs is, and the worst of them."""
    for other in ("torch", "inductor"):
        ratios = {
            name: all_[other] / all_["gptrs"] for name, all_ in found.items() if other in all_
        }
        if ratios:
            worst = min(ratios, key=lambda name: ratios[name])
            print(
                f"{threads} threads: {statistics.geometric_mean(ratios.values()):.2f} times as fast"
                f" as {other} over {len(ratios)} models, least {worst} {ratios[worst]:.2f}"
            )


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out")
    parser.add_argument("--json", action="store_true", help="one model in this process, as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    unknown = set(options.models) - set(MODELS)
    if unknown:
        parser.error(f"there is no model {min(unknown)}, but {', '.join(MODELS)}")
    names, inductor = options.models or list(MODELS), not options.no_inductor
    if options.json:
        found = times_of(names[0], options.threads[0], options.rounds, inductor=inductor)
        print(json.dumps(found))
        return
    for threads in options.threads:
        results = {
            name: compare(name, threads, options.rounds, inductor=inductor) for name in names
        }
        summarize(threads, {n: r for n, r in results.items() if r is not None and n != "tiny"})


if __name__ == "__main__":
    main()
