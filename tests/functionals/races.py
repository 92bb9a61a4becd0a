"""Functionals of tests, whose implementations are counted and fast or slow."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

import gptrs
from functionals.temporary import defined, implemented

CHAIN = 300
"""Ops of the slow implementations: far more than the timing can be off by."""
X = gptrs.tensor([1.0, -2.0])


class Race:
    """A functional of its own, its name, and how often each implementation was called."""

    def __init__(self, *, portable: Callable[..., Any]) -> None:
        self.name = f"race_{uuid.uuid4().hex}"
        self.calls: dict[str, int] = {}
        self._scopes = ExitStack()
        counted = self._counted("portable", portable)
        counted.__name__ = self.name
        self.call: Callable[..., Any] = self._scopes.enter_context(defined(counted))

    def add(self, name, function, declines=None):
        predicates = {name: declines} if declines else {}
        counted = {name: self._counted(name, function)}
        self._scopes.enter_context(implemented(self.name, counted, predicates))

    def close(self):
        self._scopes.close()

    def overrides(self, policy="benchmark"):
        return gptrs.overrides({self.name: policy})

    def runs(self, name, x, *rest, **named) -> int:
        """How often an implementation is called for one call of the functional."""
        before = self.calls.get(name, 0)
        found = self.call(x, *rest, **named)
        count = self.calls.get(name, 0) - before
        np.testing.assert_allclose(found.numpy(), x.numpy() * 2, rtol=1e-5)
        return count

    def _counted(self, name, function):
        def counted(*args, **kwargs):
            self.calls[name] = self.calls.get(name, 0) + 1
            return function(*args, **kwargs)

        return counted


def slowly(x, *rest, **named):
    """2 x: every second step of `y -> x - y` ends there."""
    y = x + x
    for _ in range(CHAIN):
        y = x - y
    return y
