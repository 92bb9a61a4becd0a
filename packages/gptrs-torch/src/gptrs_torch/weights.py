"""Weights of torch: as a source of parameters, read where they are; and whether they changed."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from operator import attrgetter, is_
from typing import Final, TypeAlias

import numpy as np
import torch
from blake3 import blake3

from gptrs.api import CheckpointError
from gptrs.api.programs import TensorType
from gptrs_torch.arrays import array_of
from gptrs_torch.element_types import dtype_of
from gptrs_torch.written_pages import PAGE, Range, WrittenPages

Watch: TypeAlias = "Callable[[Sequence[torch.Tensor]], WeightWatch]"
"""Returns what tells whether weights have changed since."""
_logger = logging.getLogger("gptrs")
_DIGESTED: Final = (
    "each call reads the %.0f MB of the model's weights to see whether they have changed, as the"
    ' system does not tell (%s); with `options={"weights": "frozen"}` it does not'
)
_LEAST_WATCHED: Final = 4 * PAGE
"""Bytes from which on asking the system is quicker than comparing."""
_LEAST_TOLD: Final = 1 << 24
"""Bytes that take some milliseconds to read."""
_threads: Final = [blake3.AUTO]
"""One in a forked child, which has none of the workers of its parent, and would wait for them."""
os.register_at_fork(after_in_child=lambda: _threads.__setitem__(0, 1))
_COUNTED: Final = (torch.Tensor.data_ptr, attrgetter("_version"))
_LAYOUT: Final = (torch.Tensor.stride, attrgetter("shape"), attrgetter("dtype"))


class TensorSource:
    """Tensors by name; `load` gives a view of the memory of torch."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> Sequence[str]:
        """Return the names of all tensors."""
        return tuple(self._tensors)

    def type_of(self, name: str) -> TensorType:
        """Return the element type and shape; CheckpointError if there is no such tensor."""
        held = self._tensor(name)
        return TensorType(dtype_of(held.dtype, f"the tensor `{name}`"), tuple(held.shape))

    def load(self, name: str) -> np.ndarray:
        """Return the elements, in the memory of torch where they are in row-major order."""
        return array_of(self._tensor(name))

    def _tensor(self, name: str) -> torch.Tensor:
        found = self._tensors.get(name)
        if found is None:
            raise CheckpointError(f"the graph has no tensor `{name}`")
        return found


class WeightWatch:
    """Tells whether weights are still what they were when this was made.

    Which tensors they are, where they lie and how often torch has counted a change is looked at in
    each call. With `contents`, so is every byte, as `.data` and NumPy change weights that torch
    does not count: small weights are compared with a copy, of others the system tells which pages
    were written to; where it does not, a digest of all their bytes is made in each call. With
    `layouts`, so are types, shapes and strides, which Dynamo compares by itself.
    """

    def __init__(
        self, weights: Sequence[torch.Tensor], *, contents: bool = True, layouts: bool = False
    ) -> None:
        self._weights = weights
        self._methods = (*_COUNTED, *_LAYOUT) if layouts else _COUNTED
        self._told = self._asked(weights)
        self._held = [weight.detach() for weight in weights]  # `.data = ` would free the memory
        self._pages: WrittenPages | None = None
        self._small: list[memoryview] = []
        self._large: list[memoryview] = []
        if contents:
            self._watch()
        # Copied after pages are watched: what is written meanwhile is seen.
        self._copy = b"".join(self._small)
        self._digest = self._digested()

    def differ(self, weights: Sequence[torch.Tensor]) -> bool:
        """Return whether these are others, or hold something else."""
        return (
            not all(map(is_, weights, self._weights))
            or self._asked(weights) != self._told
            or b"".join(self._small) != self._copy  # where they lie, as they do still
            or (self._pages is not None and self._pages.written)
            or (bool(self._large) and self._digested() != self._digest)
        )

    def _asked(self, weights: Sequence[torch.Tensor]) -> list[list[object]]:
        return [list(map(method, weights)) for method in self._methods]

    def _watch(self) -> None:
        pages: list[Range] = []
        for start, end in map(_addresses, self._held):
            first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
            if last - first < _LEAST_WATCHED:
                self._small.append(_bytes_at(start, end))
            else:
                pages.append((first, last))
                self._small += [_bytes_at(start, first), _bytes_at(last, end)]
        try:
            self._pages = WrittenPages(pages)
        except OSError as error:
            self._large = list(starmap(_bytes_at, pages))
            nbytes = sum(last - first for first, last in pages)
            if nbytes >= _LEAST_TOLD:
                _logger.warning(_DIGESTED, nbytes / 1e6, error.strerror or error)

    def _digested(self) -> bytes:
        digest = blake3(max_threads=_threads[0])
        for each in self._large:
            digest.update(each)
        return digest.digest()


def _addresses(tensor: torch.Tensor) -> Range:
    """Return the addresses of the first byte of a tensor and of the one after its last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return start, start + (last + 1) * tensor.element_size()


def _bytes_at(start: int, end: int) -> memoryview:
    memory = (ctypes.c_char * (end - start)).from_address(start)
    return np.frombuffer(memoryview(memory), np.uint8).data
