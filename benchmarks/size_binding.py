"""Measure what new sizes cost a compiled program of all sizes: 12 layers, on the numba backend.

    python benchmarks/size_binding.py

The step is that of a GPT-2 with narrow layers, so that binding shows. `same` runs it on as many
tokens each time, `new` on another number each time; both on one thread.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable

import numpy as np

import gptrs
from gptrs import Tensor
from gptrs import functionals as F

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 12, 2, 24, 50, 128
ROUNDS = 400


def layers() -> list[dict[str, Tensor]]:
    """Random weights of all layers, by name."""
    rng = np.random.default_rng(0)
    shapes = {
        "scale": (WIDTH,), "bias": (WIDTH,), "qkv": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH),
        "up": (4 * WIDTH, WIDTH), "down": (WIDTH, 4 * WIDTH),
    }  # fmt: skip
    return [
        {
            name: gptrs.tensor(rng.standard_normal(shape).astype(np.float32))
            for name, shape in shapes.items()
        }
        for _ in range(LAYERS)
    ]


WEIGHTS = layers()
TABLE = gptrs.tensor(np.ones((VOCABULARY, WIDTH), np.float32))


@gptrs.jit(dynamic={"tokens": ("N",)})
def step(tokens: Tensor) -> Tensor:
    """The logits of the last token."""
    x, (length,) = F.embedding(tokens, TABLE), tokens.shape
    for layer in WEIGHTS:
        normal = F.layer_norm(x, layer["scale"], layer["bias"])
        parts = F.reshape(F.linear(normal, layer["qkv"]), (1, length, 3, HEADS, WIDTH // HEADS))
        query, key, value = (
            F.transpose(F.squeeze(F.slice_axis(parts, 2, i, 1), 2), (0, 2, 1, 3)) for i in range(3)
        )
        heads = F.attention(query, key, value, causal=True)
        x = x + F.linear(F.reshape(F.transpose(heads, (0, 2, 1, 3)), (length, WIDTH)), layer["out"])
        normal = F.layer_norm(x, layer["scale"], layer["bias"])
        x = x + F.linear(F.gelu(F.linear(normal, layer["up"])), layer["down"])
    return F.linear(F.slice_axis(x, 0, length - 1, 1), TABLE)


def median(sizes: Iterable[int]) -> float:
    """Milliseconds a step."""
    taken: list[float] = []
    for size in sizes:
        tokens = gptrs.tensor(np.zeros(size, np.int64))
        started = time.perf_counter()
        step(tokens).numpy()
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken)


def main() -> None:
    """Print both medians and their difference."""
    median([CONTEXT // 2, CONTEXT])
    same = median([CONTEXT // 2] * ROUNDS)
    new = median(CONTEXT // 2 + (i % 2 or -1) for i in range(ROUNDS))
    programs = step.compiled
    print(f"same {same:.3f} ms, new {new:.3f} ms: {new - same:+.3f} ms, {programs} program(s)")


if __name__ == "__main__":
    os.environ["GPTRS_NUM_THREADS"] = "1"
    main()
