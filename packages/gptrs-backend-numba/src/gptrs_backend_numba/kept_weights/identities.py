"""Which weight an array of a backend is: the identities that core told, by array."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.kept_weights.weight_store import weight_store

_PLAIN = "plain"
"""The form of a weight as it is, row-major."""
_IDENTITIES: dict[int, tuple[weakref.ref[np.ndarray], WeightIdentity]] = {}


def identity_of(array: np.ndarray) -> WeightIdentity | None:
    """Return the identity of a weight that `weight_array` gave; None of any other array."""
    found = _IDENTITIES.get(id(array))
    return found[1] if found is not None and found[0]() is array else None


def weight_array(
    identity: WeightIdentity, type: TensorType, load: Callable[[], np.ndarray], mapped: bool
) -> np.ndarray:
    """Return the array of a weight: from the store, else by `load`, which stores a computed one.

    A `mapped` one is a view of its file and needs no copy in the store.
    """
    store = weight_store()
    found = None if mapped else store.find(identity, _PLAIN, type.nbytes)
    if found is not None:
        array = found.view(type.dtype.numpy).reshape(type.shape)
    else:
        array = load()
        if not mapped:
            store.keep(identity, _PLAIN, array)
    _note(array, identity)
    return array


def _note(array: np.ndarray, identity: WeightIdentity) -> None:
    key = id(array)
    forget = weakref.ref(array, lambda _: _IDENTITIES.pop(key, None))
    _IDENTITIES[key] = (forget, identity)
