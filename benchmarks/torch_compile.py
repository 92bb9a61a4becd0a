"""Times models of torch run by torch, by Inductor, and by gptrs, in turns.

Run it as `python benchmarks/torch_compile.py [MODEL ...] [--threads N ...] [--no-inductor]`; it
needs torch, transformers and, for Inductor, a C++ compiler. Models have random weights and the
sizes that people use; each is timed in a process of its own. Inductor freezes the weights, as it
does for inference at its best. The last lines are geometric means. `--out FILE.json` keeps what was
measured beside what is there, so that a quiet machine is needed for minutes only, and writes a
table to FILE.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numba
import torch
import transformers
from report import processor
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
    frozen = cast("Any", torch)._inductor.config.patch(freezing=True)
    with torch.inference_mode(), torch._dynamo.config.patch(allow_rnn=True), frozen:
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


def means(threads: int, found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return lines with geometric means of how many times as fast gptrs is, and the worst."""
    lines: list[str] = []
    for other in ("torch", "inductor"):
        ratios = {
            name: all_[other] / all_["gptrs"] for name, all_ in found.items() if other in all_
        }
        if ratios:
            worst = min(ratios, key=lambda name: ratios[name])
            lines.append(
                f"{threads} threads: {statistics.geometric_mean(ratios.values()):.2f} times as fast"
                f" as {other} over {len(ratios)} models, least {worst} {ratios[worst]:.2f}"
            )
    return lines


def keep(path: Path, found: Mapping[int, Mapping[str, Mapping[str, float]]]) -> None:
    """Put microseconds by threads, model and contestant into a file, and write the table."""
    kept: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    rows: dict[str, dict[str, dict[str, float]]] = kept.setdefault("median_microseconds", {})
    for threads, models in found.items():
        rows.setdefault(str(threads), {}).update({n: dict(r) for n, r in models.items()})
    kept["date"] = time.strftime("%Y-%m-%d")
    kept["machine"] = f"{processor()}, {platform.platform()}, Python {platform.python_version()}"
    kept["versions"] = {
        module.__name__: str(cast("Any", module).__version__)
        for module in (torch, transformers, numba)
    }
    path.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
    path.with_suffix(".md").write_text(table(kept), "utf-8")


def table(kept: Mapping[str, Any]) -> str:
    """Return what is in a file as a table, with geometric means."""
    versions = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    lines = ["# Models of torch at batch 1", "", f"{kept['date']}, {kept['machine']}.", ""]
    lines += [
        f"Versions: {versions}.",
        "",
        "Medians of turns, in ms; Inductor freezes weights.",
        "",
    ]
    lines += ["| model | threads | torch | Inductor | gptrs | of torch | of Inductor |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for threads, models in kept["median_microseconds"].items():
        for name, row in models.items():
            times = [row.get(each) for each in ("torch", "inductor", "gptrs")]
            ratios = [None if each is None else each / row["gptrs"] for each in times[:2]]
            cells = ["" if each is None else f"{each / 1000:.3g}" for each in times]
            cells += ["" if each is None else f"{each:.2f}x" for each in ratios]
            lines.append(f"| {name} | {threads} | " + " | ".join(cells) + " |")
    for threads, models in kept["median_microseconds"].items():
        lines += ["", *means(int(threads), {n: r for n, r in models.items() if n != "tiny"})]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep results there")
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
    results: dict[int, dict[str, Mapping[str, float]]] = {}
    for threads in options.threads:
        rows = {name: compare(name, threads, options.rounds, inductor=inductor) for name in names}
        results[threads] = {name: row for name, row in rows.items() if row is not None}
        print(*means(threads, {n: r for n, r in results[threads].items() if n != "tiny"}), sep="\n")
    if options.out is not None:
        keep(options.out, results)


if __name__ == "__main__":
    main()
