"""Times models of torch run by torch, by Inductor, and by gptrs, in turns.

Run it as `python benchmarks/torch_compile.py [--threads N] [--rounds N] [--no-inductor] [MODEL]`;
it needs torch, transformers and, for Inductor, a C++ compiler. Models have random weights.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
import transformers
from torch import nn

Made = tuple[nn.Module, dict[str, Any]]
LEAST_SECONDS = 0.1
"""A turn of one contestant: as many calls as take this long."""


def tiny() -> Made:
    """Return two small layers: the time of a call is overhead."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), {"input": torch.ones(1, 8)}


def bert() -> Made:
    """Return six layers of BERT-base on 128 tokens."""
    library = cast("Any", transformers)
    config = library.BertConfig(num_hidden_layers=6)
    return library.BertModel(config), {"input_ids": torch.randint(0, 30000, (1, 128))}


def vit() -> Made:
    """Return six layers of ViT-base on one image."""
    library = cast("Any", transformers)
    config = library.ViTConfig(num_hidden_layers=6)
    return library.ViTModel(config), {"pixel_values": torch.randn(1, 3, 224, 224)}


def resnet() -> Made:
    """Return ResNet-50 on one image."""
    library = cast("Any", transformers)
    return library.ResNetModel(library.ResNetConfig()), {
        "pixel_values": torch.randn(1, 3, 224, 224)
    }


MODELS: dict[str, Callable[[], Made]] = {"tiny": tiny, "bert": bert, "vit": vit, "resnet": resnet}


def contestants(model: nn.Module, threads: int, *, inductor: bool) -> dict[str, Callable[..., Any]]:
    """Return what runs the model, by name."""
    compile_ = cast("Any", torch).compile
    found: dict[str, Callable[..., Any]] = {"torch": model}
    if inductor and shutil.which("g++"):
        found["inductor"] = compile_(model)
    found["gptrs"] = compile_(model, backend="gptrs", options={"threads": threads})
    return found


def measured(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds a call, over as many calls as take LEAST_SECONDS."""
    count, start, cpu = 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - start) < LEAST_SECONDS or not count:
        call()
        count += 1
    return passed / count, (time.process_time() - cpu) / count


def compare(name: str, threads: int, rounds: int, *, inductor: bool) -> None:
    """Print a line of the least times of each contestant, which take turns."""
    model, given = MODELS[name]()
    model.eval()
    runners = contestants(model, threads, inductor=inductor)
    times: dict[str, list[tuple[float, float]]] = {each: [] for each in runners}
    with torch.inference_mode():
        for _ in range(rounds + 1):
            for each, run in runners.items():
                times[each].append(measured(lambda run=run: run(**given)))
    for each, found in times.items():
        wall, cpu = zip(*found[1:], strict=True)  # the first turn compiles
        print(
            f"{name:8} {each:9} {min(wall) * 1e6:10.1f} us least,"
            f" {statistics.median(wall) * 1e6:10.1f} us median, {min(cpu) * 1e6:10.1f} us CPU"
        )


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cast("Any", torch).manual_seed(0)
    warnings.simplefilter("ignore")
    unknown = set(options.models) - set(MODELS)
    if unknown:
        parser.error(f"there is no model {min(unknown)}, but {', '.join(MODELS)}")
    for name in options.models or MODELS:
        compare(name, options.threads, options.rounds, inductor=not options.no_inductor)


if __name__ == "__main__":
    main()
