"""The checks of programs with symbols: a right backend passes, each wrong one is found out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gptrs.backend.contract import Buffer, Executable, InputRole
from gptrs.backend.specialized_programs import SpecializedPrograms
from gptrs.ir.program import Program
from gptrs.ir.size_guards import SizeGuards
from gptrs.ir.specialize import specialize
from gptrs_backend_ref.backend import RefBackend
from gptrs_conformance.check import CheckFailure
from gptrs_conformance.checks.symbolic import CHECKS


class Symbolic(RefBackend):
    """A backend that says that it takes symbols."""

    symbolic = True

    def compile_symbolic(
        self, program: Program, roles: Sequence[InputRole], guards: SizeGuards
    ) -> Executable:
        return SpecializedPrograms(program, lambda special: (0, self.compile(special, roles)))


class Cutting(Executable):
    """An executable for sizes like the example, whatever it gets."""

    def __init__(self, executable: Executable, shapes: Sequence[tuple[int, ...]]) -> None:
        self._executable = executable
        self._shapes = shapes

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        pairs = zip(inputs, self._shapes, strict=True)
        return self._executable.run([np.resize(np.asarray(x), shape) for x, shape in pairs])


class OneSize(Symbolic):
    """A backend that compiles for the example only."""

    def compile_symbolic(
        self, program: Program, roles: Sequence[InputRole], guards: SizeGuards
    ) -> Executable:
        special = specialize(program, guards.example)
        shapes = [param.type.shape for param in special.main.body.params]
        return Cutting(self.compile(special, roles), shapes)


def test_a_backend_that_compiles_for_all_sizes_passes():
    for check in CHECKS[:2]:
        check.run(Symbolic())


def test_a_backend_that_knows_the_example_alone_is_found_out():
    with pytest.raises(CheckFailure, match=r"with \?0 = \d+.*, result \d+ is"):
        CHECKS[0].run(OneSize())
