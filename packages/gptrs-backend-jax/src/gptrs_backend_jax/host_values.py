"""Small inputs that stay on the host until a program runs, which takes them along."""

from __future__ import annotations

import numpy as np
from jax import Array

from gptrs.api.programs import dtypes
from gptrs_backend_jax.client import Device, placed

MOST_BYTES = 1 << 16
"""The largest array that is worth it: JAX needs 35 us to put one on a device, whatever its size,
and less than one more to take it along when a program is called."""

_OF_TWO_LAYOUTS = frozenset(dtype.numpy for dtype in dtypes.ALL if dtype.bits == 4)


class HostValue:
    """A buffer of few bytes: an array that nobody writes, with its copy on the device if asked."""

    __slots__ = ("_on_device", "array", "dtype", "shape")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array if array.flags.c_contiguous else array.copy()
        self.dtype = array.dtype
        self.shape = array.shape
        self._on_device: Array | None = None

    def on_device(self, device: Device) -> Array:
        """Return it as an array of JAX, which is made once: for weights."""
        if self._on_device is None:
            self._on_device = placed(self.array, device)
        return self._on_device

    def read_only(self) -> np.ndarray:
        """Return the elements."""
        view = self.array.view()
        view.flags.writeable = False
        return view


def buffer_of(array: np.ndarray, device: Device) -> HostValue | Array:
    """Return a buffer of `array`, in the byte order of this machine: on the device if it is large.

    Integers of 4 bits are put there, too: JAX has two layouts for them.
    """
    dtype = array.dtype
    native = array if dtype.isnative else array.astype(dtype.newbyteorder("="))
    if array.nbytes <= MOST_BYTES and array.dtype not in _OF_TWO_LAYOUTS:
        return HostValue(native)
    return placed(native, device)
