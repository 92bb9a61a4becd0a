"""Measure the matrix product of the numba backend beside torch and NumPy.

    python benchmarks/gemm.py [--threads 1] [--dtype f32] [--rounds 15] [--json]

Each cell multiplies one left side (m, k) with many weights (k, n), `MEGABYTES` in all, so that the
caches of the core do not keep them. The cases alternate weight by weight, and the best time
of each for a single product counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable

import numpy as np
import torch

from gptrs.api.backends import InputRole
from gptrs.ir import parse_program
from gptrs_backend_numba.backend import create

ROWS = (1, 4, 16, 128, 512)
WEIGHTS = ((768, 2304), (768, 3072), (3072, 768), (768, 50257))
MEGABYTES = 128


def main() -> None:
    """Measure every cell and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16"), default="f32")
    parser.add_argument("--layout", choices=("in_out", "out_in"), default="in_out")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(options.threads))
    cells: list[dict[str, object]] = []
    for k, n in WEIGHTS:
        for m in options.rows:
            cells.append(measure(m, k, n, options))
            if not options.json:
                print(_line(cells[-1]), flush=True)
    if options.json:
        print(json.dumps({"machine": _machine(options.threads), "cells": cells}, indent=1))
    else:
        print(_machine(options.threads))


def measure(m: int, k: int, n: int, options: argparse.Namespace) -> dict[str, object]:
    """The best time of each case for one product, in microseconds."""
    size = 4 if options.dtype == "f32" else 2
    count = max(2, MEGABYTES * 2**20 // (k * n * size))
    random = np.random.default_rng(0)
    x = random.standard_normal((m, k), np.float32)
    shape = (k, n) if options.layout == "in_out" else (n, k)
    weights = [random.standard_normal(shape, np.float32) for _ in range(count)]
    cases = {"ours": _ours(x, weights, options)} | _torch(x, weights, options)
    if options.dtype == "f32":
        cases["numpy"] = _numpy(x, weights, options)
    best = dict.fromkeys(cases, float("inf"))
    # What other programs take from a single thread is then no part of its time.
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    for turn in range(options.rounds * count):
        for name, run in cases.items():
            begin = clock()
            run(turn % count)
            best[name] = min(best[name], clock() - begin)
    found = {f"{name}_us": 1e6 * seconds for name, seconds in best.items()}
    flops, nbytes = 2 * m * k * n, k * n * size
    return {
        "m": m, "k": k, "n": n, "dtype": options.dtype, "threads": options.threads, **found,
        "gflops": flops / best["ours"] / 1e9, "gbytes": nbytes / best["ours"] / 1e9,
    }  # fmt: skip


def _ours(
    x: np.ndarray, weights: list[np.ndarray], options: argparse.Namespace
) -> Callable[[int], object]:
    (m, k), dtype, axis = x.shape, options.dtype, int(options.layout == "out_in")
    held, n = ", ".join(map(str, weights[0].shape)), weights[0].shape[1 - axis]
    program = parse_program(
        f"ptir.v0.5\nfunc @main(%x: {dtype}[{m}, {k}], %w: {dtype}[{held}]) "
        f"-> {dtype}[{m}, {n}] {{\n  %0 = dot_general %x, %w "
        f"{{contract_lhs = [1], contract_rhs = [{axis}]}} : {dtype}[{m}, {n}]\n  return %0\n}}\n"
    )
    backend = create(options.threads)
    roles = (InputRole.ARGUMENT, InputRole.PARAMETER)
    executables = [backend.compile(program, roles) for _ in weights]
    numpy_type = program.main.body.params[0].type.dtype.numpy
    left, *rights = (array.astype(numpy_type) for array in (x, *weights))
    for executable, right in zip(executables, rights, strict=True):
        executable.run([left, right])
    return lambda turn: executables[turn].run([left, rights[turn]])


def _torch(
    x: np.ndarray, weights: list[np.ndarray], options: argparse.Namespace
) -> dict[str, Callable[[int], object]]:
    torch.set_num_threads(options.threads)
    type_ = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[options.dtype]
    left = torch.as_tensor(x).to(type_)
    rights = [torch.as_tensor(weight).to(type_) for weight in weights]
    if options.layout == "out_in":
        rights = [right.T for right in rights]
    return {"torch": lambda turn: torch.mm(left, rights[turn])}


def _numpy(
    x: np.ndarray, weights: list[np.ndarray], options: argparse.Namespace
) -> Callable[[int], object]:
    rights = weights if options.layout == "in_out" else [weight.T for weight in weights]
    return lambda turn: x @ rights[turn]


def _line(cell: dict[str, object]) -> str:
    times = " ".join(f"{name[:-3]} {value:9.0f}" for name, value in cell.items() if "_us" in name)
    rates = f"{cell['gflops']:6.1f} GFLOP/s {cell['gbytes']:5.1f} GB/s"
    return f"{cell['m']:4} x {cell['k']:4} x {cell['n']:5}: {times} us | ours {rates}"


def _machine(threads: int) -> str:
    core = os.environ.get("OPENBLAS_CORETYPE", "not set")
    return f"{platform.processor()}, threads {threads}, OPENBLAS_CORETYPE {core}"


if __name__ == "__main__":
    main()
