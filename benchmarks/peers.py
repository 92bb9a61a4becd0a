"""The frameworks that do the same work beside us, found by name, imported if they take part."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

from gptrs_observe.measure.bench_cases import PeerModel

_PEERS = {
    "torch": ("torch_peer", "TorchModel", ("torch", "transformers")),
    "llama.cpp": ("llama_peer", "LlamaModel", ("llama_cpp", "gguf")),
    "OpenVINO": ("openvino_peer", "OpenVinoModel", ("openvino",)),
    "OpenVINO bf16": ("openvino_peer", "RoundedOpenVinoModel", ("openvino",)),
}
"""The module and class of each, `class(path, threads)`, and the libraries that it needs."""


def openvino_folder(path: Path) -> Path:
    """Return where `openvino_checkpoint.py` puts a model for OpenVINO: beside a GGUF file."""
    return path.with_suffix(".openvino")


def _is_for_openvino(path: Path) -> bool:
    return path.suffix == ".gguf" and openvino_folder(path).is_dir()


def _has_tiles() -> bool:
    """Return whether the processor multiplies tiles of bf16, as far as Linux tells."""
    told = Path("/proc/cpuinfo")
    return told.exists() and "amx_bf16" in told.read_text(encoding="utf-8")


_READS: dict[str, Callable[[Path], bool]] = {
    "torch": Path.is_dir,
    "llama.cpp": lambda path: True,
    "OpenVINO": _is_for_openvino,
    "OpenVINO bf16": lambda path: _is_for_openvino(path) and _has_tiles(),
}


def load_peers(path: Path, threads: int) -> dict[str, PeerModel]:
    """The peers that read the folder or GGUF file `path` and are installed, with it loaded."""
    return {
        name: getattr(importlib.import_module(module), kind)(path, threads)
        for name, (module, kind, libraries) in _PEERS.items()
        if _READS[name](path)
        and all(importlib.util.find_spec(library) is not None for library in libraries)
    }
