"""A weight of a model as a leaf of the graph: known by key and type, loaded on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from gptrs.backend.mapped_pages import ask_for_pages, release_pages
from gptrs.backend.protocol import Backend, Buffer
from gptrs.errors import CheckpointError
from gptrs.ir.tensor_type import TensorType

PREFETCH = 2
"""Parts of a program ahead that weights are read, unless a model says otherwise."""
PIN_BELOW = 65_536
"""Bytes from which on a weight may leave memory, unless a model says otherwise."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """How the weights of a model go through memory that is too small for all of them at once."""

    budget: int
    """Most bytes of weights in memory."""
    prefetch: int = PREFETCH
    """How many parts of a program ahead the file is read; 0: it is read when it is needed."""
    pin_below: int = PIN_BELOW
    """Weights of fewer bytes stay once they were read."""

    @property
    def share(self) -> int:
        """Bytes of weights that a part of a program reads, at the most, and that are left free."""
        return self.budget // 8


class Lender(Protocol):
    """Who decides which weights of a model are in memory; see `streaming.residency`."""

    @property
    def streaming(self) -> Streaming:
        """What it was told to keep to."""
        ...

    def require_room(self, parts: Sequence[Loan]) -> None:
        """ModelError if one of the parts of a program needs more at one time than there may be."""
        ...

    def lent(self, loan: Loan) -> AbstractContextManager[list[Buffer]]:
        """Scope in which these weights are in memory: their buffers."""
        ...

    def ask_for(self, loan: Loan) -> None:
        """Say that these weights will be needed soon."""
        ...


@dataclass(frozen=True, slots=True)
class Loan:
    """The weights that a part of a program needs at one time."""

    weights: list[Parameter]
    rows: list[int | None]
    """Of how many single rows of each weight it reads at the most; None: it reads all of it."""


class Parameter:
    """One named weight on one backend. `load` is called once, by the first program that needs it.

    `key` is the 128-bit ParamKey of the weight; equal keys mean equal contents. What has a `lender`
    is in memory only as long as that says so. `sources` are what a derived parameter is made of.
    `zero_copy` says that `load` copies nothing, and reads nothing ahead of its use.
    """

    abstract: ClassVar[bool] = False

    def __init__(
        self,
        type: TensorType,
        key: int,
        name: str,
        load: Callable[[], np.ndarray],
        backend: Backend,
        lender: Lender | None = None,
        sources: Sequence[Parameter] = (),
        zero_copy: bool = False,
    ) -> None:
        self.type = type
        self.key = key
        self.name = name
        self.backend = backend
        self.lender = lender
        self.sources = sources
        self.zero_copy = zero_copy
        self._load = load
        self._buffer: Buffer | None = None
        self._derived: dict[int, Parameter] = {}
        self._lock = threading.Lock()

    @property
    def loaded(self) -> bool:
        """Whether the weight is in the memory of the backend."""
        return self._buffer is not None

    def buffer(self) -> Buffer:
        """The weight in the memory of its backend, loaded now if it was not yet.

        One that has a lender does not stay there, unless it is lent already.
        """
        if self.lender is not None:
            return self.borrow()
        if self._buffer is None:
            with self._lock:
                if self._buffer is None:
                    self._buffer = self._loaded()
        return self._buffer

    def borrow(self) -> Buffer:
        """The weight for one use: what is not in memory yet is loaded and not kept."""
        buffer = self._buffer
        return self._loaded() if buffer is None else buffer

    def lend(self) -> Buffer:
        """The weight in memory, to stay there until `drop`; for its lender."""
        if self._buffer is None:
            self._buffer = self._loaded()
        return self._buffer

    def drop(self) -> None:
        """Forget the weight, and give the memory of a mapped file back; for its lender."""
        if self._buffer is not None:
            release_pages(self.backend.to_host(self._buffer))
            self._buffer = None

    def ask_ahead(self) -> None:
        """Let the system read the file that the weight, or what it is made of, is mapped from."""
        for source in self.sources or (self,):
            if source.zero_copy:
                ask_for_pages(source.backend.to_host(source.borrow()))

    @property
    def loading_nbytes(self) -> int:
        """The bytes that loading it takes: its own, and those of what it is made of."""
        return self.type.nbytes + sum(source.type.nbytes for source in self.sources)

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
