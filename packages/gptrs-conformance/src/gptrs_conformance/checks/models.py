"""A small language model on the backend, against the same model written in NumPy in f64."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from typing_extensions import override

from gptrs import functionals as F
from gptrs.backend.contract import Backend
from gptrs.capture.backend_calls import steps_at_once
from gptrs.capture.execute import use_backend
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.nn import (
    CacheSpec,
    CausalLMModule,
    Embedding,
    LayerCache,
    LayerNorm,
    Linear,
    Module,
    PagedTexts,
    RaggedStep,
    merge_heads,
    split_heads,
)
from gptrs.nn.greedy_steps import greedy_steps
from gptrs.nn.ragged_step import own_pages, ragged_step
from gptrs_conformance.check import Check, CheckFailure
from gptrs_conformance.numerics import Tolerance

VOCABULARY, WIDTH, HEADS, LAYERS, CONTEXT = 23, 16, 2, 2, 96
PROMPT = np.array([[5, 11, 2, 19, 7, 3]])
CLOSE = Tolerance.close(1e-4, 1e-4)
"""Logits of magnitude 10 after two layers in f32."""


@functools.cache
def weights() -> Mapping[str, np.ndarray]:
    """Random weights, large enough for the best token to stand out."""
    rng = np.random.default_rng(20)
    shapes = {"tokens.weight": (VOCABULARY, WIDTH), "positions.weight": (CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        shapes |= {
            f"layers.{layer}.mix.weight": (3 * WIDTH, WIDTH),
            f"layers.{layer}.out.weight": (WIDTH, WIDTH),
            f"layers.{layer}.up.weight": (4 * WIDTH, WIDTH),
            f"layers.{layer}.down.weight": (WIDTH, 4 * WIDTH),
        }
        for norm in ("first", "second"):
            shapes |= {f"layers.{layer}.{norm}.{part}": (WIDTH,) for part in ("weight", "bias")}
    return {name: _weight(rng, name, shape) for name, shape in shapes.items()}


def _weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) > 1:
        # Far larger than trained ones: with small weights all logits are alike, and a wrong mask
        # would pass.
        return (rng.normal(size=shape) * 0.4).astype(np.float32)
    middle = 1.0 if name.endswith("weight") else 0.0
    return (middle + rng.normal(size=shape) * 0.2).astype(np.float32)


class Source:
    """The weights as a checkpoint has them: found by name, loaded when they are needed."""

    def names(self) -> Sequence[str]:
        """Every weight."""
        return list(weights())

    def type_of(self, name: str) -> TensorType:
        """Its type."""
        return TensorType.of(weights()[name])

    def load(self, name: str) -> np.ndarray:
        """Return the weight of this name."""
        return weights()[name]


class Block(Module):
    """Attention and two affine layers, each behind a layer norm."""

    def __init__(self, params: Params) -> None:
        self.first = LayerNorm(params / "first", WIDTH, 1e-5)
        self.mix = Linear(params / "mix", WIDTH, 3 * WIDTH, bias=False)
        self.out = Linear(params / "out", WIDTH, WIDTH, bias=False)
        self.second = LayerNorm(params / "second", WIDTH, 1e-5)
        self.up = Linear(params / "up", WIDTH, 4 * WIDTH, bias=False)
        self.down = Linear(params / "down", 4 * WIDTH, WIDTH, bias=False)

    def __call__(self, x: Tensor, cache: LayerCache) -> Tensor:
        """[N, C] -> [N, C]."""
        parts = F.split(self.mix(self.first(x)), 3)
        query, key, value = (split_heads(part, HEADS) for part in parts)  # (N, H, D)
        x = x + self.out(merge_heads(cache.attend(query, key, value)))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(CausalLMModule):
    """A decoder of two layers with a tied head."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(CONTEXT, VOCABULARY)
        params = Params(Source(), backend=backend)
        self.tokens = Embedding(params / "tokens", VOCABULARY, WIDTH)
        self.positions = Embedding(params / "positions", CONTEXT, WIDTH)
        self.layers = [Block(params / "layers" / layer) for layer in range(LAYERS)]

    @override
    def cache_specs(self) -> list[CacheSpec]:
        return [CacheSpec(HEADS, WIDTH // HEADS)] * LAYERS

    @override
    def states(self, step: RaggedStep[Tensor], caches: Sequence[LayerCache]) -> Iterator[Tensor]:
        x = self.tokens(step.tokens) + self.positions(step.positions)
        yield x
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
            yield x

    @override
    def logits(self, x: Tensor) -> Tensor:
        return self.tokens.unembed(x)


def reference(ids: np.ndarray) -> np.ndarray:
    """Return the same model in NumPy, in f64: [B, T] -> [B, T, V]."""
    w = {name: array.astype(np.float64) for name, array in weights().items()}
    length = ids.shape[1]
    x = w["tokens.weight"][ids] + w["positions.weight"][:length]
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        mixed = _normed(x, w, f"{at}first") @ w[f"{at}mix.weight"].T
        q, k, v = (
            part.reshape(*ids.shape, HEADS, -1).swapaxes(1, 2) for part in np.split(mixed, 3, -1)
        )
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH // HEADS)
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (e / e.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x.shape)
        x = x + attended @ w[f"{at}out.weight"].T
        up = _normed(x, w, f"{at}second") @ w[f"{at}up.weight"].T
        erf = np.vectorize(math.erf)(up / math.sqrt(2))
        x = x + (up / 2 * (1 + erf)) @ w[f"{at}down.weight"].T
    return x @ w["tokens.weight"].T


def _normed(x: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    d = x - x.mean(-1, keepdims=True)
    normed = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)
    return normed * w[f"{name}.weight"] + w[f"{name}.bias"]


def _require_close(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    problem = CLOSE.mismatch(found, expected, dtypes.f32)
    if problem:
        raise CheckFailure(f"{what}: the result {problem}")


def logits_agree(backend: Backend) -> None:
    """Logits of every position, of one sequence and of a batch."""
    with use_backend(backend):
        model = Model(backend)
        _require_close(model.forward(PROMPT), reference(PROMPT), "one sequence")
        # Different rows: equal ones would hide a mix-up.
        batch = np.concatenate([PROMPT, PROMPT[:, ::-1], (PROMPT + 4) % VOCABULARY])
        found = model.forward(batch)
        _require_close(found, reference(batch), "a batch")
        _require_close(found[:1], model.forward(PROMPT).astype(np.float64), "a batch and its first")


def prefill_is_decode(backend: Backend) -> None:
    """A prompt gives the same logits as a whole, token by token, and in chunks."""
    with use_backend(backend):
        model = Model(backend)
        expected = reference(PROMPT)
        for sizes in ((6,), (1,) * 6, (3, 1, 2)):
            texts, at = PagedTexts(model, 1, CONTEXT), 0
            for size in sizes:
                found = texts.append(PROMPT[:, at : at + size])
                at += size
                _require_close(found, expected[:, at - 1], f"steps of {list(sizes)}")


def unequal_texts_share_steps(backend: Backend) -> None:
    """Chunks of prompts and single tokens of several texts in one step, over several pages."""
    # 48 tokens are several pages, so texts cross page borders at different steps.
    wholes = np.random.default_rng(3).integers(0, VOCABULARY, (3, 48))
    expected = reference(wholes)
    with use_backend(backend):
        texts = PagedTexts(Model(backend), 3, 48)
        for counts in ((30, 1, 7), (1, 33, 1), (5, 1, 39), (12, 13, 1)):
            ends = [done + count for done, count in zip(texts.lengths, counts, strict=True)]
            rows = zip(wholes, texts.lengths, ends, strict=True)
            found = texts.append([whole[start:end] for whole, start, end in rows])
            last = [end - 1 for end in ends]
            _require_close(found, expected[np.arange(3), last], f"steps of {list(counts)}")


def greedy_tokens_agree(backend: Backend) -> None:
    """32 tokens, each the likeliest: with the cache, without it, and in NumPy."""
    expected = PROMPT
    for _ in range(32):
        best = reference(expected)[:, -1].argmax(-1)
        expected = np.concatenate([expected, best[:, None]], axis=1)
    with use_backend(backend):
        model = Model(backend)
        texts, ids = PagedTexts(model, 1, CONTEXT), PROMPT
        logits = texts.append(PROMPT)
        while ids.shape[1] < expected.shape[1]:
            best = logits.argmax(-1)[:, None]
            ids = np.concatenate([ids, best], axis=1)
            logits = texts.append(best)
        if not np.array_equal(ids, expected):
            raise CheckFailure(
                f"gave the tokens {ids[0].tolist()}, expected {expected[0].tolist()}"
            )
        again = model.forward(expected)[:, PROMPT.shape[1] - 1 : -1].argmax(-1)
        if not np.array_equal(again, expected[:, PROMPT.shape[1] :]):
            raise CheckFailure("without a cache, the likeliest tokens differ from those with it")


def steps_at_once_agree(backend: Backend) -> None:
    """A backend that takes several steps in one run chooses the tokens of single steps."""
    most = steps_at_once(backend)
    if most == 1:
        return
    prompts = [[5, 11, 2], [19, 7, 3], [1, 2, 4]]
    with use_backend(backend):
        model = Model(backend)
        texts = PagedTexts(model, 3, CONTEXT)
        tokens = texts.append(prompts).argmax(-1)
        first = ragged_step(tokens[:, None], texts.lengths, [own_pages(3, CONTEXT)])
        expected: list[np.ndarray] = []
        for _ in range(most):
            tokens = texts.append(tokens[:, None]).argmax(-1)
            expected.append(tokens)
        for count in (most, 2):
            texts = PagedTexts(model, 3, CONTEXT)
            texts.append(prompts)
            steps = greedy_steps(first, [count] * 3, [frozenset[int]()] * 3, count, most)
            found = model.greedy_steps(steps, texts.buffers).tokens
            if not np.array_equal(found[:count], expected[:count]):
                raise CheckFailure(
                    f"{count} steps at once gave {found[:count].T.tolist()}, one by one they give"
                    f" {np.array(expected[:count]).T.tolist()}"
                )
        texts = PagedTexts(model, 3, CONTEXT)
        texts.append(prompts)
        ends = [frozenset({int(token)}) for token in expected[0]]
        steps = greedy_steps(first, [most] * 3, ends, most, most)
        if model.greedy_steps(steps, texts.buffers).tokens[1:].any():
            raise CheckFailure("a loop goes on when all texts have ended")


CHECKS = [
    Check("a language model: logits", "full", logits_agree),
    Check("a language model: prefill and decode", "full", prefill_is_decode),
    Check("a language model: unequal texts", "full", unequal_texts_share_steps),
    Check("a language model: greedy tokens", "full", greedy_tokens_agree),
    Check("a language model: several steps at once", "full", steps_at_once_agree),
]
