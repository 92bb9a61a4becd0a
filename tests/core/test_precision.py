"""The precision of a backend: handed through, the same object for the same one, else refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gptrs.backend.contract import Precision
from gptrs.errors import UsageError
from gptrs_backend_ref.backend import RefBackend


class Precise(RefBackend):
    """The reference backend, as if it had another precision."""

    precisions: Sequence[Precision] = ("f32", "int8")
    precision: Precision = "f32"

    def quantized_precision(self) -> Precision:
        return "int8"

    def in_precision(self, precision: Precision) -> Precise:
        other = Precise()
        other.precision = precision
        return self if precision == self.precision else other


def test_a_backend_takes_those_that_it_has() -> None:
    backend = Precise()
    for precision in ("int8", backend.quantized_precision()):
        found = backend.with_precision(precision)
        assert isinstance(found, Precise)
        assert found.precision == "int8"
    assert backend.with_precision("f32") is backend
    assert backend.with_precision(None) is backend


def test_others_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="backend `ref` has no precision `bf16` here") as raised:
        Precise().with_precision("bf16")
    assert raised.value.hint == "it has f32, int8"
    ref = RefBackend()
    assert ref.with_precision("f32") is ref
    with pytest.raises(UsageError, match="has no precision `int8`"):
        ref.with_precision("int8")
    assert ref.with_precision(ref.quantized_precision()) is ref
