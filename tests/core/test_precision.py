"""The precision of a backend: handed through, the same object for the same one, else refused."""

from __future__ import annotations

import pytest

from gptrs.backend.precision import (
    PreciseBackend,
    Precision,
    with_precision,
    with_quantized_precision,
)
from gptrs.errors import UsageError
from gptrs_backend_ref.backend import RefBackend


class Precise(RefBackend):
    """The reference backend, as if it had another precision."""

    precisions: tuple[Precision, ...] = ("f32", "int8")
    precision: Precision = "f32"
    quantized_precision: Precision = "int8"

    def with_precision(self, precision: Precision) -> Precise:
        other = Precise()
        other.precision = precision
        return self if precision == self.precision else other


def test_a_backend_takes_those_that_it_has() -> None:
    backend = Precise()
    assert isinstance(backend, PreciseBackend)
    for found in (with_precision(backend, "int8"), with_quantized_precision(backend)):
        assert isinstance(found, Precise)
        assert found.precision == "int8"
    assert with_precision(backend, "f32") is backend
    assert with_precision(backend, None) is backend


def test_others_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="backend `ref` has no precision `bf16` here") as raised:
        with_precision(Precise(), "bf16")
    assert raised.value.hint == "it has f32, int8"
    ref = RefBackend()
    assert with_precision(ref, "f32") is ref
    with pytest.raises(UsageError, match="has no precision `int8`"):
        with_precision(ref, "int8")
    assert with_quantized_precision(ref) is ref
