"""Differentiate random programs; compare both modes, and backends with the reference backend.

Programs are of f64, integers and `i1`, so that only mistakes make a difference of 1e-6.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from gptrs.backend.contract import Backend, InputRole
from gptrs.capture.compilation import compile_program
from gptrs.errors import GptrsError
from gptrs.ir.dtypes import INTEGERS, f64, i1
from gptrs.ir.program import Program, verify
from gptrs.plugins.manager import manager
from gptrs_conformance.derivatives import derived_program, far_apart
from gptrs_conformance.program_generator import random_inputs, random_program

CHUNK = 100
DTYPES = (f64, i1, *INTEGERS)


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as `arguments` say and print what came of it; 1 if a derivative is wrong."""
    options = _parser().parse_args(arguments)
    seeds = range(options.seed, options.seed + options.programs)
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    names = options.backends.split(",")
    compared, flaws, started = 0, dict[int, str](), time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        for count, found in pool.map(partial(_examine, names, options.size), chunks):
            compared += count
            flaws |= found
    seconds = time.monotonic() - started
    print(f"{len(seeds):8} programs, {compared} with derivatives, on ref and {options.backends}")
    print(f"{len(flaws):8} wrong, in {seconds:.0f} s")
    for seed, flaw in sorted(flaws.items())[:20]:
        print(f"seed {seed}: {flaw}")
    return 1 if flaws else 0


def _examine(names: Sequence[str], size: int, seeds: Iterable[int]) -> tuple[int, dict[int, str]]:
    """Return how many programs have derivatives, and what is wrong by seed."""
    backends = [manager().get_backend(name) for name in names]
    compared, flaws = 0, dict[int, str]()
    for seed in seeds:
        try:
            flaw = flaw_of(seed, backends, size)
        except GptrsError as error:
            flaw = f"{type(error).__name__}: {error}"
        compared += flaw is not None
        if flaw:
            flaws[seed] = flaw
    return compared, flaws


def flaw_of(seed: int, backends: Sequence[Backend], size: int) -> str | None:
    """Return what is wrong with the derivatives of a program; None if it has none."""
    program = random_program(seed, size=size, dtypes=DTYPES)
    if not any(param.type.dtype is f64 for param in program.main.body.params):
        return None
    derived = derived_program(program, seed)
    if derived is None:
        return None
    verify(derived)
    inputs = list(random_inputs(program, seed).values())
    *wanted, reverse, forward = _results(manager().get_backend("ref"), derived, inputs)
    if np.isfinite(reverse) and np.isfinite(forward) and far_apart(forward, reverse):
        return f"forward mode {forward}, reverse mode {reverse}"
    for backend in backends:
        *found, _, _ = _results(backend, derived, inputs)
        for at, (own, want) in enumerate(zip(found, wanted, strict=True)):
            if far_apart(own, want):
                return f"cotangent {at} on {backend.name}: {own}, on ref: {want}"
    return ""


def _results(backend: Backend, program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    roles = [InputRole.ARGUMENT] * len(inputs)
    executable = compile_program(program, backend, roles)
    buffers = [backend.to_device(array) for array in inputs]
    return [np.array(backend.to_host(result)) for result in executable.run(buffers)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=15, help="instructions of a program")
    parser.add_argument("--backends", default="numba")
    parser.add_argument("--processes", type=int, default=2)
    return parser


if __name__ == "__main__":
    sys.exit(main())
