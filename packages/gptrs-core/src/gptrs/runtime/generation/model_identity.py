"""What tells a model from others: its settings, the types of its weights, samples of their values.

Reading all weights to tell would take as long as the work that a file of results saves; a change of
a model changes nearly every tensor that it touches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import numpy as np

from gptrs.checkpoint.param_source import ParamSource
from gptrs.errors import CheckpointError
from gptrs.runtime.load import LoadedModel

_SAMPLES = 8
"""Places in a tensor that are looked at, its beginning and its end among them."""

_SAMPLE_BYTES = 64


def model_identity(model: LoadedModel) -> str:
    """A digest, in hex, that is another one for any other model, wherever it lies."""
    digest = hashlib.blake2b(digest_size=16)
    settings = json.dumps(dict(model.config), sort_keys=True)
    digest.update(settings.encode())
    for name in sorted(model.weights.names()):
        for part in _tensor_parts(model.weights, name):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _tensor_parts(weights: ParamSource, name: str) -> Iterator[bytes]:
    yield name.encode("utf-8", "surrogatepass")
    try:
        yield str(weights.type_of(name)).encode()
    except CheckpointError:  # of a dtype that is not read: no model has such a weight
        return
    yield from _samples(weights.load(name))


def _samples(array: np.ndarray) -> Iterator[bytes]:
    """Bytes at a few places; all of them where they are few."""
    elements = np.ascontiguousarray(array).reshape(-1)
    data = elements.view(np.uint8)
    if data.size <= _SAMPLES * _SAMPLE_BYTES:
        yield data.tobytes()
        return
    for start in np.linspace(0, data.size - _SAMPLE_BYTES, _SAMPLES).astype(int):
        yield data[start : start + _SAMPLE_BYTES].tobytes()
