"""A weight of a model as a leaf of the graph: known by key and type, loaded on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from gptrs.backend.protocol import Backend, Buffer
from gptrs.errors import CheckpointError
from gptrs.ir.tensor_type import TensorType


class Parameter:
    """One named weight on one backend. `load` is called once, by the first program that needs it.

    `key` is the 128-bit ParamKey of the weight; equal keys mean equal contents.
    """

    traced: ClassVar[bool] = False

    def __init__(
        self,
        type: TensorType,
        key: int,
        name: str,
        load: Callable[[], np.ndarray],
        backend: Backend,
    ) -> None:
        self.type = type
        self.key = key
        self.name = name
        self.backend = backend
        self._load = load
        self._buffer: Buffer | None = None
        self._derived: dict[int, Parameter] = {}
        self._lock = threading.Lock()

    @property
    def loaded(self) -> bool:
        """Whether the weight is in the memory of the backend."""
        return self._buffer is not None

    def buffer(self) -> Buffer:
        """The weight in the memory of its backend, loaded now if it was not yet."""
        if self._buffer is None:
            with self._lock:
                if self._buffer is None:
                    self._buffer = self._loaded()
        return self._buffer

    def borrow(self) -> Buffer:
        """The weight for one use: what is not in memory yet is loaded and not kept."""
        return self._loaded() if self._buffer is None else self._buffer

    def derived(self, key: int, make: Callable[[], Parameter]) -> Parameter:
        """The parameter kept here under `key`, which `make` makes if there is none.

        Something computed of this weight lives as long as the weight does.
        """
        with self._lock:
            found = self._derived.get(key)
            if found is None:
                found = self._derived[key] = make()
            return found

    def _loaded(self) -> Buffer:
        array = self._load()
        found = TensorType.of(array)
        if found != self.type:
            raise CheckpointError(
                f"parameter `{self.name}` was declared as `{self.type}`, its source gave `{found}`"
            )
        return self.backend.to_device(array)
