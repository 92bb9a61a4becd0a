"""Steps on the vector of a text after pooling: normalization and affine layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from gptrs.quick_dataclass import dataclass

_SMALLEST_NORM: Final = 1e-12
"""The least divisor of a vector, as in torch's `normalize`."""

_NORM_EPSILON: Final = 1e-5
"""The default epsilon of `torch.nn.LayerNorm`, which sentence-transformers keeps."""

VectorStep = Callable[[np.ndarray], np.ndarray]
"""From f32 [N, D] to f32 [N, E]."""


@dataclass(frozen=True)
class Normalize:
    """Divides each vector by its Euclidean length; zeros stay zeros."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, D]."""
        length = np.sqrt(np.square(x, dtype=np.float64).sum(axis=-1, keepdims=True))
        return (x / np.maximum(length, _SMALLEST_NORM)).astype(np.float32)


@dataclass(frozen=True)
class Truncate:
    """Keeps the first `size` elements of each vector, of models that are trained for it.

    Matryoshka embeddings (Kusupati et al. 2022).
    """

    size: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, min(D, size)]."""
        return x[..., : self.size]


@dataclass(frozen=True, eq=False)
class Dense:
    """`activation(x W^T + b)` with a weight [E, D], and a bias [E] if there is one."""

    weight: np.ndarray
    bias: np.ndarray | None
    activation: str

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, E]."""
        weight = self.weight.astype(np.float64)
        # Row by row: BLAS may sum those of a matrix in another order.
        product = np.stack([weight @ row for row in x.astype(np.float64)])
        if self.bias is not None:
            product = product + self.bias
        return ACTIVATIONS[self.activation](product).astype(np.float32)


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Layer normalization of a vector, with a weight [D] and a bias [D]."""

    weight: np.ndarray
    bias: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, D]."""
        wide = x.astype(np.float64)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + _NORM_EPSILON)
        return (centred / scale * self.weight + self.bias).astype(np.float32)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def _identity(x: np.ndarray) -> np.ndarray:
    return x


ACTIVATIONS: Final[dict[str, VectorStep]] = {
    "torch.nn.modules.activation.Tanh": np.tanh,
    "torch.nn.modules.activation.ReLU": _relu,
    "torch.nn.modules.linear.Identity": _identity,
}
"""By the name under which sentence-transformers saves them."""
