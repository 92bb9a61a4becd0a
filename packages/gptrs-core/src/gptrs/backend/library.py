"""A program on its way to a library of machine code, which runs without Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import InputRole
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards


class TextCache(Struct, frozen=True):
    """What a caller of a language model's step must know to keep the cache of texts.

    The inputs of the program are those of `gptrs.nn.ragged_step.RaggedStep` in order, with a page
    table and slots for each cache group, and then the pools: keys and values of each layer.
    """

    vocab_size: int
    context_length: int
    """Most positions of a text."""
    page_size: int
    groups: int
    pools: int
    rewinds: bool
    """Whether texts can be truncated; those with states cannot."""


class OutgoingProgram(Struct, frozen=True):
    """A program optimized for a backend, with its weights, the last parameters of `@main`.

    `weights` return their elements; each is called once, and the result may be dropped before the
    next call. With `guards` the program has symbolic dims and serves all sizes that they accept.
    """

    program: Program
    roles: tuple[InputRole, ...]
    weights: tuple[Callable[[], np.ndarray], ...]
    guards: SizeGuards | None = None


class OutgoingLibrary(Struct, frozen=True):
    """A computation on its way to a library; `name` is an identifier of C.

    `programs` compute the same for other sizes, the most general one first. The backend lowers each
    before it asks for the next: which sizes are still to be served follows from its guards.
    """

    name: str
    inputs: tuple[str, ...]
    """The names of the parameters before the weights."""
    outputs: tuple[str, ...]
    programs: Iterable[OutgoingProgram]
    texts: TextCache | None = None
    """Set for a step of a language model."""


class WrittenLibrary(Struct, frozen=True):
    """The files of a library."""

    library: str
    """The shared library."""
    header: str
    """The C header."""
    weights: str
    """The file of weights that the library maps."""
    threads: int
    """The most threads that it starts."""
    kernels: int
    """Number of kernels in it."""
    programs: int
    """Number of programs, each for other sizes."""
    needs: tuple[str, ...]
    """Features of the processor that it needs."""
