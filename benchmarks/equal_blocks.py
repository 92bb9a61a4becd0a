"""Compare what compiling a model of 48 layers costs with what one of 12 costs, on numba.

    python benchmarks/equal_blocks.py

The models are GPT-2s with narrow layers and random weights. Measured is the CPU time of the first
two steps, a prompt and a token after it, in processes of their own, the best of a few: with
kernels on disk but no programs (`first`), and with both (`second`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import gptrs
from gptrs.nn import PagedTexts

LAYERS = (12, 48)
WIDTH, HEADS, VOCABULARY, CONTEXT = 64, 4, 512, 256
PROMPT = [list(range(5))]
RUNS = 5


def save_model(folder: Path, layers: int) -> None:
    """Write a model of random weights."""
    rng = np.random.default_rng(0)
    shapes = {
        "wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (CONTEXT, WIDTH),
        "ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,),
    }  # fmt: skip
    products = {
        "attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH),
        "mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH),
    }  # fmt: skip
    for layer in range(layers):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{layer}.{norm}.{part}": (WIDTH,) for part in ("weight", "bias")}
        for name, shape in products.items():
            shapes[f"h.{layer}.{name}.weight"] = shape
            shapes[f"h.{layer}.{name}.bias"] = shape[1:]
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) / 16 for name, shape in shapes.items()
    }
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    config = {
        "model_type": "gpt2", "n_layer": layers, "n_embd": WIDTH, "n_head": HEADS,
        "vocab_size": VOCABULARY, "n_positions": CONTEXT,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def measure(folder: str) -> None:
    """Print the CPU seconds of the first two steps of this process."""
    model = gptrs.load_model(folder, backend="numba", threads=1)
    texts = PagedTexts(model.causal_lm(), 1, 64)
    started = time.process_time()
    texts.append(PROMPT)
    texts.append([[1]])
    print(time.process_time() - started)


def seconds(folder: Path, cache: Path, programs: bool) -> float:
    """Return those of a new process, with or without the programs of earlier ones."""
    if not programs:
        shutil.rmtree(cache / "programs", ignore_errors=True)
    environment = {**os.environ, "GPTRS_CACHE_DIR": str(cache), "GPTRS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(done.stdout)


def main() -> None:
    """Print milliseconds for each number of layers, and their ratio."""
    with tempfile.TemporaryDirectory() as made:
        folders = [Path(made) / str(layers) for layers in LAYERS]
        cache = Path(made) / "cache"
        for folder, layers in zip(folders, LAYERS, strict=True):
            save_model(folder, layers)
            seconds(folder, cache, programs=True)  # compiles the kernels
        for title, programs in (("first", False), ("second", True)):
            for folder in folders:
                seconds(folder, cache, programs)
            rounds = [[seconds(each, cache, programs) for each in folders] for _ in range(RUNS)]
            few, many = map(min, zip(*rounds, strict=True))
            listed = f"{1e3 * few:6.0f} ms of 12 layers, {1e3 * many:6.0f} ms of 48"
            print(f"{title:>6} process: {listed}, {many / few:.2f} x", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        main()
