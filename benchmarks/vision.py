"""Measure convolutional networks on the numba backend beside torch, in one process, in turns.

    python benchmarks/vision.py [--threads 1] [--rounds 9] [--cpu] [--size 224] [--networks ..]

Weights are random. Of torch both memory formats are measured; ONNX Runtime takes part where it and
`onnx` are installed. Medians over rounds, and the best; `--cpu` counts processor time, which others
on the machine disturb less.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gptrs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from vision_networks import (
    NETWORKS,
    Conv,
    Counting,
    FunctionalLayers,
    Weights,
    captured,
)


def _installed(name: str):
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


torch, onnxruntime = _installed("torch"), _installed("onnxruntime")
Contenders = dict[str, Callable[[], np.ndarray]]


def main() -> None:
    """Measure each network and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu", action="store_true", help="processor time, if others are busy")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    options = parser.parse_args()
    os.environ["GPTRS_NUM_THREADS"] = str(options.threads)
    print(f"{platform.processor() or platform.machine()}, threads {options.threads}")
    for name in options.networks:
        _measure(name, options)


def _measure(name: str, options: argparse.Namespace) -> None:
    weights = Weights()
    random = np.random.default_rng(0)
    image = random.standard_normal((1, options.size, options.size, 3)).astype(np.float32)
    counting = Counting()
    NETWORKS[name]((options.size, options.size), counting)
    contenders = {"ours": _ours(name, weights, image)}
    contenders |= _torch(name, weights, image, options.threads)
    results = {who: run() for who, run in contenders.items()}
    times: dict[str, list[float]] = {who: [] for who in contenders}
    clock = time.process_time if options.cpu else time.perf_counter
    for _ in range(options.rounds):
        for who, run in contenders.items():
            begin = clock()
            run()
            times[who].append(1e3 * (clock() - begin))
    ours = times["ours"]
    gflop = 2 * counting.products / 1e9
    scale = np.abs(results["ours"]).max()
    for who, spent in times.items():
        middle, best = statistics.median(spent), min(spent)
        off = np.abs(results[who] - results["ours"]).max() / scale
        print(
            f"{name:12} {who:20} median {middle:7.2f} ms  best {best:7.2f} ms"
            f"  {gflop / middle * 1e3:6.1f} GFLOP/s"
            f"  ratio {middle / statistics.median(ours):5.2f} (best {best / min(ours):5.2f})"
            f"  differs by {off:.1e}",
            flush=True,
        )


def _ours(name: str, weights: Weights, image: np.ndarray) -> Callable[[], np.ndarray]:
    backend = gptrs.get_backend("numba")
    run = captured(name, FunctionalLayers(weights, backend))
    x = gptrs.tensor(image)
    return lambda: run(x).numpy()


def _torch(name: str, weights: Weights, image: np.ndarray, threads: int) -> Contenders:
    if torch is None:
        return {}
    torch.set_num_threads(threads)
    formats = {"eager": torch.contiguous_format, "channels last": torch.channels_last}
    return {
        f"torch {word}": _torch_network(name, weights, image, memory_format)
        for word, memory_format in formats.items()
    } | _onnxruntime(name, weights, image, threads)


def _torch_network(name, weights, image, memory_format) -> Callable[[], np.ndarray]:
    x = torch.from_numpy(image).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    layers = _TorchLayers(weights, memory_format)
    network = NETWORKS[name]

    def run() -> np.ndarray:
        with torch.inference_mode():
            return network(x, layers).numpy()

    return run


class _TorchLayers:
    """Layers of torch, in evaluation mode."""

    def __init__(self, weights, memory_format) -> None:
        self._weights, self._format = weights, memory_format
        self._tensors = {}

    def conv(self, x, conv: Conv, residual=None):
        if conv.name not in self._tensors:
            weight = torch.from_numpy(self._weights.conv(conv))
            norm = [torch.from_numpy(array) for array in self._weights.norm(conv)]
            self._tensors[conv.name] = weight.contiguous(memory_format=self._format), norm
        weight, norm = self._tensors[conv.name]
        functional = torch.nn.functional
        y = functional.conv2d(x, weight, None, conv.stride, conv.padding, groups=conv.groups)
        y = functional.batch_norm(y, *norm)
        y = y if residual is None else y + residual
        activations = {"none": lambda z: z, "relu": torch.relu_, "relu6": functional.relu6}
        return activations[conv.activation](y)

    def max_pool(self, x):
        return torch.nn.functional.max_pool2d(x, 3, 2, 1)

    def classify(self, x, channels: int):
        if "classes" not in self._tensors:
            weight = self._weights("classes.w", 1000, channels, by=channels**-0.5)
            bias = self._weights("classes.b", 1000)
            self._tensors["classes"] = torch.from_numpy(weight), torch.from_numpy(bias)
        return torch.nn.functional.linear(x.mean((2, 3)), *self._tensors["classes"])


def _onnxruntime(name, weights, image, threads: int) -> Contenders:
    if onnxruntime is None or importlib.util.find_spec("onnx") is None:
        return {}
    network, layers = NETWORKS[name], _TorchLayers(weights, torch.contiguous_format)

    class Module(torch.nn.Module):
        def forward(self, x):
            return network(x, layers)

    x = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
    file = io.BytesIO()
    torch.onnx.export(Module().eval(), (torch.from_numpy(x),), file, dynamo=False)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file.getvalue(), settings)
    (given,) = session.get_inputs()
    return {"ONNX Runtime": lambda: session.run(None, {given.name: x})[0]}


if __name__ == "__main__":
    main()
