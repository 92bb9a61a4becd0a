"""Models out of files and out of protobuf messages, and which operators are converted."""

from __future__ import annotations

import os

import onnx

from gptrs.api.backends import Backend
from gptrs_onnx.model import OnnxModel
from gptrs_onnx.reading import model_of, read_model
from gptrs_onnx.registry import CONVERTERS
from gptrs_onnx.sequences import SEQUENCES


def load(path: str | os.PathLike[str], backend: str | Backend | None = None) -> OnnxModel:
    """Return the model in an .onnx file, ready to be called.

    `backend` is a name, a backend, or None for the default. External data must lie in the folder
    of the file. ModelError for a file that is no sound model, UnsupportedError for an operator set
    or a type of input that is not read.
    """
    model, own = read_model(path)
    return OnnxModel(model, backend, os.fspath(path), own)


def from_proto(model: onnx.ModelProto, backend: str | Backend | None = None) -> OnnxModel:
    """Return a model that is in memory; errors as `load`, and external data is refused."""
    return OnnxModel(model_of(model, None), backend, model.graph.name or "the model")


def supported_operators() -> dict[str, list[str]]:
    """Return the operators that are converted by themselves, in order, by domain.

    Those that the standard defines by others (`NegativeLogLikelihoodLoss`) are converted, too.
    """
    found: dict[str, list[str]] = {}
    for domain, name in sorted([*CONVERTERS, *(("", name) for name in SEQUENCES)]):
        found.setdefault(domain or "ai.onnx", []).append(name)
    return found
