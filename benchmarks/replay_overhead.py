"""Measure what Python costs in one decode step: of a 12-layer model, and of the demo model.

    python benchmarks/replay_overhead.py [--json]

The 12-layer model is loaded, captured and optimized for real; only the backend computes nothing:
its executables hand out ready-made results. What remains is the Python around a replay: reading the
arguments, finding the step, binding 148 weights and 24 cache buffers, wrapping the results. The
demo model runs on the `numba` backend with one thread; from its step, what passes inside of
compiled code is subtracted, so that binding addresses counts as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from safetensors.numpy import save_file

import gptrs
from gptrs.api.backends import Buffer, InputRole
from gptrs.api.models import Params
from gptrs.api.programs import Program
from gptrs.nn.page_buffers import PagedTexts
from gptrs.plugins.manager import manager
from gptrs_backend_numba.codegen import interpreter
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_observe.measure.step_work import Row
from gptrs_runtime.sources.hf_directory import HfDirectory

KIND = "gpt2"
LAYERS, WIDTH, VOCABULARY, CONTEXT = 12, 24, 50, 128
STEPS, ROUNDS = 50, 9


class IdleExecutable:
    """Returns zeros made at compile time, whatever the inputs."""

    def __init__(self, program: Program) -> None:
        types = [value.type for value in program.main.body.results]
        self._results = [np.zeros(type_.shape, type_.dtype.numpy) for type_ in types]

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """The ready-made results."""
        return list(self._results)


class IdleBackend:
    """Takes every program and computes nothing."""

    name = "idle"

    def refusal(self, op: object, operands: object, results: object) -> str | None:
        """Nothing is refused."""
        return None

    def compile(self, program: Program, roles: Sequence[InputRole]) -> IdleExecutable:
        """An executable that does not compute."""
        return IdleExecutable(program)

    def to_device(self, array: np.ndarray) -> Buffer:
        """The array itself."""
        return array

    def to_host(self, buffer: Buffer) -> np.ndarray:
        """The array itself."""
        return np.asarray(buffer)


def save_model(folder: Path) -> None:
    """A directory with the structure of a 12-layer model and weights of zero."""
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (VOCABULARY, WIDTH),
        "wpe.weight": (CONTEXT, WIDTH),
    }
    layer = {"attn.c_attn": 3, "attn.c_proj": 1, "mlp.c_fc": 4}
    for index in range(LAYERS):
        for name, factor in layer.items():
            shapes[f"h.{index}.{name}.weight"] = (WIDTH, factor * WIDTH)
            shapes[f"h.{index}.{name}.bias"] = (factor * WIDTH,)
        shapes[f"h.{index}.mlp.c_proj.weight"] = (4 * WIDTH, WIDTH)
        shapes[f"h.{index}.mlp.c_proj.bias"] = (WIDTH,)
    norms = ["ln_f", *(f"h.{i}.{norm}" for i in range(LAYERS) for norm in ("ln_1", "ln_2"))]
    for norm in norms:
        shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (WIDTH,)
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(arrays, folder / "model.safetensors")
    settings = {"model_type": KIND, "n_layer": LAYERS, "n_head": 2, "n_embd": WIDTH}
    settings |= {"vocab_size": VOCABULARY, "n_positions": CONTEXT}
    (folder / "config.json").write_text(json.dumps(settings))


def measure() -> dict[str, float]:
    """Median and best milliseconds of a step, over rounds of steps that stay in one bucket."""
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch))
        directory = HfDirectory.open(Path(scratch))
        params = Params(directory.weights, backend=IdleBackend())
        model = manager().model_factory(KIND)(directory.config, params)
        times: list[float] = []
        for _ in range(ROUNDS):
            text = PagedTexts(model, 1, STEPS + 1)
            text.append([[0]])
            started = time.perf_counter()
            for _ in range(STEPS):
                text.append([[0]])
            times.append((time.perf_counter() - started) / STEPS * 1e3)
    return {"median_ms": statistics.median(times[1:]), "best_ms": min(times[1:])}


class _TimedKernel:
    """A compiled function that adds up the seconds that it keeps the processor."""

    def __init__(self, kernel: Callable[..., int]) -> None:
        self._kernel = kernel
        self.seconds = 0.0

    def __call__(self, *arguments: int) -> int:
        started = time.thread_time()
        result = self._kernel(*arguments)
        self.seconds += time.thread_time() - started
        return result


def demo_row() -> Row:
    """Microseconds of Python for each token that the demo model decodes: the median of rounds.

    Time of the processor: what other processes take of it does not count.
    """
    interpret = _TimedKernel(compiled(interpreter.run_schedule))
    with mock.patch("gptrs_backend_numba.run.executable.compiled", return_value=interpret):
        model = gptrs.load_model(None, "numba", 1).causal_lm()
        times: list[float] = []
        for _ in range(3 * ROUNDS):
            text = PagedTexts(model, 1, STEPS + 1)
            text.append([[0]])
            interpret.seconds, started = 0.0, time.thread_time()
            for _ in range(STEPS):
                text.append([[0]])
            elapsed = time.thread_time() - started - interpret.seconds
            times.append(elapsed / STEPS * 1e6)
    return Row("Python for a token of the demo model", 1, statistics.median(times[1:]), "us")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    result = {**measure(), "demo_us": demo_row().ours}
    if parser.parse_args().json:
        print(json.dumps(result))
    else:
        print(
            f"Python per decode step of {LAYERS} layers: "
            f"median {result['median_ms']:.3f} ms, best {result['best_ms']:.3f} ms; "
            f"of the demo model on `numba`: median {result['demo_us']:.0f} us"
        )


if __name__ == "__main__":
    main()
