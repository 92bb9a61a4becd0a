"""Caches on disk, found, and filled for a model: kernels, packed weights, programs."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend, Compiling
from gptrs.capture.caching.optimized_programs import OptimizedPrograms, optimized_programs
from gptrs.disk_cache import CachePart as CachePart
from gptrs.disk_cache import CacheReport as CacheReport
from gptrs.disk_cache import DiskCache
from gptrs.disk_cache import Entries as Entries
from gptrs.errors import BackendError, ContextLengthError, PluginError, UsageError
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.manager import manager
from gptrs.progress import StepProgress
from gptrs_observe.measure.compilations import compilations_told
from gptrs_runtime.content_digest import kept_digests
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.stream import TextStream
from gptrs_runtime.loaded_model import LoadedModel

DEFAULT_LENGTHS = (1, 128, 512)
"""The default prompt lengths to prepare."""


def kernel_caches(name: str | None = None) -> dict[str, Backend]:
    """Return the backend called `name`, else all that work, if they keep compiled code on disk.

    BackendError if the requested one keeps no compiled code, PluginError if it is unknown or
    broken.
    """
    found = {key: each for key, each in _backends(name).items() if each.keeps_code}
    if name is not None and not found:
        raise BackendError(
            f"backend `{name}` keeps no compiled kernels",
            hint="leave out --backend to ask all backends",
        )
    return found


def weight_caches(name: str | None = None) -> dict[str, Backend]:
    """Return the backend called `name`, else all that work, if they keep weights on disk."""
    return {key: each for key, each in _backends(name).items() if each.keeps_weights}


def program_cache() -> OptimizedPrograms:
    """Return the cache of optimized programs, which all backends share."""
    return optimized_programs()


def digest_cache() -> DiskCache:
    """Return the digests of all weights."""
    return kept_digests()


class Warmed(Struct, frozen=True):
    """Things made in advance, and the files that this process wrote."""

    kernels: int
    """How many kernels were compiled, or programs on a backend that keeps these."""
    noun: str
    """`kernel` or `program`."""
    weights: Entries
    programs: Entries


@contextmanager
def compiling(backend: Backend, tell: Compiling) -> Generator[None]:
    """Scope in which `tell` is called for each kernel that `backend` reports to compile."""
    with backend.compiling(tell) if backend.tells_kernels else nullcontext():
        yield


def warm(
    model: LoadedModel, lengths: Sequence[int] | None, step: StepProgress | None = None
) -> Warmed:
    """Compile what `model` needs for prompts of these lengths and for text after them.

    Returns the entries that the caches lacked; afterwards, everything is on disk. Each prompt is
    read as `generate` reads it, a token follows, and `forward` runs once. The default lengths
    shrink to the context of the model; ContextLengthError for a given one that does not fit in it,
    ModelError for a model that cannot generate.
    """
    asked = _lengths_that_fit(lengths, model.causal_lm().context_length)
    tasks = {"prompt": _generate_after, "forward": _forward}
    work = list(itertools.product(asked, tasks))
    progress = _Progress(len(work), step)
    with _counting(model.backend, progress):
        for length, task in work:
            progress.begin(f"{task} of {length} tokens")
            tasks[task](model, length)
    backend = model.backend
    written = backend.finish_weights()
    progress.end()
    return Warmed(progress.compiled, progress.noun, written, program_cache().written)


@contextmanager
def _counting(backend: Backend, progress: _Progress) -> Generator[None]:
    """Scope in which `progress` is called for each kernel, or each program, that is compiled."""
    by_program = backend.keeps_code and not backend.tells_kernels
    with (
        compiling(backend, progress.kernel),
        compilations_told(progress.program) if by_program else nullcontext(),
    ):
        yield


class _Progress:
    """Reports pieces of work to `step`, and the kernels that are compiled in each."""

    def __init__(self, total: int, step: StepProgress | None) -> None:
        self.compiled = 0
        self.noun = "kernel"
        self._done = -1
        self._total = total
        self._name = ""
        self._step = step

    def begin(self, name: str) -> None:
        """Begin a piece; the previous one is done."""
        self._done += 1
        self._name = name
        self._tell(name)

    def kernel(self, number: int, total: int | None) -> None:
        """A kernel is about to be compiled."""
        self.compiled = number
        self._tell(f"{self._name}, compiling kernel {number}")

    def program(self, what: str) -> None:
        """A program is about to be compiled, by a backend that keeps programs."""
        self.compiled, self.noun = self.compiled + 1, "program"
        self._tell(f"{self._name}, {what}")

    def end(self) -> None:
        """All pieces are done."""
        self._done = self._total
        self._tell("")

    def _tell(self, text: str) -> None:
        if self._step is not None:
            self._step(self._done, self._total, text)


def _lengths_that_fit(lengths: Sequence[int] | None, context: int) -> list[int]:
    """Each length once, with room for the token that follows."""
    if lengths is None:
        return sorted({max(1, min(length, context - 1)) for length in DEFAULT_LENGTHS})
    for length in lengths:
        if length < 1:
            raise UsageError(f"a prompt has 1 or more tokens, got {length}")
        if length + 1 > context:
            raise ContextLengthError(
                f"a prompt of {length} tokens and a new one do not fit into the context of"
                f" {context} tokens",
                hint="ask for shorter prompts with --prompt-lengths",
            )
    return sorted(set(lengths))


def _generate_after(model: LoadedModel, length: int) -> None:
    # Another token for each length: cached parts of a prompt would not be read again.
    prompt = [length % model.causal_lm().vocab_size] * length
    # The second new token is never read, so it need not fit into the context.
    options = GenerationOptions(2, Sampling(0.0), ignore_eos=True, context_shift=True)
    for _ in TextStream(model, prompt, options):
        pass


def _forward(model: LoadedModel, length: int) -> None:
    # Any tokens will do: kernels depend only on shapes and types.
    model.forward(np.zeros((1, length), np.int64))


def _backends(name: str | None) -> dict[str, Backend]:
    """Return the backend called `name`, which must work, else all that work."""
    if name is not None:
        return {name: manager().get_backend(name)}
    names = [plugin.name for plugin in manager().descriptions(BackendPlugin)]
    return {name: backend for name in names if (backend := _working(name)) is not None}


def _working(name: str) -> Backend | None:
    try:
        return manager().get_backend(name)
    except PluginError:  # its record says why, and `gptrs doctor` shows it
        return None
