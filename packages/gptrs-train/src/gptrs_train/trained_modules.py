"""Modules as they are captured for training: with dropout, and quantized layers decoded twice.

Dropout is a function of (seed, step). A resumed run draws the numbers that it would have drawn:
Philox counts them, and the seed of each place in a program is a sum of the run's seed and
the number of the place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

import gptrs
from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import Module, Tensor
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor, dequantized
from gptrs.functionals.activation import safe_softmax
from gptrs.functionals.attention import attention_by
from gptrs.functionals.dispatch.active_overrides import Choice, Origin, entered
from gptrs.functionals.dispatch.override_policy import Force
from gptrs.ir import dtypes
from gptrs.nn.layers import WATCHER, Embedding, Linear

_SITES: Final = 20
"""Bits of the key for the number of a place: a program has fewer than a million."""
_DRAWS: Final = 40
"""Bits of the counter for the numbers that a place draws in one step, four at once."""


class Dropout(Struct, frozen=True):
    """The probabilities of zeros: in the outputs that are added to the residual stream, in the
    weights of attention, and in the inputs of low-rank factors.
    """

    hidden: float = 0.0
    attention: float = 0.0
    low_rank: float = 0.0

    def __bool__(self) -> bool:
        return any((self.hidden, self.attention, self.low_rank))


def seed_of(seed: int, step: int) -> np.ndarray:
    """Return the key and the counter of a step, ui64 [2], for `dropping`."""
    key = (seed << _SITES) % 2**64
    return np.array([key, (step << _DRAWS) % 2**64], np.uint64)


class Decoder(Struct, frozen=True, eq=False):
    """Decodes a quantized matrix from its `parts`, which are passed as `tensors` in their order.

    What a function computes from tensors around it alone is moved out of the function, and kept. So
    functions that are computed again take the parts as arguments.
    """

    form: QuantizedTensor
    parts: Mapping[Part, Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """The parts."""
        return list(self.parts.values())

    def decoded(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the matrix, f32, to multiply `x` with.

        The scales depend on `x`, as far as the optimizer knows: it would decode the matrix of a
        constant once and keep it, packed for products in bf16.
        """
        named = dict(zip(self.parts, tensors, strict=True))
        one = F.sum(F.slice_axis(x, 0, 0, 1))
        always = F.logical_or(F.equal(one, one), F.not_equal(one, one))
        named["scale"] = F.where(always, named["scale"], 0.0)
        return dequantized(self.form, named.__getitem__, dtypes.f32)

    def rows(
        self, tensors: Sequence[Tensor], pick: Callable[[Tensor], Tensor], count: int
    ) -> Decoder:
        """Return what decodes `count` rows, which `pick` takes of each part."""
        pairs = zip(self.parts, tensors, strict=True)
        picked: dict[Part, Tensor] = {name: pick(part) for name, part in pairs}
        types = {name: part.type for name, part in picked.items()}
        some = replace(self.form, shape=(count, *self.form.shape[1:]), parts=types)
        return Decoder(some, picked)


class TrainedModules:
    """Stands in for the calls of modules that learn: dropout, and layers that are decoded twice.

    With a `seed` of `seed_of`, `dropout` applies; `added` has the ids of the linear layers whose
    outputs are added to the residual stream. Each place gets its own numbers, in the order of
    capture. `decoded` maps ids of linear layers and tables with quantized weights to what decodes
    these. `blocks` are the ids of modules that are computed again in the backward part.
    """

    wants_attention = False

    def __init__(
        self,
        dropout: Dropout,
        seed: Tensor | None,
        added: Collection[int],
        decoded: Mapping[int, Decoder],
        blocks: Collection[int] = (),
    ) -> None:
        self._dropout = Dropout() if seed is None else dropout
        self._seed, self._added, self._decoded, self._blocks = seed, added, decoded, blocks
        self._count = 0
        self._used: set[str] = set()

    @contextmanager
    def watching(self, name: str) -> Generator[None]:
        """Scope in which modules are captured in this way.

        ModelError for a model `name` that has attention of another form, or no adapters, where a
        probability would be ignored.
        """
        if not (self._dropout or self._decoded or self._blocks):
            yield  # blocks are captured once for all layers: nothing watches them
            return
        attention = self._dropout.attention
        choice = Choice(Force(f"dropout-{attention}"), Origin.SCOPE, self._attention)
        # A context variable: a model captured by another thread meanwhile (a server's) has no
        # dropout.
        token = WATCHER.set(self)
        try:
            with entered({"attention": choice} if attention else {}):
                yield
        finally:
            WATCHER.reset(token)
        self._require_used(name)

    def call(
        self,
        module: Module,
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Return the result of a module."""
        if id(module) in self._blocks:
            rest = args[1:]

            # Only `x` is an argument of `remat`: caches and positions in `rest` have no gradients.
            def block(x: Tensor) -> object:
                return self._whole(module, call, (x, *rest), kwargs)

            return gptrs.remat(block)(cast("Tensor", args[0]))
        return self._whole(module, call, args, kwargs)

    def _whole(
        self,
        module: Module,
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        again = self._decoded.get(id(module))
        if isinstance(module, Linear) and (again is not None or self._dropout.low_rank):
            result: object = self._linear(module, call, cast("Tensor", args[0]), again)
        elif isinstance(module, Embedding) and again is not None:
            result = self._looked_up(module, cast("Tensor", args[0]), again)
        else:
            result = call(module, *args, **kwargs)
        if self._dropout.hidden and id(module) in self._added:
            result = self._dropped(cast("Tensor", result), self._dropout.hidden, "hidden")
        return result

    def attention_of(self, weights: Tensor) -> Tensor:
        """Return the weights: none are changed."""
        return weights

    def _attention(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor:
        """Return `F.attention` with dropout of its probabilities."""

        def normalize(scores: Tensor) -> Tensor:
            return self._dropped(safe_softmax(scores), self._dropout.attention, "attention")

        return attention_by(normalize, *cast("tuple[Any, ...]", args), **cast("Any", kwargs))

    def _linear(
        self,
        module: Linear,
        call: Callable[..., object],
        x: Tensor,
        again: Decoder | None,
    ) -> Tensor:
        """Return the result of a layer, whose weight is decoded once more for the derivative.

        The decoded weight of one layer is in memory at a time. Kept from the forward to the
        backward part, those of all layers would be.
        """
        plain = copy.copy(module)
        plain.low_rank = []

        def product(x: Tensor, *parts: Tensor) -> Tensor:
            if again is not None:
                plain.weight = again.decoded(parts, x)
            return cast("Tensor", call(plain, x))

        # `remat` covers the product alone. Factors and dropout stay outside: they are learnt, and
        # small.
        y = product(x) if again is None else gptrs.remat(product)(x, *again.tensors)
        if not any(module.low_rank):
            return y
        (a, b), *_ = module.low_rank
        if self._dropout.low_rank:
            x = self._dropped(x, self._dropout.low_rank, "low_rank")
        return y + F.linear(F.linear(x, a), b)

    def _looked_up(self, module: Embedding, indices: Tensor, again: Decoder) -> Tensor:
        """Return the result of a quantized table; only the vectors in use are decoded."""
        flat = F.reshape(indices, (indices.size,))
        own = copy.copy(module)
        found = again.rows(again.tensors, partial(F.embedding, flat), flat.size)
        own.weight = dequantized(found.form, found.parts.__getitem__, dtypes.f32)
        places = F.reshape(F.arange(indices.size, dtype=indices.dtype), indices.shape)
        return own(places)

    def _dropped(self, x: Tensor, probability: float, what: str) -> Tensor:
        self._used.add(what)
        own = F.concat([F.full((1,), self._count, "ui64"), F.zeros((1,), "ui64")], 0)
        self._count += 1
        assert self._seed is not None, "dropout needs a seed"
        return F.dropout(x, probability, self._seed + own, training=True)

    def _require_used(self, name: str) -> None:
        for what in ("hidden", "attention", "low_rank"):
            if getattr(self._dropout, what) and what not in self._used:
                raise ModelError(
                    f"`{name}` has no place for dropout of `{what}`",
                    hint="omit that probability",
                )
