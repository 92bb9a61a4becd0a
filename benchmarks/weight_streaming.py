"""Measure a model of 1.1 billion parameters in bf16 that runs in less memory than it takes.

    python benchmarks/weight_streaming.py [--folder DIR] [--tokens N] [--budgets off,600MB,25%]

The model has the shape of TinyLlama and random weights, 2.2 GB, written to DIR (default: a folder
that is deleted in the end). Each budget runs in a process of its own, twice, since the first one
compiles kernels; tokens must be the same in all of them. "memory" is the most that the process held
at one time (VmHWM), without what the same process takes for the same work of a model of 4 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from llama_checkpoint import save_llama

import gptrs
from gptrs.nn.page_buffers import PagedTexts

_PROMPT = 32


def measure(folder: Path, budget: str, count: int) -> dict[str, object]:
    """Load, read a prompt, make `count` tokens: what that takes, in this process."""
    started = time.perf_counter()
    model = gptrs.load_model(folder, "numba", weight_budget=budget)
    loaded = time.perf_counter() - started
    lm = model.causal_lm()
    text = PagedTexts(lm, 1, _PROMPT + count)
    tokens = np.arange(_PROMPT, dtype=np.int64)[None] * 7 % lm.vocab_size
    started = time.perf_counter()
    logits = text.append(tokens)
    first = time.perf_counter() - started
    made, seconds = [int(logits[0].argmax())], list[float]()
    while len(made) < count:
        started = time.perf_counter()
        logits = text.append([[made[-1]]])
        seconds.append(time.perf_counter() - started)
        made.append(int(logits[0].argmax()))
    return {
        "tokens": made,
        "load_s": loaded,
        "prompt_s": first,
        "token_s": float(np.median(seconds[1:])),
        "peak_mb": _peak_mb(),
        "held_mb": model.streamer.most_held / 1e6 if model.streamer else None,
        "read_mb": model.streamer.bytes_read / count / 1e6 if model.streamer else None,
    }


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def _in_process(folder: Path, budget: str, count: int) -> dict[str, object]:
    command = [sys.executable, __file__, "--one", budget, "--folder", str(folder)]
    done = subprocess.run([*command, "--tokens", str(count)], capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return json.loads(done.stdout)


def _compare(folder: Path, budgets: list[str], count: int) -> None:
    with tempfile.TemporaryDirectory() as small:
        tiny = save_llama(Path(small) / "tiny", "tiny")
        base = [_in_process(tiny, "off", count) for _ in range(2)][-1]["peak_mb"]
    assert isinstance(base, float)
    print(f"memory of a tiny model: {base:.0f} MB")
    expected: object = None
    for budget in budgets:
        found = [_in_process(folder, budget, count) for _ in range(2)][-1]
        expected = expected or found["tokens"]
        same = "same" if found["tokens"] == expected else "OTHER"
        token, peak = found["token_s"], found["peak_mb"]
        assert isinstance(token, float)
        assert isinstance(peak, float)
        print(
            f"budget {budget}: loaded in {found['load_s']:.2f} s, prompt {found['prompt_s']:.2f} s,"
            f" {1 / token:.2f} tokens/s, memory {peak - base:.0f} MB (held {found['held_mb']},"
            f" read {found['read_mb']} a step), {same} tokens",
            flush=True,
        )


def main() -> None:
    """See the docstring of the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the model is, or is written to")
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--budgets", default="off,600MB,25%")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.folder, given.one, given.tokens)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary) / "llama"
        if not (folder / "config.json").exists():
            save_llama(folder, "1.1B")
        _compare(folder, given.budgets.split(","), given.tokens)


if __name__ == "__main__":
    main()
