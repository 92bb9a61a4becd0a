"""Kill training runs at random moments, resume each, and compare the bits with those never killed.

A model, the bundled one unless told, learns from a random stream, with dropout: an adapter, all of
its weights, and weights from nothing. A child is killed with SIGKILL some updates after its start,
a random moment later: in an update, while a state is written, or after.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from gptrs_runtime.content_digest import model_path
from gptrs_runtime.sources.find_model import find_model
from gptrs_train.learner import LowRank
from gptrs_train.runs import Data, Outputs, Watch, finetune, train
from gptrs_train.saved_run import METRICS, STATE
from gptrs_train.trainer import Settings

KINDS = ("lora", "full", "new")
"""What learns: an adapter, all weights, or all weights of a new model."""
_SHORTEST, _LONGEST = 1, 5
"""Updates that a child makes before it is killed; each state is of every second update."""
_DELAY = 0.3
"""Seconds after an update within which a child is killed: longer than an update takes."""


def main() -> int:
    """Run as the command line says; return 1 if a bit differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="kills in all (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="updates of a run (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (%(default)s)")
    parser.add_argument("--model", default="demo", help="what is trained (%(default)s)")
    parser.add_argument("--child", nargs=4, metavar="ARG", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.model, *options.child, steps=options.steps)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        differing = compare(Path(folder), options.model, options.kills, options.steps, options.seed)
    print(f"{options.kills} kills, {differing} bits differ")
    return int(differing > 0)


def child(model: str, data: str, out: str, what: str, how: str, *, steps: int) -> None:
    """Run, or resume, one training; print a line after each update."""

    def settings(length: int) -> Settings:
        return Settings(
            steps=steps, batch=2, length=16, rate=1e-3, warmup=5, accumulate=2, dropout=0.1,
            attention_dropout=0.1, save_every=2, eval_every=7, eval_batches=2, patience=50,
        )  # fmt: skip

    watch = Watch(tell=lambda status: print(status.step, flush=True))
    outputs = Outputs(Path(out), how == "resume")
    if what == "new":
        config = find_model(model_path(model)).path
        train(config, Data(Path(data)), outputs, settings, watch=watch)
        return
    learnt = LowRank(4, 8.0) if what == "lora" else ["*"]
    finetune(model, Data(Path(data)), outputs, learnt, settings, watch=watch)


def compare(
    folder: Path,
    model: str,
    kills: int,
    steps: int,
    seed: int,
    kinds: Sequence[str] = KINDS,
) -> int:
    """Return how many bits of states, results and measurements differ, of runs of `kinds`."""
    data = folder / "train.bin"
    start = partial(_started, model, data, steps)
    np.random.default_rng(1).integers(0, 64, 20_000).astype("<u2").tofile(data)
    draw = random.Random(seed)
    whole = {what: folder / f"whole-{what}" for what in kinds}
    for what, out in whole.items():
        start(out, what, "new").communicate()
    differing = number = done = 0
    while done < kills:
        what = kinds[number % len(kinds)]
        out = folder / f"killed-{number}"
        done += _killed(start, out, what, kills - done, draw)
        differing += _differing(whole[what], out)
        number += 1
        print(f"{done} kills, {differing} bits differ", flush=True)
    return differing


def _killed(
    start: Callable[[Path, str, str], subprocess.Popen[str]],
    out: Path,
    what: str,
    most: int,
    draw: random.Random,
) -> int:
    """Run a training to its end with at most so many kills; return how many there were."""
    kills = 0
    while kills < most:
        process = start(out, what, "resume" if _has_state(out) else "new")
        assert process.stdout is not None, "it is a pipe"
        for _ in range(draw.randint(_SHORTEST, _LONGEST)):
            process.stdout.readline()
        time.sleep(draw.random() * _DELAY)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode == 0:  # it was quicker
            return kills
        kills += 1
    start(out, what, "resume" if _has_state(out) else "new").communicate()
    return kills


def _has_state(out: Path) -> bool:
    return (out.with_name(f"{out.name}.run") / STATE).is_file()


def _started(
    model: str, data: Path, steps: int, out: Path, what: str, how: str
) -> subprocess.Popen[str]:
    args = [sys.executable, __file__, "--model", model, "--steps", str(steps)]
    args += ["--child", str(data), str(out), what, how]
    return subprocess.Popen(args, stdout=subprocess.PIPE, text=True)


def _differing(one: Path, other: Path) -> int:
    """Return how many bits differ in what two runs have written, apart from times."""
    found = 0
    for name in ("adapter_model.safetensors", "model.safetensors"):
        if (one / name).is_file():
            found += _of_arrays(load_file(one / name), load_file(other / name))
    runs = [each.with_name(f"{each.name}.run") for each in (one, other)]
    found += _of_arrays(*(load_file(run / STATE) for run in runs))
    return found + (_measured(runs[0]) != _measured(runs[1]))


def _of_arrays(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> int:
    if one.keys() != other.keys():
        raise ValueError("the runs have other tensors")
    found = 0
    for name, array in one.items():
        pair = [np.frombuffer(each.tobytes(), np.uint8) for each in (array, other[name])]
        found += int(np.unpackbits(pair[0] ^ pair[1]).sum())
    return found


def _measured(run: Path) -> list[dict[str, object]]:
    lines = (run / METRICS).read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


if __name__ == "__main__":
    raise SystemExit(main())
