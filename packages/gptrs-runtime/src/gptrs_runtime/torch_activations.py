"""The activations of torch that files of sentence-transformers name, with torch's defaults."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

Activation = Callable[[np.ndarray], np.ndarray]
"""Maps each number of an array."""

SELU_ALPHA: Final = 1.6732632423543772
SELU_SCALE: Final = 1.0507009873554805
_SLOPE: Final = 0.01
_SOFT_LIMIT: Final = 20.0
"""Where torch's Softplus becomes the identity."""
_PREFIX: Final = "torch.nn."


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return `1 / (1 + exp(-x))` of each, f64, to its last digits also near 0."""
    return np.exp(-np.logaddexp(0.0, -x.astype(np.float64)))


def unchanged(x: np.ndarray) -> np.ndarray:
    """Return the numbers, f64."""
    return x.astype(np.float64)


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(x / -math.sqrt(2.0))


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))


def _selu(x: np.ndarray) -> np.ndarray:
    negative = SELU_ALPHA * np.expm1(np.minimum(x, 0.0))
    return SELU_SCALE * np.where(x > 0.0, x, negative)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.where(x > _SOFT_LIMIT, x, np.log1p(np.exp(np.minimum(x, _SOFT_LIMIT))))


ACTIVATIONS: Final[dict[str, Activation]] = {
    "Tanh": np.tanh,
    "Identity": unchanged,
    "Sigmoid": sigmoid,
    "ReLU": lambda x: np.maximum(x, 0.0),
    "ReLU6": lambda x: np.clip(x, 0.0, 6.0),
    "LeakyReLU": lambda x: np.where(x > 0.0, x, _SLOPE * x),
    "GELU": _gelu,
    "SiLU": lambda x: x * sigmoid(x),
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "ELU": _elu,
    "SELU": _selu,
    "Softplus": _softplus,
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "LogSigmoid": lambda x: -np.logaddexp(0.0, -x),
    "Hardtanh": lambda x: np.clip(x, -1.0, 1.0),
    "Hardsigmoid": lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "Hardswish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
}
"""By the name of the class in `torch.nn`. Numbers are f64 only if those that it is given are."""


def torch_activation(path: str) -> str | None:
    """Return the name in `ACTIVATIONS` of `torch.nn.modules.activation.Tanh`; None if unknown."""
    name = path.rpartition(".")[2]
    return name if path.startswith(_PREFIX) and name in ACTIVATIONS else None
