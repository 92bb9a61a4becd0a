"""How long the optimizer takes for programs of growing size: the layers of a transformer."""

from __future__ import annotations

import time

from gptrs import functionals as F
from gptrs.capture.graph import Argument, GraphSlice
from gptrs.capture.tensor import Tensor
from gptrs.ir import Program, dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer import optimize
from gptrs.optimizer.pipeline import instruction_count

LAYERS = (4, 8, 16, 32, 64, 128, 256)
WIDTH, HEADS, LENGTH = 8, 2, 4
RUNS = 3


def transformer(layers: int) -> Program:
    """The captured program of `layers` blocks on tiny tensors, each with weights of its own."""
    leaves: list[Argument] = []

    def weight(*shape: int) -> Tensor:
        leaves.append(Argument(TensorType(dtypes.f32, shape), len(leaves), None))
        return Tensor(leaves[-1])

    def heads(x: Tensor) -> Tensor:
        return F.transpose(F.reshape(x, (1, LENGTH, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    x = weight(1, LENGTH, WIDTH)
    for _ in range(layers):
        normal = F.layer_norm(x, weight(WIDTH), weight(WIDTH))
        projected = F.linear(normal, weight(3 * WIDTH, WIDTH), weight(3 * WIDTH))
        query, key, value = (heads(part) for part in F.split(projected, 3))
        mixed = F.attention(query, key, value, F.causal_mask(LENGTH, LENGTH))
        merged = F.reshape(F.transpose(mixed, (0, 2, 1, 3)), (1, LENGTH, WIDTH))
        x = F.add(x, F.linear(merged, weight(WIDTH, WIDTH), weight(WIDTH)))
        wide = F.linear(F.layer_norm(x, weight(WIDTH), weight(WIDTH)), weight(4 * WIDTH, WIDTH))
        x = F.add(x, F.linear(F.gelu(wide, "tanh"), weight(WIDTH, 4 * WIDTH), weight(WIDTH)))
    return GraphSlice([x.source]).lower(leaves)


def main() -> None:
    """Print the best of a few runs for each size."""
    print(f"{'instructions':>12} {'after':>8} {'ms':>9} {'us each':>9}")
    for layers in LAYERS:
        program = transformer(layers)
        size = instruction_count(program)
        seconds = float("inf")
        for _ in range(RUNS):
            started = time.perf_counter()
            optimized = optimize(program)
            seconds = min(seconds, time.perf_counter() - started)
        after = instruction_count(optimized)
        print(f"{size:12} {after:8} {1e3 * seconds:9.1f} {1e6 * seconds / size:9.1f}", flush=True)


if __name__ == "__main__":
    main()
