"""Measure ONNX files on gptrs and on ONNX Runtime, in turns in one process.

    python benchmarks/onnx_files.py [--threads 1] [--rounds 7] [--networks bert resnet34 ..]

Models of transformers and of torch with random weights are exported by torch.onnx; both runtimes
read the same file. A turn is a block of runs; the medians of all rounds are compared, and the
outputs. Needs torch, transformers, onnxscript and onnxruntime. `--out FILE.json` keeps what was
measured beside what is there, and writes a table to FILE.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import transformers
from report import processor
from torch_models import MODELS

import gptrs
import gptrs_onnx
from gptrs.ir import Program
from gptrs_backend_numba.backend import create
from gptrs_observe.programs.report import report_program

torch: Any = importlib.import_module("torch")
onnxruntime: Any = importlib.import_module("onnxruntime")
_BLOCK = 3
"""Runs of a turn; the first wakes threads and is not counted."""
_REST = 0.05
"""Seconds before a turn, until threads of the other runtime sleep.

ONNX Runtime's wait for work on a processor that ours need, in real-time class for good.
"""


@dataclass(frozen=True)
class Times:
    """What a network took: median seconds, and the operations of its products in one run."""

    gptrs: float
    onnxruntime: float
    products: int

    @property
    def ratio(self) -> float:
        """ONNX Runtime's time as a share of ours."""
        return self.onnxruntime / self.gptrs


def main() -> None:
    """Measure each network and print a line of figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = [name for name in MODELS if name != "tiny"]
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--networks", nargs="*", default=known, choices=known)
    parser.add_argument("--folder", type=Path, help="keep the exported files there")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep results there")
    options = parser.parse_args()
    limit = create(options.threads).flop_per_s()
    found: dict[str, Times] = {}
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            kept = options.folder or Path(folder)
            try:
                found[name] = measure(name, kept, options.threads, options.rounds)
            except torch.onnx.OnnxExporterError as error:
                print(f"{name:12} is not exported: {str(error).splitlines()[0]}", flush=True)
        if options.out is not None and name in found:
            keep(options.out, options.threads, limit, {name: found[name]})
    print(mean(options.threads, found))


def mean(threads: int, found: Mapping[str, Times]) -> str:
    """Return a line with the geometric mean of the ratios, and the lowest."""
    ratios = {name: times.ratio for name, times in found.items()}
    worst = min(ratios, key=lambda name: ratios[name])
    return (
        f"{threads} threads: {statistics.geometric_mean(ratios.values()):.2f} times as fast as"
        f" ONNX Runtime over {len(ratios)} models, least {worst} {ratios[worst]:.2f}"
    )


def measure(name: str, folder: Path, threads: int, rounds: int) -> Times:
    """Print and return the times of a network."""
    path, inputs = exported(name, folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options)
    model = gptrs_onnx.load(path, gptrs.get_backend("numba", threads))
    cases: dict[str, Callable[[], np.ndarray]] = {
        "gptrs": lambda: next(iter(model(**inputs).values())),
        "onnxruntime": lambda: np.asarray(session.run(None, inputs)[0]),
    }
    results = {who: run() for who, run in cases.items()}
    largest = np.abs(results["onnxruntime"]).max()
    if not largest > 0:
        raise ValueError(f"{name} gives nothing but zeros, which tell nothing")
    taken: dict[str, list[float]] = {who: [] for who in cases}
    for _ in range(rounds):
        for who, run in cases.items():
            time.sleep(_REST)
            run()
            started = time.perf_counter()
            for _ in range(_BLOCK):
                run()
            taken[who].append((time.perf_counter() - started) / _BLOCK)
    medians = {who: statistics.median(seconds) for who, seconds in taken.items()}
    times = Times(**medians, products=_products(model.program(**inputs)))
    off = np.abs(results["gptrs"] - results["onnxruntime"]).max() / largest
    print(
        f"{name:12} gptrs {1e3 * times.gptrs:8.2f} ms  ONNX Runtime"
        f" {1e3 * times.onnxruntime:8.2f} ms  ratio {times.ratio:5.2f}  differs by {off:.1e}",
        flush=True,
    )
    return times


def _products(program: Program) -> int:
    work = report_program(program).work
    uses = () if work is None else work.ops
    return sum(use.arithmetic for use in uses if use.op in ("dot_general", "convolution"))


def keep(path: Path, threads: int, limit: float, found: Mapping[str, Times]) -> None:
    """Put times by threads and model into a file, and write the table."""
    kept: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    rows: dict[str, dict[str, object]] = kept.setdefault("times", {}).setdefault(str(threads), {})
    rows.update({name: asdict(times) for name, times in found.items()})
    kept.setdefault("flop_per_s", {})[str(threads)] = limit
    kept["date"] = time.strftime("%Y-%m-%d")
    kept["machine"] = f"{processor()}, {platform.platform()}, Python {platform.python_version()}"
    modules = (onnxruntime, torch, transformers, numba)
    kept["versions"] = {module.__name__: str(cast("Any", module).__version__) for module in modules}
    path.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
    path.with_suffix(".md").write_text(table(kept), "utf-8")


def table(kept: Mapping[str, Any]) -> str:
    """Return what is in a file as a table, with geometric means."""
    versions = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    lines = [
        "# ONNX files at batch 1",
        "",
        f"{kept['date']}, {kept['machine']}.",
        "",
        f"Versions: {versions}.",
        "",
        "Medians of turns, in ms. `products` are the operations of matrix products and convolutions"
        " in GFLOP; the shares say how fast they would be if all else took no time, of what the"
        " machine computes in registers. Those of convolutions may be above 100 %: Winograd's form"
        " has fewer. `at most` is the ratio of a program that computes them at the limit and all"
        " else in no time.",
        "",
        "| model | threads | ONNX Runtime | gptrs | ratio | products | gptrs of limit"
        " | ONNX Runtime of limit | at most |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    means: list[str] = []
    for threads, rows in kept["times"].items():
        limit = kept["flop_per_s"][threads]
        found = {name: Times(**row) for name, row in rows.items()}
        for name, times in found.items():
            least = times.products / limit
            cells = [
                f"{1e3 * times.onnxruntime:.3g}", f"{1e3 * times.gptrs:.3g}",
                f"{times.ratio:.2f}x", f"{times.products / 1e9:.3g}",
                f"{least / times.gptrs:.0%}", f"{least / times.onnxruntime:.0%}",
                f"{times.onnxruntime / least:.2f}x",
            ]  # fmt: skip
            lines.append(f"| {name} | {threads} | " + " | ".join(cells) + " |")
        means += ["", f"{mean(int(threads), found)}; the limit is {limit / 1e9:.0f} GFLOP/s"]
    return "\n".join([*lines, *means]) + "\n"


def exported(name: str, folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a network with random weights as an ONNX file; return it and an input."""
    torch.manual_seed(0)
    made, given = MODELS[name]()
    path = folder / f"{name}.onnx"
    if not path.exists():
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(made.eval(), (), str(path), kwargs=given, dynamo=True, verbose=False)
    return path, {each: value.numpy() for each, value in given.items() if hasattr(value, "numpy")}


if __name__ == "__main__":
    main()
