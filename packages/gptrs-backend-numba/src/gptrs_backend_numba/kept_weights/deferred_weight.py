"""Weights that are read when something needs them: of most, only packed forms are, from disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self, cast

import numpy as np
from typing_extensions import override

from gptrs.backend.contract import Buffer
from gptrs.backend.weight_identity import WeightIdentity
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.kept_weights.weight_store import weight_store

_PLAIN = "plain"
"""The form of a weight as it is, row-major."""


class DeferredWeight(np.ndarray):
    """Stands for the array of a weight: has its type and shape, but no memory for its elements.

    Programs of one process may share it; whoever asks for elements holds `RUN_LOCK`, or is the only
    one that has the weight.
    """

    _identity: WeightIdentity
    _load: Callable[[], np.ndarray]
    _elements: np.ndarray | None

    @classmethod
    def of(cls, identity: WeightIdentity, type: TensorType, load: Callable[[], np.ndarray]) -> Self:
        """Return the weight that is in the store, or that `load` gives when it is needed."""
        made = np.broadcast_to(_nothing(type.dtype.numpy), type.shape).view(cls)
        made._identity, made._load, made._elements = identity, load, None
        return made

    def elements(self) -> np.ndarray:
        """Return the elements, which stay as long as this does; loaded ones are kept on disk."""
        if self._elements is None:
            self._elements = kept_array(self._identity, TensorType.of(self), self._load)
        return self._elements

    @override
    def tobytes(self, order: Literal["K", "A", "C", "F"] | None = "C") -> bytes:
        """Return the bytes of the elements: small arguments of programs are copied so."""
        return self.elements().tobytes(order)

    def passing_elements(self) -> np.ndarray:
        """Return the elements for one who makes another form of them: they are not kept."""
        if self._elements is not None:
            return self._elements
        return kept_array(self._identity, TensorType.of(self), self._load, keep=False)

    @property
    def known(self) -> np.ndarray | None:
        """The elements, None if nothing has needed them yet."""
        return self._elements


def _nothing(dtype: np.dtype[np.generic]) -> np.ndarray:
    """Return what shows in results if somebody does not ask for the elements: NaN, or -1."""
    return np.full(dtype.itemsize, 255, np.uint8).view(dtype).reshape(())


def kept_array(
    identity: WeightIdentity, type: TensorType, load: Callable[[], np.ndarray], *, keep: bool = True
) -> np.ndarray:
    """Return a weight from the store, else by `load`, and if it is to `keep` have it stored."""
    store = weight_store()
    found = store.find(identity, _PLAIN, type.nbytes)
    if found is not None:
        return found.view(type.dtype.numpy).reshape(type.shape)
    array = load()
    if keep:
        store.keep(identity, _PLAIN, array)
    return array


def known_elements(buffer: Buffer) -> np.ndarray:
    """Return the array of a buffer; a deferred weight that nothing has needed stands for itself."""
    known = buffer.known if isinstance(buffer, DeferredWeight) else None
    return cast("np.ndarray", buffer) if known is None else known
