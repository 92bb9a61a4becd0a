"""Measure ONNX files on gptrs and on ONNX Runtime, in turns in one process.

    python benchmarks/onnx_files.py [--threads 1] [--rounds 7] [--networks bert resnet34 ..]

Models of transformers and of torch with random weights are exported by torch.onnx; both runtimes
read the same file. A turn is a block of runs; the medians of all rounds are compared, and the
outputs. Needs torch, transformers, onnxscript and onnxruntime.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch_models import MODELS

import gptrs
import gptrs_onnx

torch: Any = importlib.import_module("torch")
onnxruntime: Any = importlib.import_module("onnxruntime")
_BLOCK = 3
"""Runs of a turn; the first wakes threads and is not counted."""
_REST = 0.05
"""Seconds before a turn, until threads of the other runtime sleep.

ONNX Runtime's wait for work on a processor that ours need, in real-time class for good.
"""


def main() -> None:
    """Measure each network and print a line of figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = [name for name in MODELS if name != "tiny"]
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--networks", nargs="*", default=known, choices=known)
    parser.add_argument("--folder", type=Path, help="keep the exported files there")
    options = parser.parse_args()
    ratios: list[float] = []
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            kept = options.folder or Path(folder)
            try:
                ratios.append(measure(name, kept, options.threads, options.rounds))
            except torch.onnx.OnnxExporterError as error:
                print(f"{name:12} is not exported: {str(error).splitlines()[0]}", flush=True)
    mean = statistics.geometric_mean(ratios)
    print(f"ONNX Runtime's time / ours, threads {options.threads}, geometric mean: {mean:.2f}")


def measure(name: str, folder: Path, threads: int, rounds: int) -> float:
    """Print the times of a network; return ONNX Runtime's median as a share of ours."""
    path, inputs = exported(name, folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options)
    model = gptrs_onnx.load(path, gptrs.get_backend("numba", threads))
    cases: dict[str, Callable[[], np.ndarray]] = {
        "ours": lambda: next(iter(model(**inputs).values())),
        "theirs": lambda: np.asarray(session.run(None, inputs)[0]),
    }
    results = {who: run() for who, run in cases.items()}
    if not np.abs(results["theirs"]).max() > 0:
        raise ValueError(f"{name} gives nothing but zeros, which tell nothing")
    times: dict[str, list[float]] = {who: [] for who in cases}
    for _ in range(rounds):
        for who, run in cases.items():
            time.sleep(_REST)
            run()
            started = time.perf_counter()
            for _ in range(_BLOCK):
                run()
            times[who].append((time.perf_counter() - started) / _BLOCK)
    ours, theirs = (statistics.median(times[who]) for who in ("ours", "theirs"))
    off = np.abs(results["ours"] - results["theirs"]).max() / np.abs(results["theirs"]).max()
    print(
        f"{name:12} ours {1e3 * ours:8.2f} ms  ONNX Runtime {1e3 * theirs:8.2f} ms"
        f"  ratio {theirs / ours:5.2f}  differs by {off:.1e}",
        flush=True,
    )
    return theirs / ours


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
