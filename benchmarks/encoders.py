"""Measure encoders of texts and images beside other libraries, in turns in one process.

    python benchmarks/encoders.py [--threads 1 2] [--rounds 7] [--only texts images] [--name NAME]

A sentence embedder of the shape of all-MiniLM-L6-v2 gives vectors to texts of lengths that a user
has, one by one and 64 unequal ones at once: from strings to vectors of length 1, tokens and pooling
included, on each side. ViT-B/16 has one image. Weights are random. sentence-transformers and torch
are always there; ONNX Runtime and OpenVINO take part where they and `onnxscript` are installed.
`--name` writes the results to `results/<date>-<name>`, as JSON and as a table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from encoder_models import EMBED_AT_ONCE, Cases, image_cases, save_embedder, text_cases
from report import markdown, write_report
from run import library_versions

import gptrs
from gptrs_cli.commands.bench import machine_fields
from gptrs_observe.measure.step_work import Row, measure_limits

_LEAST_SECONDS = 0.05
"""A turn of one library: as many calls as take this long, after one that is not counted."""
_PAUSE = 0.02
"""Seconds between turns: the threads of some libraries keep a processor busy after their work."""
WORDS = (8, 40, 120)
"""Words of one text: a query, a paragraph, a passage."""
UNEQUAL, SHORTEST, LONGEST = 64, 3, 120


def main() -> None:
    """Measure all cases, print a table and write it if it has a name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=["texts", "images"], default=None)
    parser.add_argument("--name", help="of the machine, for the files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    now = datetime.now(UTC)
    only = options.only or ["texts", "images"]
    limits = [measure_limits(gptrs.get_backend("numba", threads)) for threads in options.threads]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for threads in options.threads:
            for work, cases in _work(Path(folder), threads, only):
                rows += measured(work, cases, threads, options.rounds)
    result = {
        "date": f"{now:%Y-%m-%d}",
        "command": "python benchmarks/encoders.py " + " ".join(sys.argv[1:]),
        "machine": machine_fields(limits[0]),
        "limits": [machine_fields(each) for each in limits],
        "versions": library_versions("sentence-transformers"),
        "rows": [row.as_json() for row in rows],
    }
    print(markdown(result))
    if options.name:
        for file in write_report(options.out / f"{now:%Y-%m-%d}-{options.name}", result):
            print(f"written: {file}")


def _work(folder: Path, threads: int, only: list[str]) -> list[tuple[str, Cases]]:
    """Return what is measured, and who does it."""
    work: list[tuple[str, Cases]] = []
    if "texts" in only:
        embedders = text_cases(save_embedder(folder / "embedder"), threads)
        random = np.random.default_rng(0)
        for count in WORDS:
            text = [_text(count, random)]
            work.append((f"MiniLM f32: one text of {count} words", _given(embedders, text)))
        lengths = random.integers(SHORTEST, LONGEST + 1, UNEQUAL)
        texts = [_text(int(count), random) for count in lengths]
        title = f"MiniLM f32: {UNEQUAL} texts of {SHORTEST} to {LONGEST} words"
        work.append((f"{title}, {EMBED_AT_ONCE} at once", _given(embedders, texts)))
    if "images" in only:
        work.append(("ViT-B/16 f32: one image of 224x224", image_cases(folder / "vit", threads)))
    return work


def _text(words: int, random: np.random.Generator) -> str:
    return " ".join(f"word{number}" for number in random.integers(0, 2000, words))


def _given(embedders: dict[str, Callable[[list[str]], np.ndarray]], texts: list[str]) -> Cases:
    return {who: lambda embed=embed: embed(texts) for who, embed in embedders.items()}


def measured(work: str, cases: Cases, threads: int, rounds: int) -> list[Row]:
    """Return a row for each library beside ours; exits if a result differs from ours."""
    ours, *results = [run() for run in cases.values()]
    for who, result in zip(list(cases)[1:], results, strict=True):
        off = np.abs(result - ours).max() / np.abs(ours).max()
        if not off < 1e-3:  # NaN, too
            raise SystemExit(f"{work}: {who} differs by {off:.1e}")
    times: dict[str, list[float]] = {who: [] for who in cases}
    for _ in range(rounds):
        for who, run in cases.items():
            time.sleep(_PAUSE)
            run()
            times[who].append(_seconds(run))
    first, *others = {who: statistics.median(each) for who, each in times.items()}.items()
    rows: list[Row] = []
    for who, theirs in others:
        rows.append(Row(work, threads, 1e3 * first[1], "ms", 1e3 * theirs, who, theirs / first[1]))
        print(f"{work}, threads {threads}: {1e3 * first[1]:.2f} ms, {who} {1e3 * theirs:.2f} ms"
              f" ({theirs / first[1]:.2f}x)", file=sys.stderr, flush=True)  # fmt: skip
    return rows


def _seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a call, over as many as take `_LEAST_SECONDS`."""
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < _LEAST_SECONDS or not count:
        run()
        count += 1
    return passed / count


if __name__ == "__main__":
    main()
