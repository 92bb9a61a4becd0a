"""Small model folders on disk, single-file and sharded, for tests that then break them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from gptrs_runtime.sources.model_source import ModelSource

INDEX = "model.safetensors.index.json"
CONFIG: dict[str, object] = {"model_type": "tiny", "width": 2}
ARRAYS = {
    "wte.weight": np.arange(6, dtype=np.float32).reshape(3, 2),
    "h.0.bias": np.array([1, 2], np.float16),
    "h.1.bias": np.array([3, 4], np.int64),
}
SHARD_OF = {"wte.weight": "one.safetensors", "h.0.bias": "two.safetensors"} | {
    "h.1.bias": "two.safetensors"
}


def write_json(path: Path, value: object) -> Path:
    """`value` as JSON in a file."""
    path.write_text(json.dumps(value))
    return path


def single(folder: Path) -> Path:
    """A folder with `config.json` and all ARRAYS in `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", CONFIG)
    save_file(ARRAYS, folder / "model.safetensors")
    return folder


def sharded(folder: Path, weight_map: Mapping[str, object] = SHARD_OF) -> Path:
    """A folder with ARRAYS in the files of SHARD_OF, and an index that says `weight_map`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", CONFIG)
    for shard in set(SHARD_OF.values()):
        names = [name for name in ARRAYS if SHARD_OF[name] == shard]
        save_file({name: ARRAYS[name] for name in names}, folder / shard)
    write_json(folder / INDEX, {"metadata": {"total_size": 44}, "weight_map": dict(weight_map)})
    return folder


def require_the_model(source: ModelSource) -> None:
    """Fail unless the weights of a model are ARRAYS."""
    found = {name: source.weights.load(name) for name in source.weights.names()}
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
