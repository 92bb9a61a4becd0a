"""Benchmark cases, and the interface of peers that run the same work."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from gptrs.errors import CacheBudgetError, ContextLengthError, UsageError
from gptrs.plugins.references import Reference
from gptrs_runtime.generation.generate import PREFILL_CHUNK, GenerationOptions, stream
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.loaded_model import LoadedModel

Tokens = list[int]


class BenchCase(Protocol):
    """A piece of work that can be repeated."""

    def prepare(self) -> None:
        """Get ready for `run`; takes no part in the time."""
        ...

    def run(self) -> None:
        """Do the work."""
        ...


class DecodeCase(BenchCase, Protocol):
    """A `BenchCase` that generates tokens one after another."""

    gaps: list[float]
    """Seconds that each step of the last run took."""


class PeerModel(Protocol):
    """The same model in another framework, with as many threads as ours."""

    @property
    def load_seconds(self) -> float:
        """How long loading it took."""
        ...

    def prefill(self, prompts: Iterator[Tokens]) -> BenchCase:
        """Like `Prefill`."""
        ...

    def decode(self, context: int, count: int, texts: int = 1) -> DecodeCase:
        """Like `Decode`."""
        ...


class Prefill:
    """Reads a prompt up to the choice of its first token; each run takes the next of `prompts`.

    Prompts should differ, so that none is found in a cache.
    """

    def __init__(
        self, model: LoadedModel, prompts: Iterator[Tokens], *, cache_dtype: str | None = None
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._options = greedy(1, cache_dtype=cache_dtype)

    def prepare(self) -> None:
        """Take the next prompt."""
        self._stream = stream(self._model, next(self._prompts), self._options)

    def run(self) -> None:
        """Prefill the whole prompt in chunks, as `generate` does, and choose a token."""
        next(self._stream)


class Decode:
    """Appends `count` tokens to each of `texts` texts, after contexts of `context` tokens.

    Raises UsageError and ContextLengthError like `require_room`.
    """

    def __init__(
        self,
        model: LoadedModel,
        context: int,
        count: int,
        texts: int = 1,
        *,
        cache_dtype: str | None = None,
    ) -> None:
        lm = model.causal_lm()
        require_room(lm.context_length, context)
        require_room(lm.context_length, context + count)
        if texts < 1:
            raise UsageError(f"a measurement needs 1 or more texts, got {texts}")
        self._prompts = random_prompts([context], lm.vocab_size)
        # The last chosen token is not read, hence one more. All prompts are read in one step, so
        # that all texts begin together.
        options = greedy(count + 1, chunk=context * texts, cache_dtype=cache_dtype)
        self._setup = GenerationSetup(model, options)
        self._count = count
        self._texts = texts
        self.gaps: list[float] = []

    def prepare(self) -> None:
        """Read the contexts and choose the first tokens; CacheBudgetError if the cache is full."""
        self._scheduler = self._setup.new_scheduler()
        for _ in range(self._texts):
            self._scheduler.add(self._setup.new_text(next(self._prompts)))
        if len(self._scheduler.step()) < self._texts:
            self._scheduler.close()
            raise CacheBudgetError(
                f"the key/value cache does not hold {self._texts} such texts together",
                hint="measure fewer, or raise GPTRS_CACHE_BUDGET",
            )

    def run(self) -> None:
        """Read the last token of each text, and choose the likeliest next one, `count` times."""
        self.gaps = []
        for _ in range(self._count):
            started = time.perf_counter()
            self._scheduler.step()
            self.gaps.append(time.perf_counter() - started)


class RaggedPrefill:
    """Reads prompts of these lengths together, to the choice of a token after each.

    A single length is one prompt alone. Prompts differ in each run. Errors as `require_room`.
    """

    def __init__(
        self, model: LoadedModel, lengths: Sequence[int], *, cache_dtype: str | None = None
    ) -> None:
        lm = model.causal_lm()
        for length in lengths:
            require_room(lm.context_length, length + 1)
        self._setup = GenerationSetup(model, greedy(1, cache_dtype=cache_dtype))
        self._lengths = lengths
        self._prompts = random_prompts(lengths, lm.vocab_size)

    def prepare(self) -> None:
        """Take the next prompts."""
        self._scheduler = self._setup.new_scheduler()
        for _ in self._lengths:
            self._scheduler.add(self._setup.new_text(next(self._prompts)))

    def run(self) -> None:
        """Read them, in the chunks of `generate`."""
        while self._scheduler.busy:
            self._scheduler.step()


class KnownPrefill:
    """Reads `new` tokens of a prompt whose first `known` ones another prompt shares."""

    def __init__(
        self, model: LoadedModel, known: int, new: int, *, cache_dtype: str | None = None
    ) -> None:
        lm = model.causal_lm()
        require_room(lm.context_length, known + new + 1)
        self._prompts = random_prompts([known, new, new], lm.vocab_size)
        self._setup = GenerationSetup(model, greedy(1, cache_dtype=cache_dtype))

    def prepare(self) -> None:
        """Read the other prompt, as long, whose last tokens differ."""
        shared, other, new = (next(self._prompts) for _ in range(3))
        self._prompt = shared + new
        # As long as the prompt itself, so both have the same number of pages, and the cache evicts
        # nothing in between.
        self._read(shared + other)

    def run(self) -> None:
        """Read the prompt; its first tokens are found in the cache."""
        self._read(self._prompt)

    def _read(self, prompt: Tokens) -> None:
        scheduler = self._setup.new_scheduler()
        scheduler.add(self._setup.new_text(prompt))
        while scheduler.busy:
            scheduler.step()


class ForwardCase:
    """Runs the model once on an input: logits, token vectors, or states.

    ModelError for a model with none of these.
    """

    def __init__(self, model: LoadedModel, inputs: np.ndarray) -> None:
        self._run = _run_of(model)
        self._inputs = model.checked_inputs(inputs)

    def prepare(self) -> None:
        """Nothing to do."""

    def run(self) -> None:
        """Return all outputs as NumPy arrays."""
        self._run(self._inputs)


class ReferenceCase:
    """Runs a reference once on the inputs of a `ForwardCase`."""

    def __init__(self, reference: Reference, inputs: np.ndarray) -> None:
        self._reference = reference
        self._inputs = inputs

    def prepare(self) -> None:
        """Nothing to do."""

    def run(self) -> None:
        """Return its output as a NumPy array."""
        self._reference.output(self._inputs)


def _run_of(model: LoadedModel) -> Callable[[np.ndarray], object]:
    if model.has_logits:
        return model.forward
    if "text_embedder" in model.capabilities:
        embedder = model.text_embedder()
        return lambda tokens: embedder.encode(tokens, np.ones(tokens.shape, np.bool_))
    return model.hidden_states


def random_prompts(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> Iterator[Tokens]:
    """Yield prompts of these lengths, over and over, with other random tokens each time.

    The same ones for the same arguments, so that a peer reads what we read.
    """
    random = np.random.default_rng([seed, *lengths])
    for length in itertools.cycle(lengths):
        yield random.integers(0, vocab_size, length, np.int64).tolist()


def require_room(context: int, wanted: int) -> None:
    """UsageError or ContextLengthError unless 1 <= wanted <= context."""
    if wanted < 1:
        raise UsageError(f"a measurement needs 1 or more tokens, got {wanted}")
    if wanted > context:
        raise ContextLengthError(
            f"{wanted} tokens do not fit into the context of {context} tokens",
            hint="measure with fewer tokens",
        )


def greedy(
    count: int, chunk: int = PREFILL_CHUNK, *, cache_dtype: str | None = None
) -> GenerationOptions:
    """Return options that take the likeliest token, `count` times; see `prefill_chunk`.

    Each token is yielded separately, as in a stream.
    """
    sampling = Sampling(temperature=0.0)
    options = GenerationOptions(
        count, sampling, ignore_eos=True, prefill_chunk=chunk, cache_dtype=cache_dtype
    )
    return options.for_stream()
