"""A model weight as a leaf of the graph: identified by key and type, loaded on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend, Buffer
from gptrs.backend.mapped_files import prefetch_pages
from gptrs.backend.sharding import Axes, sharding_of
from gptrs.backend.weight_identity import WeightIdentity, WeightOrigin
from gptrs.capture.backend_calls import host_view, moved, release_pages_of, to_device, to_host
from gptrs.errors import CheckpointError
from gptrs.ir.tensor_type import TensorType

PREFETCH = 2
"""How many program parts ahead weights are prefetched by default."""
PIN_BELOW = 65_536
"""Default size in bytes from which a weight may leave memory."""


class Streaming(Struct, frozen=True):
    """How to stream a model's weights through memory too small for all of them."""

    budget: int
    """Limit of weights in memory, in bytes."""
    prefetch: int = PREFETCH
    """How many program parts ahead the file is read; 0: when a part needs it."""
    pin_below: int = PIN_BELOW
    """Weights of fewer bytes remain in memory once read."""

    @property
    def share(self) -> int:
        """Limit of the bytes of weights that a part of a program reads, and of the bytes kept
        free."""
        return self.budget // 8


class WeightSource(Struct, frozen=True):
    """A weight that can be read in parts; a `ShardSource`."""

    type: TensorType
    part: Callable[[tuple[slice, ...]], np.ndarray]

    def read(self, index: tuple[slice, ...]) -> np.ndarray:
        """Return a part of the weight."""
        return self.part(index)


class Parameter:
    """One named weight on one backend, which `load` reads from its source.

    `key` is the 128-bit ParamKey of the weight; equal keys mean equal contents. A weight with a
    `streamer` is in memory only while the streamer holds it. `sources` are the weights of a derived
    parameter. `zero_copy`: `load` returns a view of a mapped file without reading it. `read`
    returns the elements in memory, for readers outside a program, and `read_slice` a part of them.
    `compute` returns the buffer of a derived parameter, for backends with their own memory. `axes`
    names its axes for backends with a mesh. With an `identity`, a backend that `keeps_weights` may
    keep forms of the weight on disk.
    """

    abstract: ClassVar[bool] = False
    outcome: ClassVar[None] = None

    def __init__(
        self,
        type: TensorType,
        key: int,
        name: str,
        load: Callable[[], np.ndarray],
        backend: Backend,
        streamer: WeightStreamer | None = None,
        sources: Sequence[Parameter] = (),
        zero_copy: bool = False,
        identity: WeightIdentity | None = None,
        read: Callable[[], np.ndarray] | None = None,
        read_slice: Callable[[tuple[slice, ...]], np.ndarray] | None = None,
        compute: Callable[[], Buffer] | None = None,
    ) -> None:
        self.type = type
        self.key = key
        self.name = name
        self.backend = backend
        self.streamer = streamer
        self.sources = sources
        self.zero_copy = zero_copy
        self.identity = identity
        self._load = load
        self._read_copy = read
        self._read_slice = read_slice
        self._compute = compute
        self.axes: Axes | None = None
        self._buffer: Buffer | None = None
        self._derived: dict[int, Parameter] = {}
        self._lock = threading.Lock()

    @property
    def loaded(self) -> bool:
        """Whether the weight is kept in the memory of its backend."""
        return self._buffer is not None

    @property
    def loading_nbytes(self) -> int:
        """The bytes of memory that loading takes, including its sources."""
        return self.type.nbytes + sum(source.type.nbytes for source in self.sources)

    def buffer(self, *, keep: bool = True) -> Buffer:
        """Return the weight in the memory of its backend, loading it if necessary.

        It stays there if `keep` is set and it is not streamed. CheckpointError if the source has
        another type.
        """
        found = self._buffer
        if found is not None:
            return found
        return self.acquire() if keep and self.streamer is None else self._read()

    def host_value(self, *, keep: bool = True) -> np.ndarray:
        """Return the elements as an array that is not a view of a file; `keep` as in `buffer`."""
        if self.zero_copy and self._read_copy is not None:
            return self._read_copy()
        return to_host(self.backend, self.buffer(keep=keep))

    def acquire(self) -> Buffer:
        """Return the weight in the memory of its backend, held until `release`."""
        # Only one thread reads the weight: a second buffer would double its memory.
        with self._lock:
            if self._buffer is None:
                self._buffer = self._read()
            return self._buffer

    def release(self) -> None:
        """Drop the weight, and let the system reclaim the memory of a mapped file."""
        if self._buffer is not None:
            self.release_pages(self._buffer)
            self._buffer = None

    def release_pages(self, buffer: Buffer) -> None:
        """Let the system reclaim the memory of the mapped file under a `buffer` of the weight."""
        if self.zero_copy:  # other memory is freed with the buffer
            release_pages_of(self.backend, buffer)

    def prefetch(self) -> None:
        """Ask the system to read ahead the mapped files of the weight or its sources."""
        # The cached form replaces the file: reading both would waste the disk.
        if self.identity is not None and self.backend.prefetch_weight(self.identity):
            return
        for source in self.sources or (self,):
            if source.zero_copy:
                view = host_view(source.backend, source.buffer(keep=False))
                if view is not None:
                    prefetch_pages(view)

    def derived(self, key: int, make: Callable[[], Parameter]) -> Parameter:
        """Return the derived parameter under `key`; `make` creates it if there is none.

        A derived parameter lives as long as this weight.
        """
        with self._lock:
            found = self._derived.get(key)
            if found is None:
                found = self._derived[key] = make()
            return found

    def _read(self) -> Buffer:
        backend = self.backend
        if self._compute is not None and backend.own_memory:
            return self._compute()
        if backend.mesh is not None:
            sharding = sharding_of(backend.mesh, self.type.shape, self.axes)
            source = WeightSource(self.type, self._part_of)
            return moved(backend, "place", lambda: backend.place(source, sharding), self.type)
        if self.identity is None or not backend.keeps_weights:
            return to_device(backend, self._loaded())
        identity, load = self.identity, self._loaded
        return moved(
            backend,
            "weight_to_device",
            lambda: backend.weight_to_device(identity, self.type, load, self._origin),
            self.type,
        )

    @property
    def _origin(self) -> WeightOrigin:
        return "mapped" if self.zero_copy else "computed" if self.sources else "read"

    def _part_of(self, index: tuple[slice, ...]) -> np.ndarray:
        if self._read_slice is not None:
            return self._read_slice(index)
        return self._loaded()[index]

    def _loaded(self) -> np.ndarray:
        array = self._load()
        found = TensorType.of(array)
        if found != self.type:
            raise CheckpointError(
                f"parameter `{self.name}` was declared as `{self.type}`, its source gave `{found}`"
            )
        return array


WeightRows = Mapping[Parameter, int | None]
"""The weights that a part of a program reads: the largest number of rows of each, None for all."""


class WeightStreamer(Protocol):
    """Decides which weights of a model are in memory; see
    `streaming.streamed_executable.MruStreamer`."""

    @property
    def streaming(self) -> Streaming:
        """Its budget."""
        ...

    def require_room(self, parts: Sequence[WeightRows]) -> None:
        """Raise ModelError if one part of a program needs more memory at once than the budget."""
        ...

    def acquire(self, weights: WeightRows) -> AbstractContextManager[Mapping[Parameter, Buffer]]:
        """Hold these weights in memory for a scope, and yield their buffers."""
        ...

    def prefetch(self, weights: WeightRows) -> None:
        """Prefetch weights that a later part acquires whole."""
        ...
