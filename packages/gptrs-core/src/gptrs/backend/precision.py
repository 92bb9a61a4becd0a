"""An optional protocol of backends that let users choose how exactly products are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from gptrs.backend.protocol import Backend
from gptrs.errors import UsageError

Precision = Literal["f32", "bf16", "int8"]
"""The precision of a model's products: `f32` widens weights and keeps activations; `bf16` rounds
both sides of products with a matrix to bf16, as `gptrs.optimizer.passes.product_rounding` says in
PTIR; `int8` rounds the activations that meet quantized weights to 8 bits, by groups of at most 32.
Sums are exact or f32 in all of them, and so is all that is no such product."""


@runtime_checkable
class PreciseBackend(Protocol):
    """A backend with more than one precision."""

    @property
    def precisions(self) -> Sequence[Precision]:
        """Return those that it has here."""
        ...

    @property
    def precision(self) -> Precision:
        """Return the one that this object has: `f32`, exact, until another is asked for."""
        ...

    @property
    def quantized_precision(self) -> Precision:
        """Return the one for models with quantized weights whose user says none."""
        ...

    def with_precision(self, precision: Precision) -> Backend:
        """Return the backend of another precision: the same object for the same precision."""
        ...


def with_precision(backend: Backend, precision: Precision | None) -> Backend:
    """Return `backend` with a precision, itself for None.

    UsageError if it does not have it. A backend that is no `PreciseBackend` computes in f32.
    """
    if precision is None:
        return backend
    precise = backend if isinstance(backend, PreciseBackend) else None
    found: Sequence[Precision] = precise.precisions if precise else ("f32",)
    if precision not in found:
        raise UsageError(
            f"backend `{backend.name}` has no precision `{precision}` here",
            hint=f"it has {', '.join(found)}",
        )
    return backend if precise is None else precise.with_precision(precision)


def precision_of(backend: Backend) -> Precision:
    """Return the precision of `backend`: `f32` of one that has no other."""
    return backend.precision if isinstance(backend, PreciseBackend) else "f32"


def with_quantized_precision(backend: Backend) -> Backend:
    """Return `backend` with the precision that it prefers for models with quantized weights."""
    if not isinstance(backend, PreciseBackend):
        return backend
    return backend.with_precision(backend.quantized_precision)
