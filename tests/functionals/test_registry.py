"""Functionals can be replaced by name, and wrong names say what exists."""

from __future__ import annotations

import pytest

import gptrs
from gptrs import functionals as F
from gptrs.errors import UsageError


@pytest.fixture(scope="module", autouse=True)
def _implementations():
    F.implement("tanh", "test_double")(lambda x: x * 2)
    F.implement("tanh", "test_zero")(lambda x: x * 0)


def test_every_functional_has_a_portable_implementation():
    known = F.implementations()
    assert {"softmax", "layer_norm", "gelu", "attention", "linear", "embedding"} <= known.keys()
    assert all(names[0] == "portable" for names in known.values())


def test_an_override_holds_in_its_scope():
    x = gptrs.tensor([1.0])
    with F.overrides({"tanh": "test_double"}):
        assert F.tanh(x).item() == 2
        with F.overrides({"tanh": "test_zero"}):
            assert F.tanh(x).item() == 0
        assert F.tanh(x).item() == 2
    assert 0.7 < F.tanh(x).item() < 0.8


def test_unknown_functional():
    with (
        pytest.raises(UsageError, match=r"no functional `sofmax`; did you mean `softmax`"),
        F.overrides({"sofmax": "portable"}),
    ):
        pass


def test_unknown_implementation():
    with (
        pytest.raises(UsageError, match=r"no implementation `fast`; it has: portable, test_double"),
        F.overrides({"tanh": "fast"}),
    ):
        pass


def test_a_name_is_taken_once():
    with pytest.raises(UsageError, match="already has an implementation `portable`"):
        F.implement("tanh", "portable")
