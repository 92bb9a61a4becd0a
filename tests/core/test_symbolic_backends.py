"""Backends with and without symbols: what they name for sizes that vary; what a class must say."""

from __future__ import annotations

import pytest

import gptrs
from gptrs.backend.contract import Backend
from gptrs.backend.op_table import require_supported
from gptrs.capture.backend_calls import padded_size
from gptrs.errors import PluginError, UnsupportedError, UsageError
from gptrs.ir.parser import parse_program
from gptrs.plugins.manager import manager
from gptrs_backend_ref.backend import RefBackend


class PowersOfTwo(RefBackend):
    def padded_size(self, size: int) -> int:
        return 1 << (size - 1).bit_length()


class Shrinking(RefBackend):
    def padded_size(self, size: int) -> int:
        return size - 1


def test_a_backend_names_the_sizes_that_it_wants_or_none():
    assert padded_size(PowersOfTwo(), 33) == 64
    assert padded_size(RefBackend(), 33) is None


def test_a_padded_size_is_no_smaller():
    with pytest.raises(PluginError, match=r"`padded_size\(5\)` of backend `ref` is 4"):
        padded_size(Shrinking(), 5)


def test_support_of_symbolic_programs_is_asked_for():
    program = parse_program("ptir.v0.5\nfunc @main(%x: f32[?0]) -> f32[?0] {\n  return %x\n}\n")
    require_supported(RefBackend(), program, symbolic=True)
    with pytest.raises(UnsupportedError, match=r"compiles no symbolic dims, \?0"):
        require_supported(RefBackend(), program)


def test_an_offer_without_its_attribute_is_refused_when_the_class_is_made():
    with pytest.raises(TypeError, match="`Offer` overrides `compile_symbolic`; it needs `symbolic"):
        type("Offer", (RefBackend,), {"compile_symbolic": lambda *_: None})
    made = type("Offer", (RefBackend,), {"compile_symbolic": lambda *_: None, "symbolic": True})
    switched_off = type("Off", (made,), {"symbolic": False})
    assert (made().symbolic, switched_off().symbolic) == (True, False)


def test_what_derives_from_no_backend_is_refused_with_the_name_of_the_base():
    with (
        pytest.raises(
            UsageError, match=r"derive from `gptrs.api.backends.Backend`, got a `object`"
        ),
        gptrs.use_backend(object()),  # pyright: ignore[reportArgumentType]
    ):
        pass
    with pytest.raises(UsageError, match=r"derive from `gptrs.api.backends.Backend`, got a `int`"):
        gptrs.load_model(manager().demo_model_path(), backend=3)  # pyright: ignore


def test_a_backend_without_one_of_the_four_methods_cannot_be_made():
    lacking = type("Lacking", (Backend,), dict.fromkeys(("refusal", "to_device", "to_host"), print))
    with pytest.raises(TypeError, match=r"Lacking.* abstract method.*compile"):
        lacking()
