"""Measure ONNX files on gptrs and on ONNX Runtime, in turns in one process.

    python benchmarks/onnx_files.py [--threads 1] [--rounds 7] [--networks bert resnet34 ..]

Models of transformers and of torch with random weights are exported by torch.onnx; both runtimes
read the same file. A turn is a block of runs; the medians of all rounds are compared, and the
outputs. Needs torch, transformers, onnxscript and onnxruntime.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch_models import mobilenet

import gptrs
import gptrs_onnx

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")
onnxruntime: Any = importlib.import_module("onnxruntime")
_BLOCK = 3
"""Runs of a turn; the first wakes threads and is not counted."""
_REST = 0.05
"""Seconds before a turn, until threads of the other runtime sleep.

ONNX Runtime's wait for work on a processor that ours need, in real-time class for good.
"""
_IMAGE, _TOKENS, _SOUND = "pixel_values", "input_ids", "input_values"
_LLAMA: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 12,
    "num_attention_heads": 9, "num_key_value_heads": 3, "use_cache": False,
}  # fmt: skip
NETWORKS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("Bert", "BertModel", {}, _TOKENS),
    "distilbert": ("DistilBert", "DistilBertModel", {}, _TOKENS),
    "gpt2": ("GPT2", "GPT2LMHeadModel", {"use_cache": False}, _TOKENS),
    "llama": ("Llama", "LlamaForCausalLM", _LLAMA, _TOKENS),
    "resnet34": (
        "ResNet",
        "ResNetForImageClassification",
        {"depths": [3, 4, 6, 3], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"},
        _IMAGE,
    ),
    "vit": ("ViT", "ViTForImageClassification", {}, _IMAGE),
    "dinov2": ("Dinov2", "Dinov2Model", {}, _IMAGE),
    "siglip": ("SiglipVision", "SiglipVisionModel", {}, _IMAGE),
    "segformer": ("Segformer", "SegformerModel", {}, _IMAGE),
    "convnext": ("ConvNext", "ConvNextForImageClassification", {}, _IMAGE),
    "mobilenetv2": ("MobileNetV2", "MobileNetV2ForImageClassification", {}, _IMAGE),
    "efficientnet": (
        "EfficientNet",
        "EfficientNetForImageClassification",
        {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280},
        _IMAGE,
    ),
    "regnet": ("RegNet", "RegNetForImageClassification", {}, _IMAGE),
    "swin": ("Swin", "SwinForImageClassification", {}, _IMAGE),
    "wav2vec2": ("Wav2Vec2", "Wav2Vec2Model", {}, _SOUND),
}
"""Names of transformers, settings and the input of each network."""
_LSTM: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "batch_first": True}


class UNet(torch.nn.Module):
    """Convolutions down to an eighth of the size and up again, with what was there on the way."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [3, *(width * 2**level for level in range(4))]
        pairs = list(itertools.pairwise(sizes))
        self.down = torch.nn.ModuleList(self._block(*pair) for pair in pairs)
        turned = [(large, small) for small, large in reversed(pairs[1:])]
        self.widen = torch.nn.ModuleList(torch.nn.ConvTranspose2d(*pair, 2, 2) for pair in turned)
        self.up = torch.nn.ModuleList(self._block(*pair) for pair in turned)
        self.classes = torch.nn.Conv2d(width, 21, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> Any:
        layers = [
            torch.nn.Conv2d(inputs, outputs, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(outputs, outputs, 3, padding=1),
            torch.nn.ReLU(),
        ]
        return torch.nn.Sequential(*layers)

    def forward(self, pixel_values: Any) -> Any:
        """Return scores of classes for each pixel."""
        x, kept = self.down[0](pixel_values), list[Any]()
        for block in self.down[1:]:
            kept.append(x)
            x = block(torch.nn.functional.max_pool2d(x, 2))
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([widen(x), kept.pop()], 1))
        return self.classes(x)


MODULES: dict[str, tuple[Callable[[], Any], str, tuple[int, ...]]] = {
    "lstm": (lambda: torch.nn.LSTM(256, 256, **_LSTM), "input", (1, 64, 256)),
    "gru": (lambda: torch.nn.GRU(256, 256, **_LSTM), "input", (1, 64, 256)),
    "mobilenetv3": (lambda: mobilenet()[0], "input", (1, 3, 224, 224)),
    "unet": (UNet, _IMAGE, (1, 3, 224, 224)),
}
"""Modules of torch, and the name and shape of their input."""


def main() -> None:
    """Measure each network and print a line of figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = [*NETWORKS, *MODULES]
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--networks", nargs="*", default=known, choices=known)
    options = parser.parse_args()
    ratios: list[float] = []
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            try:
                ratios.append(measure(name, Path(folder), options.threads, options.rounds))
            except torch.onnx.OnnxExporterError as error:
                print(f"{name:12} is not exported: {str(error).splitlines()[0]}", flush=True)
    mean = statistics.geometric_mean(ratios)
    print(f"ONNX Runtime's time / ours, threads {options.threads}, geometric mean: {mean:.2f}")


def measure(name: str, folder: Path, threads: int, rounds: int) -> float:
    """Print the times of a network; return ONNX Runtime's median as a share of ours."""
    path, inputs = exported(name, folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options)
    model = gptrs_onnx.load(path, gptrs.get_backend("numba", threads))
    cases: dict[str, Callable[[], np.ndarray]] = {
        "ours": lambda: next(iter(model(**inputs).values())),
        "theirs": lambda: np.asarray(session.run(None, inputs)[0]),
    }
    results = {who: run() for who, run in cases.items()}
    if not np.abs(results["theirs"]).max() > 0:
        raise ValueError(f"{name} gives nothing but zeros, which tell nothing")
    times: dict[str, list[float]] = {who: [] for who in cases}
    for _ in range(rounds):
        for who, run in cases.items():
            time.sleep(_REST)
            run()
            started = time.perf_counter()
            for _ in range(_BLOCK):
                run()
            times[who].append((time.perf_counter() - started) / _BLOCK)
    ours, theirs = (statistics.median(times[who]) for who in ("ours", "theirs"))
    off = np.abs(results["ours"] - results["theirs"]).max() / np.abs(results["theirs"]).max()
    print(
        f"{name:12} ours {1e3 * ours:8.2f} ms  ONNX Runtime {1e3 * theirs:8.2f} ms"
        f"  ratio {theirs / ours:5.2f}  differs by {off:.1e}",
        flush=True,
    )
    return theirs / ours


def exported(name: str, folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a network with random weights as an ONNX file; return it and an input."""
    torch.manual_seed(0)
    made, parameter, array = network(name)
    path = folder / f"{name}.onnx"
    torch.onnx.export(
        made, (), str(path), kwargs={parameter: torch.from_numpy(array)}, input_names=[parameter],
        dynamo=True, verbose=False,
    )  # fmt: skip
    return path, {parameter: array}


def network(name: str) -> tuple[Any, str, np.ndarray]:
    """Return a network with random weights, the name of its input, and an input."""
    rng = np.random.default_rng(0)
    if name in MODULES:
        make, parameter, shape = MODULES[name]
        return make().eval(), parameter, rng.standard_normal(shape).astype(np.float32)
    config, kind, settings, parameter = NETWORKS[name]
    made = getattr(transformers, kind)(getattr(transformers, f"{config}Config")(**settings)).eval()
    if parameter == _SOUND:
        return made, parameter, rng.standard_normal((1, 16_000)).astype(np.float32)
    if parameter == _IMAGE:
        image = rng.standard_normal((1, 3, 224, 224)).astype(np.float32)
        normalize(made, torch.from_numpy(image))
        return made, parameter, image
    return made, parameter, rng.integers(0, 30000, (1, 128))


def normalize(network: Any, image: Any) -> None:
    """Let batch norms have the mean and variance of what reaches them, as in a trained network.

    Without that the numbers of a deep one with random weights fade to zero on their way.
    """
    norms = [each for each in network.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        network(torch.cat([image, -image]))
    network.eval()


if __name__ == "__main__":
    main()
