"""Measure the backend `jax` beside the same GPT-2 written by hand in `jax.numpy`.

    python benchmarks/jax_overhead.py [--size tiny] [--rounds 7] [--json]

Both run in this process on the CPU platform, with the same arrays of weights, and take turns: a
prompt of 128 tokens, then 24 single ones. The ratios are medians over the turns of what ours takes
by what the other takes, once of the time of the processors, which other processes disturb least,
and once of the clock.

`python_us` is what Python costs us in a step: XLA's part is replaced by ready-made results.
`compilations` counts the programs that `gptrs.generate` needs for ten prompts of unequal lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from gpt2_checkpoint import SIZES, save_gpt2
from jax import Array
from jax_gpt2 import HandWritten

import gptrs
from gptrs.nn.page_buffers import PagedTexts
from gptrs_backend_jax.executable import JaxExecutable
from gptrs_runtime.loaded_model import LoadedModel

PROMPT, STEPS, LIMIT = 128, 24, 192
LENGTHS = (3, 9, 17, 24, 31, 40, 57, 70, 99, 121)
"""Prompts of unequal lengths, each new."""
Append = Callable[[list[int]], np.ndarray]
Times = tuple[float, float]
"""Seconds of all processors together, and of the clock."""


class Ours:
    """A text of the model on our backend."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model.causal_lm()
        self.begin()

    def begin(self) -> None:
        """Forget the text."""
        self._text = PagedTexts(self._model, 1, LIMIT)

    def append(self, tokens: list[int]) -> np.ndarray:
        """Return the logits [V] after the last of these tokens."""
        return self._text.append([tokens])[0]


class Idle:
    """Stands for what XLA compiled, and gives the results of one real run again and again."""

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call
        self._made: object = None

    def __call__(self, *inputs: object) -> object:
        """Return what the first call gave."""
        if self._made is None:
            self._made = self._call(*inputs)
        return self._made


def turn(text: Ours | HandWritten) -> tuple[Times, Times]:
    """Return what the prompt takes, and what a step after it takes."""
    text.begin()
    prompt = timed(text.append, [list(range(PROMPT))], 1)
    steps = timed(text.append, [[token] for token in range(STEPS)], STEPS)
    return prompt, steps


def timed(append: Append, inputs: Sequence[list[int]], count: int) -> Times:
    """Return the seconds of one of `count` calls."""
    processors, clock = time.process_time(), time.perf_counter()
    for tokens in inputs:
        append(tokens)
    return (time.process_time() - processors) / count, (time.perf_counter() - clock) / count


def compared(ours: Ours, theirs: HandWritten, rounds: int) -> dict[str, float]:
    """Return milliseconds of both for a prompt and a step, and the ratios."""
    turn(ours), turn(theirs)  # compile
    found: dict[str, list[tuple[Times, Times]]] = {"ours": [], "theirs": []}
    for number in range(rounds):
        pair = [("ours", ours), ("theirs", theirs)]
        for name, text in pair if number % 2 else pair[::-1]:
            found[name].append(turn(text))
    result: dict[str, float] = {}
    for at, work in enumerate(("prefill", "decode")):
        for which, clock in enumerate(("cpu", "wall")):
            mine, other = ([times[at][which] for times in found[name]] for name in found)
            ratios = [a / b for a, b in zip(mine, other, strict=True)]
            result[f"{work}_{clock}_ms"] = statistics.median(mine) * 1e3
            result[f"{work}_{clock}_ms_by_hand"] = statistics.median(other) * 1e3
            result[f"{work}_{clock}_ratio"] = statistics.median(ratios)
    return result


def weights_of(executables: Sequence[object]) -> list[Array]:
    """Return the weights that our programs read; both models are to read the same arrays.

    Where they lie in memory changes a step by up to 7 %, whoever reads them.
    """
    return [
        array
        for each in executables
        for arrays in vars(each)["_weights"].values()
        for array in arrays
    ]


def python_us(ours: Ours, executables: Sequence[object]) -> float:
    """Return microseconds of Python for a step, the median of rounds; ours computes no more."""
    for each in executables:
        vars(each)["_call"] = Idle(vars(each)["_call"])
    times: list[float] = []
    ours.begin()
    ours.append([0])
    for _ in range(9):
        ours.begin()
        started = time.thread_time()
        for token in range(100):
            ours.append([token])
        times.append((time.thread_time() - started) / 100 * 1e6)
    return statistics.median(times)


def measure(size: str, rounds: int) -> dict[str, float]:
    """Return all figures."""
    made: list[object] = []
    make = JaxExecutable.__init__

    def counted(self: JaxExecutable, *arguments: object, **settings: object) -> None:
        made.append(self)
        make(self, *arguments, **settings)  # pyright: ignore[reportArgumentType]

    JaxExecutable.__init__ = counted  # pyright: ignore[reportAttributeAccessIssue]
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_gpt2(Path(scratch) / "model", size)
        model = gptrs.load_model(folder, backend="jax")
        result: dict[str, float] = {"compilations": compilations(model, made)}
        ours = Ours(model)
        config = SIZES[size]
        theirs = HandWritten(folder, config["n_layer"], config["n_head"], LIMIT)
        turn(ours)
        theirs.share(weights_of(made))
        result |= compared(ours, theirs, rounds)
        result["largest_difference"] = difference(ours, theirs)
        result["python_us"] = python_us(ours, made)
    return result


def compilations(model: LoadedModel, made: Sequence[object]) -> int:
    """Return how many of `made` come when texts are written after prompts of `LENGTHS`."""
    before = len(made)
    for number, length in enumerate(LENGTHS):
        prompt = [(number + 7 * at) % 400 for at in range(length)]
        gptrs.generate(model, prompt, max_tokens=3, temperature=0, ignore_eos=True)
    return len(made) - before


def difference(ours: Ours, theirs: HandWritten) -> float:
    """Return how far the logits of both are apart, relative to the largest."""
    worst = 0.0
    for text in (ours, theirs):
        text.begin()
    for tokens in ([5, 9, 2, 8], [4], [17]):
        mine, other = ours.append(tokens), theirs.append(tokens)
        worst = max(worst, float(np.abs(mine - other).max() / np.abs(other).max()))
    return worst


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=tuple(SIZES), default="124M")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ["GPTRS_JAX_PLATFORM"] = os.environ["JAX_PLATFORMS"] = "cpu"
    result = measure(given.size, given.rounds)
    if given.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name:<28} {value:10.4g}" for name, value in result.items()))


if __name__ == "__main__":
    main()
