"""The networks of `vision.py` in other libraries: torch, ONNX Runtime and OpenVINO, in f32."""

from __future__ import annotations

import importlib
import importlib.util
import io
import warnings
from collections.abc import Callable

import numpy as np

from vision_networks import NETWORKS, Conv, Weights


def _installed(name: str):
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


torch, onnxruntime, openvino = (_installed(name) for name in ("torch", "onnxruntime", "openvino"))
Cases = dict[str, Callable[[], np.ndarray]]


def vision_peers(name: str, weights: Weights, image: np.ndarray, threads: int) -> Cases:
    """A run of the network by each library that is installed, on an image [1, H, W, 3].

    All but torch itself are given one ONNX model, which torch exports where `onnx` is installed.
    """
    if torch is None:
        return {}
    torch.set_num_threads(threads)
    formats = {"eager": torch.contiguous_format, "channels last": torch.channels_last}
    found = {
        f"torch {word}": _torch_network(name, weights, image, memory_format)
        for word, memory_format in formats.items()
    }
    if importlib.util.find_spec("onnx") is not None:
        x = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
        model = _onnx_model(name, weights, x)
        found |= _onnxruntime(model, x, threads) | _openvino(model, x, threads)
    return found


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


def _onnx_model(name, weights, x: np.ndarray) -> bytes:
    network, layers = NETWORKS[name], _TorchLayers(weights, torch.contiguous_format)

    class Module(torch.nn.Module):
        def forward(self, x):
            return network(x, layers)

    file = io.BytesIO()
    with warnings.catch_warnings():
        # The exporter that needs no further package is deprecated, and it notes for every weight
        # made from an array that the model will always have this one: so it should.
        warnings.filterwarnings("ignore", "You are using the legacy", DeprecationWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
        torch.onnx.export(Module().eval(), (torch.from_numpy(x),), file, dynamo=False)
    return file.getvalue()


def _onnxruntime(model: bytes, x: np.ndarray, threads: int) -> Cases:
    if onnxruntime is None:
        return {}
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return {"ONNX Runtime": lambda: session.run(None, {given.name: x})[0]}


def _openvino(model: bytes, x: np.ndarray, threads: int) -> Cases:
    if openvino is None:
        return {}
    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        # Where the processor can, it would otherwise compute in bf16.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = core.compile_model(core.read_model(io.BytesIO(model)), "CPU", settings)
    request = compiled.create_infer_request()
    return {"OpenVINO": lambda: request.infer([x])[compiled.output(0)]}
