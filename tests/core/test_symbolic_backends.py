"""Backends with and without symbols: what they name for sizes that vary."""

from __future__ import annotations

import pytest

from gptrs.backend.op_table import require_supported
from gptrs.backend.symbolic import padded_size
from gptrs.errors import PluginError, UnsupportedError
from gptrs.ir.parser import parse_program
from gptrs_backend_ref.backend import RefBackend


class PowersOfTwo(RefBackend):
    def padded_size(self, size: int) -> int:
        return 1 << (size - 1).bit_length()


class Shrinking(RefBackend):
    def padded_size(self, size: int) -> int:
        return size - 1


class Symbolic(PowersOfTwo):
    def compile_symbolic(self, *_: object) -> None:
        raise AssertionError("only its presence counts")


def test_only_a_backend_without_symbols_gets_padded_sizes():
    assert padded_size(PowersOfTwo(), 33) == 64
    assert padded_size(RefBackend(), 33) == 33
    assert padded_size(Symbolic(), 33) == 33


def test_a_padded_size_is_no_smaller():
    with pytest.raises(PluginError, match=r"`padded_size\(5\)` of backend `ref` is 4"):
        padded_size(Shrinking(), 5)


def test_support_of_symbolic_programs_is_asked_for():
    program = parse_program("ptir.v0.5\nfunc @main(%x: f32[?0]) -> f32[?0] {\n  return %x\n}\n")
    require_supported(RefBackend(), program, symbolic=True)
    with pytest.raises(UnsupportedError, match=r"compiles no symbolic dims, \?0"):
        require_supported(RefBackend(), program)
