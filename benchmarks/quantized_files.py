"""Measure quantized ONNX files on gptrs and on ONNX Runtime, in processes that take turns.

    python benchmarks/quantized_files.py [--threads 1] [--turns 3] [--files resnet_qdq ..]

Small networks with random weights (a ResNet and a MobileNetV2 for images of 224 x 224, two layers
of a transformer, 128 tokens) are quantized by ONNX Runtime's own tools: static QDQ with signed
codes for each channel, or unsigned ones; operators of integers (QOperator); dynamic. An LSTM is
quantized dynamically, or left as it is. The least of
a second of runs is compared, and the outputs. Needs onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

onnx: Any = importlib.import_module("onnx")
onnxruntime: Any = importlib.import_module("onnxruntime")

SHAPES = {
    "resnet": (1, 3, 224, 224),
    "mobilenet": (1, 3, 224, 224),
    "transformer": (1, 128, 384),
    "lstm": (50, 1, 128),
}
WAYS = ("qdq", "qdq_unsigned", "qoperator", "dynamic")
_BLOCKS = ((1, 16, 1), (6, 24, 2), (6, 24, 1), (6, 32, 2), (6, 32, 1), (6, 64, 2), (6, 96, 1))
"""Of a MobileNetV2: the expansion, the channels, the stride."""


class Graph:
    """Nodes and initializers of a graph."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.random = np.random.default_rng(0)

    def constant(self, array: Any) -> str:
        """Add an initializer; return its name."""
        name = f"c{len(self.initializers)}"
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, scale: float) -> str:
        """Add random numbers."""
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def conv(self, x: str, channels: tuple[int, int], size: int, stride: int, group: int) -> str:
        """Add a convolution with a bias."""
        fan = channels[0] // group * size * size
        weight = self.weight(channels[1], channels[0] // group, size, size, scale=fan**-0.5)
        bias = self.weight(channels[1], scale=0.1)
        places = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [size // 2] * 4}
        return self.node("Conv", x, weight, bias, group=group, **places)

    def head(self, x: str, channels: int) -> str:
        """Add a mean over positions, and a layer of 100 classes."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x))
        weight = self.weight(100, channels, scale=channels**-0.5)
        return self.node("Gemm", flat, weight, self.weight(100, scale=0.1), transB=1)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Add a layer with a bias."""
        product = self.node("MatMul", x, self.weight(inputs, outputs, scale=inputs**-0.5))
        return self.node("Add", product, self.weight(outputs, scale=0.1))


def resnet(g: Graph) -> str:
    """Add a stem and three residual blocks."""
    x = g.node("Relu", g.conv("x", (3, 64), 7, 2, 1))
    x, width = g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for wide, stride in ((64, 1), (128, 2), (256, 2)):
        y = g.node("Relu", g.conv(x, (width, wide), 3, stride, 1))
        y = g.conv(y, (wide, wide), 3, 1, 1)
        short = x if width == wide else g.conv(x, (width, wide), 1, stride, 1)
        x, width = g.node("Relu", g.node("Add", y, short)), wide
    return g.head(x, width)


def mobilenet(g: Graph) -> str:
    """Add a stem and seven inverted blocks."""
    limits = g.constant(np.float32(0)), g.constant(np.float32(6))
    x, width = g.node("Relu", g.conv("x", (3, 32), 3, 2, 1)), 32
    for expansion, wide, stride in _BLOCKS:
        inner, y = width * expansion, x
        if expansion > 1:
            y = g.node("Clip", g.conv(y, (width, inner), 1, 1, 1), *limits)
        y = g.node("Clip", g.conv(y, (inner, inner), 3, stride, inner), *limits)
        y = g.conv(y, (inner, wide), 1, 1, 1)
        x, width = g.node("Add", x, y) if stride == 1 and width == wide else y, wide
    return g.head(x, width)


def transformer(g: Graph) -> str:
    """Add two layers of a width of 384, six heads, with norms behind them."""
    length, width = SHAPES["transformer"][1:]
    heads = g.constant(np.array([1, length, 6, width // 6]))
    flat = g.constant(np.array([1, length, width]))

    def norm(x: str, y: str) -> str:
        ones, zeros = (g.constant(np.full(width, n, np.float32)) for n in (1, 0))
        return g.node("LayerNormalization", g.node("Add", x, y), ones, zeros)

    x = "x"
    for _ in range(2):
        orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (
            g.node("Transpose", g.node("Reshape", g.linear(x, width, width), heads), perm=order)
            for order in orders
        )
        scores = g.node("Mul", g.node("MatMul", q, k), g.constant(np.float32(0.125)))
        mixed = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
        mixed = g.node("Reshape", g.node("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        x = norm(x, g.linear(mixed, width, width))
        f = g.linear(x, width, 4 * width)
        gate = g.node("Erf", g.node("Mul", f, g.constant(np.float32(0.5**0.5))))
        half = g.node("Mul", f, g.constant(np.float32(0.5)))
        f = g.node("Mul", half, g.node("Add", gate, g.constant(np.float32(1))))
        x = norm(x, g.linear(f, 4 * width, width))
    return x


def recurrent(g: Graph) -> str:
    """Add an LSTM of 256 units over 50 steps, and a layer of 32 classes."""
    parts = [g.weight(1, 1024, 128, scale=0.08), g.weight(1, 1024, 256, scale=0.06)]
    x = g.node("LSTM", "x", *parts, g.weight(1, 2048, scale=0.05), hidden_size=256)
    return g.node("MatMul", x, g.weight(256, 32, scale=0.06))


NETWORKS: dict[str, Callable[[Graph], str]] = {
    "resnet": resnet, "mobilenet": mobilenet, "transformer": transformer, "lstm": recurrent,
}  # fmt: skip


def written(folder: Path, name: str) -> Path:
    """Write a network and its quantized form; return the file of the latter."""
    quantization = importlib.import_module("onnxruntime.quantization")
    network, way = name.split("_", 1)
    graph, shape = Graph(), SHAPES[network]
    result = NETWORKS[network](graph)
    info = onnx.helper.make_tensor_value_info
    ends = [info("x", onnx.TensorProto.FLOAT, shape)], [info(result, onnx.TensorProto.FLOAT, None)]
    made = onnx.helper.make_graph(graph.nodes, "g", *ends, graph.initializers)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(made, opset_imports=opsets, ir_version=8)
    plain, target = folder / f"{network}.onnx", folder / f"{name}.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), plain)
    kinds = quantization.QuantType
    if way == "floats":
        return plain.rename(target)
    if way == "dynamic":
        weights = kinds.QInt8 if network == "lstm" else kinds.QUInt8
        quantization.quantize_dynamic(plain, target, weight_type=weights)
        return target

    class Images(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self._given = iter([{"x": inputs(shape)}])

        def get_next(self) -> Any:
            return next(self._given, None)

    form = quantization.QuantFormat
    signed = way == "qdq"
    quantization.quantize_static(
        plain,
        target,
        Images(),
        quant_format=form.QOperator if way == "qoperator" else form.QDQ,
        per_channel=way != "qdq_unsigned" and not (way == "qoperator" and network == "transformer"),
        activation_type=kinds.QInt8 if signed else kinds.QUInt8,
        weight_type=kinds.QUInt8 if way == "qdq_unsigned" else kinds.QInt8,
    )
    return target


def inputs(shape: Sequence[int]) -> np.ndarray:
    """Return what networks are run on."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def session(path: Path, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that runs a file with ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    made = onnxruntime.InferenceSession(str(path), options)
    return lambda x: made.run(None, {"x": x})[0]


def measure(side: str, path: Path, threads: int) -> None:
    """Print the least milliseconds of a second of runs; the process does nothing else."""
    if side == "gptrs":
        model = importlib.import_module("gptrs_onnx").load(path)

        def run(x: np.ndarray) -> np.ndarray:
            return np.asarray(next(iter(model(x=x).values())))
    else:
        run = session(path, threads)
    x = inputs(SHAPES[path.stem.split("_")[0]])
    result, least, end = run(x), float("inf"), time.perf_counter() + 1
    np.save(path.with_suffix(f".{side}.npy"), result)
    while time.perf_counter() < end:
        begin = time.perf_counter()
        run(x)
        least = min(least, time.perf_counter() - begin)
    print(least * 1e3)


def in_turns(path: Path, threads: int, turns: int) -> Iterator[float]:
    """Yield the least milliseconds of both sides, ONNX Runtime first."""
    found: dict[str, list[float]] = {"onnxruntime": [], "gptrs": []}
    environment = {**os.environ, "GPTRS_NUM_THREADS": str(threads)}
    for _ in range(turns):
        for side, times in found.items():
            command = [
                sys.executable,
                __file__,
                "--run",
                side,
                str(path),
                "--threads",
                str(threads),
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
            times.append(float(done.stdout.split()[-1]))
    yield from map(min, found.values())


def main() -> None:
    """Measure the files that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    names = [f"{network}_{way}" for network in SHAPES if network != "lstm" for way in WAYS]
    names += ["lstm_dynamic", "lstm_floats"]
    parser.add_argument("--files", nargs="+", choices=names, default=names)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        measure(given.run[0], Path(given.run[1]), given.threads)
        return
    print(f"{'file':26} {'ONNX Runtime':>12} {'gptrs':>9} {'ratio':>6}  mean difference")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.files:
            path = written(Path(folder), name)
            peer, ours = in_turns(path, given.threads, given.turns)
            results = [
                np.load(path.with_suffix(f".{side}.npy")) for side in ("onnxruntime", "gptrs")
            ]
            apart = np.abs(results[0] - results[1]).mean() / np.abs(results[0]).mean()
            print(
                f"{name:26} {peer:9.2f} ms {ours:6.2f} ms {peer / ours:6.2f}  {apart:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
