"""Dropout in models that are written without it, as a function of (seed, step).

A run that is resumed draws the numbers that it would have drawn: Philox counts them, and the seed
of each place in a program is a sum of the run's seed and the number of the place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np
from msgspec import Struct

from gptrs import functionals as F
from gptrs.api import ModelError
from gptrs.api.models import Module, Tensor
from gptrs.functionals.activation import safe_softmax
from gptrs.functionals.attention import attention_by
from gptrs.functionals.dispatch.active_overrides import Choice, Origin, entered
from gptrs.functionals.dispatch.override_policy import Force
from gptrs.nn.layers import WATCHER, Linear

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


@contextmanager
def dropping(
    dropout: Dropout, seed: Tensor | None, added: Collection[int], name: str
) -> Generator[None]:
    """Scope in which modules are captured with dropout; without a seed, they are as they are.

    `added` has the ids of the linear layers whose outputs are added to the residual stream. Each
    place gets its own numbers, in the order of capture. ModelError for a model `name` that has
    attention of another form, where a probability would be ignored.
    """
    if seed is None or not dropout:
        yield
        return
    sites = _Sites(dropout, seed, added)
    choice = Choice(Force(f"dropout-{dropout.attention}"), Origin.SCOPE, sites.attention)
    choices = {"attention": choice} if dropout.attention else {}
    token = WATCHER.set(sites)
    try:
        with entered(choices):
            yield
    finally:
        WATCHER.reset(token)
    sites.require_used(name)


class _Sites:
    """Stands in for the calls of modules; counts the places that drop something."""

    wants_attention = False

    def __init__(self, dropout: Dropout, seed: Tensor, added: Collection[int]) -> None:
        self._dropout, self._seed, self._added = dropout, seed, added
        self._count = 0
        self._used: set[str] = set()

    def call(
        self,
        module: Module,
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Return the result of a module, with dropout if it is one of those layers."""
        if isinstance(module, Linear) and self._dropout.low_rank and any(module.low_rank):
            result: object = self._with_factors(module, cast("Tensor", args[0]))
        else:
            result = call(module, *args, **kwargs)
        if self._dropout.hidden and id(module) in self._added:
            result = self._dropped(cast("Tensor", result), self._dropout.hidden, "hidden")
        return result

    def attention_of(self, weights: Tensor) -> None:
        """Take nothing: weights are not asked for."""

    def attention(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor:
        """Return `F.attention` with dropout of its probabilities."""

        def normalize(scores: Tensor) -> Tensor:
            return self._dropped(safe_softmax(scores), self._dropout.attention, "attention")

        return attention_by(normalize, *cast("tuple[Any, ...]", args), **cast("Any", kwargs))

    def _with_factors(self, module: Linear, x: Tensor) -> Tensor:
        plain = copy.copy(module)
        plain.low_rank = []
        (a, b), *_ = module.low_rank
        dropped = self._dropped(x, self._dropout.low_rank, "low_rank")
        return plain(x) + F.linear(F.linear(dropped, a), b)

    def _dropped(self, x: Tensor, probability: float, what: str) -> Tensor:
        self._used.add(what)
        own = F.concat([F.full((1,), self._count, "ui64"), F.zeros((1,), "ui64")], 0)
        self._count += 1
        return F.dropout(x, probability, self._seed + own, training=True)

    def require_used(self, name: str) -> None:
        for what in ("hidden", "attention", "low_rank"):
            if getattr(self._dropout, what) and what not in self._used:
                raise ModelError(
                    f"`{name}` has no place for dropout of `{what}`",
                    hint="leave out that probability",
                )
