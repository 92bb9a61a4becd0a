"""The memory of the paged KV cache: a pool of keys and one of values for each layer."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, cast
from weakref import WeakValueDictionary

import numpy as np

from gptrs.backend.contract import Backend, Buffer
from gptrs.backend.memory import claims_when_written
from gptrs.capture import primitives
from gptrs.capture.backend_calls import host_view, placed
from gptrs.capture.graph import Source, Stored
from gptrs.capture.jitting.jit import jit
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.normalization import vector_bytes
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.cache_spec import CacheSpec, cache_groups
from gptrs.nn.ragged_step import PAGE_SIZE, RaggedStep, TextTokens, own_pages, ragged_step

_POOL = (None, "kv_heads", None, None)
"""The names of the axes of a pool."""
LayerPools = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [P, K, S, D] with the `PAGE_SIZE` S, or si8 [.., D + 4]."""


class PageBuffers:
    """The pools of all layers, one per entry of `specs`; pools of a cache group have equally many
    pages.

    A step donates `pools` and replaces them with the new ones. `pages` has a number for each group
    of `cache_groups(specs)`. Pages that were never written take no memory from the system. If
    `backend` is None, the first step chooses it. A page of a layer with states has the last
    `states` ones, 1 to `PAGE_SIZE`, so that as many tokens less one can be taken back. UsageError
    for another number of groups or fewer pages than one.
    """

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        pages: Sequence[int],
        dtype: DType = dtypes.f32,
        backend: Backend | None = None,
        states: int = 1,
    ) -> None:
        self.groups = cache_groups(specs)
        self.dtype = dtype
        self.states = states
        self._backend = backend
        self._specs = tuple(specs)
        self.pages = self._checked(pages)
        self._most = self.pages
        self._roomy: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()
        """Arrays with spare pages, by identity of the pools, which are views of their first
        pages."""
        of_layer = {
            layer: count
            for group, count in zip(self.groups, self.pages, strict=True)
            for layer in group.layers
        }
        self.pools: list[LayerPools] = [
            (self._zeros(spec, of_layer[layer]), self._zeros(spec, of_layer[layer]))
            for layer, spec in enumerate(specs)
        ]

    @property
    def usable(self) -> bool:
        """Whether the pools can be read: a failed step may have consumed its donated inputs."""
        sources = (pool.source for pair in self.pools for pool in pair)
        return not any(isinstance(source, Stored) and source.consumed for source in sources)

    def page_bytes(self, group: int) -> int:
        """Return the memory of one page in all layers of a group."""
        specs = [self._specs[layer] for layer in self.groups[group].layers]
        return sum(
            2 * spec.n_kv_heads * self._stored(spec) * self._kept(spec) * self._type(spec).itemsize
            for spec in specs
        )

    def expect(self, pages: Sequence[int]) -> None:
        """Reserve address space for pages per group: growing up to that copies nothing.

        No effect where the system does not overcommit memory.
        """
        self._most = self._checked(pages)

    def resize(self, pages: Sequence[int]) -> None:
        """Change the number of pages of each group, keeping the common ones.

        Nothing is compiled for it. Pools are copied unless they grow within the reservation of
        `expect`.
        """
        old, self.pages = self.pages, self._checked(pages)
        for group, before, after, most in zip(
            self.groups, old, self.pages, self._most, strict=True
        ):
            if before != after:
                for layer in group.layers:
                    keys, values = self.pools[layer]
                    self.pools[layer] = (
                        self._resized(keys, after, most),
                        self._resized(values, after, most),
                    )

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy a page of all layers of a group, before a text writes to a shared page."""
        layers = self.groups[group].layers
        copied = _copy_page(
            [self.pools[layer] for layer in layers], _first_element(source), _first_element(target)
        )
        for layer, pools in zip(layers, copied, strict=True):
            self.pools[layer] = pools

    def read(self, group: int, page: int, last: int = 0) -> list[np.ndarray]:
        """Return a page of each layer of a group: keys and values in turn, [1, K, S, D].

        Of states, [1, 1, 1, D], the one after position `last`.
        """
        layers = self.groups[group].layers
        pools = [self.pools[layer] for layer in layers]
        parts = [part.numpy() for part in _read_page(pools, _first_element(page))]
        at = last % self.states
        is_state = [self._specs[layer].per_page for layer in layers for _ in range(2)]
        return [
            part[:, :, at : at + 1] if whole else part
            for part, whole in zip(parts, is_state, strict=True)
        ]

    def write(self, group: int, page: int, parts: Sequence[np.ndarray]) -> None:
        """Write what `read` returned, from buffers with the same layers, into a page."""
        layers = self.groups[group].layers
        pools = [self.pools[layer] for layer in layers]
        # Whatever is read next of a state is the one state that there is.
        kept = [self._kept(self._specs[layer]) for layer in layers for _ in range(2)]
        contents = [
            Tensor.of_array(np.repeat(part, size // part.shape[2], axis=2))
            for part, size in zip(parts, kept, strict=True)
        ]
        written = _write_page(pools, _first_element(page), contents)
        for layer, pair in zip(layers, written, strict=True):
            self.pools[layer] = pair

    def _checked(self, pages: Sequence[int]) -> tuple[int, ...]:
        if len(pages) != len(self.groups) or min(pages, default=0) < 1:
            raise UsageError(
                f"the buffers of {len(self.groups)} cache groups need as many numbers of pages,"
                f" each at least 1, got {list(pages)}"
            )
        return tuple(pages)

    def _kept(self, spec: CacheSpec) -> int:
        """Return the number of vectors of a head in a page."""
        return self.states if spec.per_page else PAGE_SIZE

    def _stored(self, spec: CacheSpec) -> int:
        """Return the elements of a vector in a pool."""
        return spec.head_dim + vector_bytes(TensorType(self._type(spec), ()))

    def _type(self, spec: CacheSpec) -> DType:
        """Return the element type of a layer: states are updated again and again, so they must not
        be rounded."""
        if spec.per_page:
            return dtypes.f32
        return dtypes.bf16 if spec.exact and self.dtype is dtypes.si8 else self.dtype

    def _zeros(self, spec: CacheSpec, pages: int) -> Tensor:
        shape = (pages, spec.n_kv_heads, self._kept(spec), self._stored(spec))
        return self._uncopied(np.zeros(shape, self._type(spec).numpy))

    def _resized(self, pool: Tensor, pages: int, most: int) -> Tensor:
        grown = self._grown(pool.source, pages)
        if grown is None:
            grown = self._new_array(pool.type.with_shape((pages, *pool.shape[1:])), most)
            kept = min(pages, pool.shape[0])
            grown[:kept] = pool.numpy()[:kept]
        return self._uncopied(grown)

    def _grown(self, pool: Source, pages: int) -> np.ndarray | None:
        """Consume the pool and return it grown in place to `pages` pages; None if impossible.

        The address space behind a pool is its own as long as no other array views it.
        """
        if not isinstance(pool, Stored) or pool.viewed or pool.consumed or pool.backend is None:
            return None
        held = host_view(pool.backend, pool.buffer)
        if held is None:
            return None
        roomy = self._roomy.get(id(held.base))
        if roomy is None or not len(held) < pages <= len(roomy):
            return None
        if held.ctypes.data != roomy.ctypes.data:
            return None
        pool.consumed = True
        return roomy[:pages]

    def _new_array(self, type: TensorType, most: int) -> np.ndarray:
        """Return zeros that can grow in place, up to `most` along the first axis."""
        shape, dtype = type.shape, type.dtype.numpy
        if claims_when_written() and shape[0] < most:
            with suppress(OSError):  # no address space is left, or the system does not overcommit
                roomy = _claimed_when_written((most, *shape[1:]), dtype)
                self._roomy[id(roomy)] = roomy
                return roomy[: shape[0]]
        return np.zeros(shape, dtype)

    def _uncopied(self, array: np.ndarray) -> Tensor:
        """Return a tensor over `array` itself: a copy would allocate the memory of untouched
        pages."""
        backend = self._backend
        buffer: Buffer = array
        if backend is not None and not _is_view(there := placed(backend, array, _POOL), array):
            buffer = there
        # The view of a device is read-only, and its donation would copy the whole pool.
        return Tensor(Stored(TensorType.of(array), buffer, backend, axes=_POOL))


def _is_view(buffer: Buffer, array: np.ndarray) -> bool:
    return isinstance(buffer, np.ndarray) and np.may_share_memory(cast("np.ndarray", buffer), array)


def _first_element(page: int) -> Tensor:
    return Tensor.of_array(np.array([page, 0, 0, 0]))


def _page(pool: Tensor, start: Tensor) -> Tensor:
    return primitives.dynamic_slice(pool, start, (1, *pool.shape[1:]))


def _copied(pools: list[LayerPools], source: Tensor, target: Tensor) -> list[LayerPools]:
    return [
        (
            primitives.dynamic_update_slice(keys, _page(keys, source), target),
            primitives.dynamic_update_slice(values, _page(values, source), target),
        )
        for keys, values in pools
    ]


def _contents(pools: list[LayerPools], page: Tensor) -> list[Tensor]:
    return [_page(pool, page) for pair in pools for pool in pair]


def _written(pools: list[LayerPools], page: Tensor, parts: list[Tensor]) -> list[LayerPools]:
    pairs = zip(pools, parts[::2], parts[1::2], strict=True)
    return [
        (
            primitives.dynamic_update_slice(keys, key, page),
            primitives.dynamic_update_slice(values, value, page),
        )
        for (keys, values), key, value in pairs
    ]


_AXES = {"pools": ("P", None, None, None)}
_copy_page = jit(_copied, donate=["pools"], dynamic=_AXES)
_read_page = jit(_contents, dynamic=_AXES)
_write_page = jit(_written, donate=["pools"], dynamic=_AXES)


def _claimed_when_written(shape: Shape, dtype: np.dtype[np.generic]) -> np.ndarray:
    """Return zeros that the system allocates page by page; OSError if it does not.

    The mapping is private: with a shared one, `mmap`'s default, forked processes would write to the
    same pages, and access is slower. NumPy would ask for huge pages, for which the system may have
    to make room: that took 30 ms of a prefill of 128 tokens when the page cache filled the memory.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.ndarray(shape, dtype, mmap.mmap(-1, math.prod(shape) * dtype.itemsize, private))


# Texts with separate pages: a cache without page sharing, for comparisons, tests and examples.


class StepModel(Protocol):
    """The part of `CausalLM` that runs steps."""

    def cache_specs(self) -> Sequence[CacheSpec]:
        """Return what the cache of each block holds."""
        ...

    def new_buffers(
        self, pages: Sequence[int], dtype: DType = ..., states: int = ...
    ) -> PageBuffers:
        """Return empty pools."""
        ...

    def step(self, step: RaggedStep, buffers: PageBuffers) -> np.ndarray:
        """Append tokens; return the logits after the last of each text."""
        ...


class PagedTexts:
    """`batch` texts of up to `limit` positions; each owns its pages from the start.

    `lengths` has the positions of each. The pages are never shared or freed: generation has a pool
    for that.
    """

    def __init__(self, lm: StepModel, batch: int, limit: int, dtype: DType = dtypes.f32) -> None:
        self.lengths = [0] * batch
        self._lm = lm
        self._short = cast("int | None", getattr(lm, "short_context", None))
        self._read: list[list[int]] = [[] for _ in range(batch)]
        groups = cache_groups(lm.cache_specs())
        self._tables = [own_pages(batch, limit)] * len(groups)
        self.buffers = lm.new_buffers([self._tables[0].size] * len(groups), dtype)

    def append(self, tokens: TextTokens) -> np.ndarray:
        """Append one token or more to each text; return the logits f32 [B, V] after the last.

        IndexError beyond the limit, ContextLengthError beyond the context.
        """
        given = [[int(token) for token in new] for new in tokens]
        for text, new in enumerate(given):
            known = self._read[text]
            if self._short is not None and len(known) <= self._short < len(known) + len(new):
                given[text], self.lengths[text] = known + new, 0
            self._read[text] = known + new
        step = ragged_step(given, self.lengths, self._tables)
        logits = self._lm.step(step, self.buffers)
        self.lengths = step.lengths.tolist()
        return logits
