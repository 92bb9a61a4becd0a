"""The standard set, `make bench`: gptrs alternating with the frameworks that are installed.

    python benchmarks/run.py [--threads 1 2] [--rounds 5] [--only texts llama] [--size 124M]

Models have random weights and are made on the fly. The results are printed and written as JSON,
Markdown and, where matplotlib is installed, as a chart.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpt2_checkpoint import SIZES, save_gpt2
from llama_checkpoint import save_llama
from msgspec.structs import replace
from peers import load_peers
from processes import process_rows
from replay_overhead import demo_row
from report import markdown, write_report

import gptrs
from gptrs_cli.commands.bench import machine_fields
from gptrs_observe.measure.bench import ModelBench
from gptrs_observe.measure.bench_cases import BenchCase, Decode, DecodeCase, Prefill
from gptrs_observe.measure.step_work import MachineLimits, Row, measure_limits
from gptrs_runtime.loaded_model import LoadedModel

_HERE = Path(__file__).parent
_VISION_LINE = re.compile(
    r"(?P<work>\S+)\s+(?P<who>\S.*?)\s+median\s+(?P<ms>[\d.]+) ms.*?(?P<gflop>[\d.]+) GFLOP/s"
)
_LIBRARIES = ("gptrs-core", "numba", "llvmlite", "numpy", "torch", "transformers", "onnxruntime",
              "openvino", "llama-cpp-python")  # fmt: skip


def main() -> None:
    """Measure everything and write the report."""
    options = _options()
    now = datetime.now(UTC)
    rows: list[Row] = []
    limits: list[MachineLimits] = []
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for threads in options.threads:
            limits.append(measure_limits(gptrs.get_backend(options.backend, threads)))
            for part in options.only:
                if part in _PARTS:
                    rows += _PARTS[part](folder, threads, limits[-1], options)
        if "processes" in options.only:
            model = _gpt2(folder, options.size)
            rows += process_rows(model, options.threads[-1], options.rounds)
        if "demo" in options.only:
            rows.append(demo_row())
    result = {
        "date": f"{now:%Y-%m-%d}",
        "command": "python benchmarks/run.py " + " ".join(sys.argv[1:]),
        "machine": machine_fields(limits[0]),
        "limits": [machine_fields(each) for each in limits],
        "versions": library_versions(),
        "rows": [row.as_json() for row in rows],
    }
    stem = options.out / f"{now:%Y-%m-%d}-{options.name or _machine_name(result)}"
    if options.add and (before := stem.with_name(f"{stem.name}.json")).exists():
        result = joined(json.loads(before.read_text(encoding="utf-8")), result)
    print(markdown(result))
    for file in write_report(stem, result):
        print(f"written: {file}")


def joined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, object]:
    """The results of a run with those of another one behind them; exits if machines differ.

    The load is that of the first run. Limits are told once for each number of threads.
    """
    processor, other = (each["machine"]["processor"] for each in (before, now))
    if processor != other:
        raise SystemExit(f"the results there are of another machine: {processor}, this is {other}")
    known = {each["threads"] for each in before["limits"]}
    return {
        **before,
        "command": f"{before['command']}; {now['command']}",
        "limits": [
            *before["limits"], *(each for each in now["limits"] if each["threads"] not in known)
        ],
        "versions": {**before["versions"], **now["versions"]},
        "rows": [*before["rows"], *now["rows"]],
    }  # fmt: skip


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=SIZES, default="124M")
    parser.add_argument("--prompt-lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 8, 32], help="at once")
    parser.add_argument("--new-lengths", type=int, default=40, help="prompts of lengths not met")
    parser.add_argument("--long-text", type=int, default=900, help="tokens whose gaps are told")
    parser.add_argument("--backend", help="ours; the default one without it")
    parser.add_argument("--folder", type=Path, help="keeps the models, and uses those there")
    parser.add_argument("--out", type=Path, default=_HERE / "results")
    parser.add_argument("--name", help="of the machine, for the files")
    parser.add_argument("--add", action="store_true", help="to the results that lie there")
    every = [*_PARTS, "processes", "demo"]
    parser.add_argument("--only", nargs="+", choices=every, default=every, help="parts of the set")
    return parser.parse_args()


def _gpt2(folder: Path, size: str, dtype: str = "f32") -> Path:
    """Return the folder of a GPT-2, which is made when it is first needed."""
    model = folder / f"gpt2-{size}-{dtype}"
    return model if model.exists() else save_gpt2(model, size, dtype)


def _model_rows(
    folder: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> list[Row]:
    """Loading, prompts, new lengths, text: GPT-2 beside its peers."""
    bench = _beside_peers(_gpt2(folder, options.size), threads, limits, options)
    rows = bench.generation(options.prompt_lengths, options.context, options.new_tokens)
    rows += bench.new_lengths(options.new_lengths)
    rows += replace(bench, rounds=1, peers={}).gaps(8, options.long_text)
    return [_named(row, f"GPT-2 {options.size} f32") for row in rows]


def _texts_rows(
    folder: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> list[Row]:
    """Several texts at once beside the peers; unequal prompts; a prompt that is known in part."""
    bench = _beside_peers(_gpt2(folder, options.size), threads, limits, options)
    rows = bench.ragged_prefill() + bench.known_prefill(500, 64)
    for texts in options.texts:
        rows += bench.decode(options.context, options.new_tokens, texts)
    return [_named(row, f"GPT-2 {options.size} f32") for row in rows]


def _half_rows(
    folder: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> list[Row]:
    """GPT-2 in bf16 beside our own f32."""
    whole = gptrs.load_model(_gpt2(folder, options.size), options.backend, threads)
    model = gptrs.load_model(_gpt2(folder, options.size, "bf16"), options.backend, threads)
    peers = {"gptrs f32": OwnModel(whole)}
    bench = ModelBench(model, threads, options.rounds, limits, peers, _say)
    rows = bench.generation(options.prompt_lengths[:1], options.context, options.new_tokens)
    compared = [row for row in rows if row.unit == "tok/s"]
    return [_named(row, f"GPT-2 {options.size} bf16") for row in compared]


def _llama_rows(
    folder: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> list[Row]:
    """A prompt and text of a Llama in bf16 beside its peers; prompts of new lengths alone.

    Peers without arithmetic of bf16 would take half an hour for the new lengths.
    """
    size = "tiny" if options.size == "tiny" else "1.2B"
    bench = _beside_peers(_llama(folder, size), threads, limits, options)
    rows = bench.generation(options.prompt_lengths[:1], options.context, options.new_tokens)
    rows += replace(bench, peers={}).new_lengths(options.new_lengths)
    return [_named(row, f"Llama {size} bf16") for row in rows]


def _quantized_rows(
    folder: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> list[Row]:
    """GGUF files of 8 and 4 bits, which llama.cpp reads as well; batches of texts of GPT-2."""
    if importlib.util.find_spec("gguf") is None:
        _say("no library `gguf`: no rows of quantized weights")
        return []
    from gguf_checkpoint import write_gguf  # noqa: PLC0415

    rows: list[Row] = []
    llama = "tiny" if options.size == "tiny" else "1.2B"
    checkpoints = {
        f"GPT-2 {options.size}": _gpt2(folder, options.size),
        f"Llama {llama}": _llama(folder, llama),
    }
    for (name, checkpoint), kind in itertools.product(checkpoints.items(), ("Q8_0", "Q4_0")):
        path = folder / f"{checkpoint.name}-{kind}.gguf"
        if not path.exists():
            _say(f"writing {path.name}")
            write_gguf(checkpoint, path, kind)
        bench = _beside_peers(path, threads, limits, options)
        found = bench.generation(options.prompt_lengths, options.context, options.new_tokens)
        if name.startswith("GPT-2"):
            for texts in options.texts[1:]:
                found += bench.decode(options.context, options.new_tokens, texts)
        rows += [_named(row, f"{name} {kind}") for row in found]
    return rows


def _rounded_rows(
    folder: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> list[Row]:
    """Products of bf16 beside the peers in bf16, and beside our own products of f32."""
    rows: list[Row] = []
    llama = "tiny" if options.size == "tiny" else "1.2B"
    checkpoints = {
        f"GPT-2 {options.size}": _gpt2(folder, options.size, "bf16"),
        f"Llama {llama}": _llama(folder, llama),
    }
    for name, checkpoint in checkpoints.items():
        peers = load_peers(checkpoint, threads)
        if importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf"):
            from gguf_checkpoint import write_gguf  # noqa: PLC0415

            path = folder / f"{checkpoint.name}.gguf"
            if not path.exists():
                write_gguf(checkpoint, path)
            peers |= load_peers(path, threads)
        peers["gptrs f32"] = OwnModel(gptrs.load_model(checkpoint, options.backend, threads))
        model = gptrs.load_model(checkpoint, options.backend, threads, precision="bf16")
        bench = ModelBench(model, threads, options.rounds, limits, peers, _say)
        found = bench.generation(options.prompt_lengths[:1], options.context, options.new_tokens)
        rows += [_named(row, f"{name} precision bf16") for row in found if row.unit == "tok/s"]
    return rows


def _llama(folder: Path, size: str) -> Path:
    """Return the folder of a Llama in bf16, which is made when it is first needed."""
    path = folder / f"llama-{size}"
    return path if path.exists() else save_llama(path, size)


def _beside_peers(
    path: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> ModelBench:
    peers = load_peers(path, threads)
    model = gptrs.load_model(path, options.backend, threads)
    return ModelBench(model, threads, options.rounds, limits, peers, _say)


class OwnModel:
    """Another model of ours in the place of a peer."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.load_seconds = model.load_seconds

    def prefill(self, prompts: Iterator[list[int]]) -> BenchCase:
        """See `PeerModel`."""
        return Prefill(self._model, prompts)

    def decode(self, context: int, count: int, texts: int = 1) -> DecodeCase:
        """See `PeerModel`."""
        return Decode(self._model, context, count, texts)


def _vision_rows(
    folder: Path, threads: int, limits: MachineLimits, options: argparse.Namespace
) -> list[Row]:
    """The networks of `vision.py`, which prints the medians of all cases."""
    script = _HERE / "vision.py"
    if not script.exists():
        return []
    _say(f"networks, {threads} threads")
    command = [
        sys.executable,
        str(script),
        "--threads",
        str(threads),
        "--rounds",
        str(options.rounds),
    ]
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


_PARTS = {
    "gpt2": _model_rows,
    "texts": _texts_rows,
    "bf16": _half_rows,
    "llama": _llama_rows,
    "quantized": _quantized_rows,
    "precision": _rounded_rows,
    "networks": _vision_rows,
}
"""The parts of the set that run for each number of threads."""


def _named(row: Row, model: str) -> Row:
    return Row(**{**row.as_json(), "work": f"{model}: {row.work}"})


def library_versions(*others: str) -> dict[str, str]:
    """Return the versions of what is installed of the libraries that are measured."""
    found = {}
    for name in (*_LIBRARIES, *others):
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
