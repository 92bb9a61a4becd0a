"""The standard set, `make bench`: gptrs alternating with the frameworks that are installed.

    python benchmarks/run.py [--threads 1 2] [--rounds 5] [--size 124M] [--out benchmarks/results]

Models have random weights and are made on the fly. The results are printed and written as JSON,
Markdown and, where matplotlib is installed, as a chart.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from gpt2_checkpoint import SIZES, save_gpt2
from peers import load_peers
from processes import process_rows
from replay_overhead import demo_row
from report import markdown, write_report

import gptrs
from gptrs.runtime.load import LoadedModel
from gptrs.runtime.measure.bench import ModelBench
from gptrs.runtime.measure.bench_cases import BenchCase, Decode, DecodeCase, Forward, Prefill
from gptrs.runtime.measure.machine_limits import MachineLimits, measure_limits
from gptrs.runtime.measure.rows import Row
from gptrs_cli.commands.bench import machine_fields

_HERE = Path(__file__).parent
_VISION_LINE = re.compile(
    r"(?P<work>\S+)\s+(?P<who>\S.*?)\s+median\s+(?P<ms>[\d.]+) ms.*?(?P<gflop>[\d.]+) GFLOP/s"
)
_LIBRARIES = ("gptrs-core", "numba", "llvmlite", "numpy", "torch", "transformers", "onnxruntime",
              "openvino")  # fmt: skip


def main() -> None:
    """Measure everything and write the report."""
    options = _options()
    now = datetime.now(UTC)
    rows: list[Row] = []
    limits: list[MachineLimits] = []
    with tempfile.TemporaryDirectory() as folder:
        model = save_gpt2(Path(folder) / f"gpt2-{options.size}", options.size)
        half = save_gpt2(Path(folder) / f"gpt2-{options.size}-bf16", options.size, "bf16")
        for threads in options.threads:
            limits.append(measure_limits(gptrs.get_backend(options.backend, threads)))
            rows += _model_rows(model, threads, limits[-1], options)
            rows += _half_rows(model, half, threads, limits[-1], options)
            if options.vision:
                rows += _vision_rows(threads, limits[-1], options.rounds)
        rows += process_rows(model, options.threads[-1], options.rounds)
        rows.append(demo_row())
    result = {
        "date": f"{now:%Y-%m-%d}",
        "command": "python benchmarks/run.py " + " ".join(sys.argv[1:]),
        "machine": machine_fields(limits[0]),
        "limits": [machine_fields(each) for each in limits],
        "versions": _versions(),
        "rows": [row.as_json() for row in rows],
    }
    print(markdown(result))
    stem = options.out / f"{now:%Y-%m-%d}-{options.name or _machine_name(result)}"
    for file in write_report(stem, result):
        print(f"written: {file}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=SIZES, default="124M")
    parser.add_argument("--prompt-lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--new-lengths", type=int, default=40, help="prompts of lengths not met")
    parser.add_argument("--long-text", type=int, default=900, help="tokens whose gaps are told")
    parser.add_argument("--backend", help="ours; the default one without it")
    parser.add_argument("--out", type=Path, default=_HERE / "results")
    parser.add_argument("--name", help="of the machine, for the files")
    parser.add_argument("--no-vision", dest="vision", action="store_false")
    return parser.parse_args()


def _model_rows(
    folder: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> list[Row]:
    peers = load_peers(folder, threads)
    model = gptrs.load_model(folder, options.backend, threads)
    bench = ModelBench(model, threads, options.rounds, limits, peers, _say)
    rows = bench.generation(options.prompt_lengths, options.context, options.new_tokens)
    rows += bench.new_lengths(options.new_lengths)
    rows += replace(bench, rounds=1, peers={}).gaps(8, options.long_text)
    return [_named(row, f"GPT-2 {options.size} f32") for row in rows]


def _half_rows(
    folder: Path, half: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> list[Row]:
    """bf16 weights beside our own f32."""
    whole = OwnModel(gptrs.load_model(folder, options.backend, threads))
    model = gptrs.load_model(half, options.backend, threads)
    bench = ModelBench(model, threads, options.rounds, limits, {"gptrs f32": whole}, _say)
    rows = bench.generation(options.prompt_lengths[:1], options.context, options.new_tokens)
    compared = [row for row in rows if row.unit == "tok/s"]
    return [_named(row, f"GPT-2 {options.size} bf16") for row in compared]


class OwnModel:
    """Another model of ours in the place of a peer."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.load_seconds = model.load_seconds

    def prefill(self, prompts: Iterator[list[int]]) -> BenchCase:
        """See `PeerModel`."""
        return Prefill(self._model, prompts)

    def decode(self, context: int, count: int) -> DecodeCase:
        """See `PeerModel`."""
        return Decode(self._model, context, count)

    def forward(self, inputs: np.ndarray) -> BenchCase:
        """See `PeerModel`."""
        return Forward(self._model, inputs)


def _vision_rows(threads: int, limits: MachineLimits, rounds: int) -> list[Row]:
    """The networks of `vision.py`, which prints the medians of all cases."""
    script = _HERE / "vision.py"
    if not script.exists():
        return []
    _say(f"networks, {threads} threads")
    command = [sys.executable, str(script), "--threads", str(threads), "--rounds", str(rounds)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        _say(f"vision.py ended with {found.returncode}: no rows of networks")
        return []
    return vision_rows(found.stdout, threads, limits)


def vision_rows(printed: str, threads: int, limits: MachineLimits) -> list[Row]:
    """A row for each network and peer in what `vision.py` printed."""
    found = [match.groupdict() for match in map(_VISION_LINE.match, printed.splitlines()) if match]
    ours = {each["work"]: each for each in found if each["who"] == "ours"}
    rows = []
    for each in found:
        if each["who"] == "ours":
            continue
        mine = ours[each["work"]]
        seconds, theirs = float(mine["ms"]) / 1e3, float(each["ms"]) / 1e3
        gflop = float(mine["gflop"])
        rows.append(
            Row(f"{each['work']} 224x224 f32", threads, seconds, "s", theirs, each["who"],
                theirs / seconds, gflop / limits.gflop_per_s, None, gflop)
        )  # fmt: skip
    return rows


def _named(row: Row, model: str) -> Row:
    return Row(**{**row.as_json(), "work": f"{model}: {row.work}"})


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _machine_name(result: dict[str, object]) -> str:
    name = f"{result['machine']['processor']}-{platform.system()}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
