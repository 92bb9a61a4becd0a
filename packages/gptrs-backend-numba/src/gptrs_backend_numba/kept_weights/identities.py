"""Which weight an array of a backend is: the identities that core told, by array."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from gptrs.backend.weight_identity import WeightIdentity, WeightOrigin
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_numba.kept_weights.deferred_weight import DeferredWeight, kept_array

_IDENTITIES: dict[int, tuple[weakref.ref[np.ndarray], WeightIdentity]] = {}


def identity_of(array: np.ndarray) -> WeightIdentity | None:
    """Return the identity of a weight that `weight_array` gave; None of any other array."""
    found = _IDENTITIES.get(id(array))
    return found[1] if found is not None and found[0]() is array else None


def weight_array(
    identity: WeightIdentity, type: TensorType, load: Callable[[], np.ndarray], origin: WeightOrigin
) -> np.ndarray:
    """Return the array of a weight: a view of its file, one from the store, or a deferred one."""
    if origin == "mapped":
        array = load()
    elif origin == "computed":  # by a run: none may begin within another one
        array = kept_array(identity, type, load)
    else:
        array = DeferredWeight.of(identity, type, load)
    _note(array, identity)
    return array


def _note(array: np.ndarray, identity: WeightIdentity) -> None:
    key = id(array)
    forget = weakref.ref(array, lambda _: _IDENTITIES.pop(key, None))
    _IDENTITIES[key] = (forget, identity)
