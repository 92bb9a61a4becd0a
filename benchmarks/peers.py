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
"""The module and class of each, `class(path, threads)`, and the libraries that it needs."""
_READ_GGUF = frozenset({"llama.cpp"})


def load_peers(path: Path, threads: int) -> dict[str, PeerModel]:
    """The peers that read the folder or GGUF file `path` and are installed, with it loaded."""
    return {
        name: getattr(importlib.import_module(module), kind)(path, threads)
        for name, (module, kind, libraries) in _PEERS.items()
        if (path.is_dir() or name in _READ_GGUF)
        and all(importlib.util.find_spec(library) is not None for library in libraries)
    }
