"""The frameworks that do the same work beside us, found by name, imported if they take part."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from gptrs.runtime.measure.bench_cases import PeerModel

_PEERS = {
    "torch": ("torch_peer", "TorchModel", ("torch", "transformers")),
    "llama.cpp": ("llama_peer", "LlamaModel", ("llama_cpp", "gguf")),
}
"""The module and class of each, `class(folder, threads)`, and the libraries that it needs."""


def load_peers(folder: Path, threads: int) -> dict[str, PeerModel]:
    """The peers whose libraries are installed, each with the model in `folder` loaded."""
    return {
        name: getattr(importlib.import_module(module), kind)(folder, threads)
        for name, (module, kind, libraries) in _PEERS.items()
        if all(importlib.util.find_spec(library) is not None for library in libraries)
    }
