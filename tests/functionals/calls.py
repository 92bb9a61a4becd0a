"""Calls of functionals in tests: operands, what is captured, and the backend that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import gptrs
from gptrs.backend.contract import Backend
from gptrs.errors import UnsupportedError
from gptrs.optimizer.passes.cleanup import Inlining


def zeros(*shape: int, dtype: str = "f4") -> gptrs.Tensor:
    """A tensor for calls of which only the types matter."""
    return gptrs.tensor(np.zeros(shape, dtype))


def ops_of(call: Callable[..., object], *tensors: gptrs.Tensor) -> list[str]:
    """The names of the captured ops, composites inlined.

    Constants and their repetitions are left out.
    """
    steps = Inlining().apply(gptrs.jit(call).lower(*tensors)).main.body.walk()
    return [step.op.name for step in steps if step.op.name not in ("constant", "broadcast_to")]


@contextmanager
def running_on(backend: Backend) -> Iterator[None]:
    """Tensors are computed on `backend`; skips where it has no kernel, which `ref` always has."""
    try:
        with gptrs.use_backend(backend):
            yield
    except UnsupportedError as refused:
        if backend.name == "ref":
            raise
        pytest.skip(refused.message)
