"""The programs of a library serve all sizes, however many kernels share them out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path

from gptrs.backend.contract import OutgoingProgram
from gptrs.ir import parse_program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.symbolic_dim import symbol
from gptrs.plugins.manager import get_backend
from gptrs_runtime.libraries.outgoing import library_of_program, library_of_step
from gptrs_runtime.load import load_model

PROGRAM = """ptir.v0.5
func @main(%x: f32[?0, 4], %y: f32[?1, 4]) -> f32[4] {
  %a = reduce %x {kind = sum, axes = [0]} : f32[4]
  %b = reduce %y {kind = sum, axes = [0]} : f32[4]
  %z = add %a, %b : f32[4]
  return %z
}
"""


def _lowered(programs: Iterable[OutgoingProgram]) -> list[SizeGuards]:
    """Return the guards of programs that are lowered as kernels for few and many rows would be."""
    found: list[SizeGuards] = []
    for each in programs:
        assert each.guards is not None
        with deciding(each.guards):
            rows, others = symbol(0), symbol(1)
            _ = rows <= 1, rows > 72, others > 9, rows > 72 and rows + others > 700
        found.append(each.guards)
    return found


def test_sizes_behind_each_limit_of_a_kernel_have_a_program() -> None:
    library = library_of_program(parse_program(PROGRAM), get_backend("ref"), "sums")
    guards = _lowered(library.programs)
    for rows, others in product((1, 2, 71, 72, 73, 74, 500, 5000), (1, 9, 10, 600, 3000)):
        assert any(each.accept({0: rows, 1: others}) for each in guards), (rows, others)
    assert len(guards) == 8


def test_a_step_of_any_texts_and_lengths_has_a_program(directory: Path) -> None:
    library = library_of_step(load_model(directory, backend="ref"), "lm")
    guards = _lowered(library.programs)
    for rows, texts, pages in product((1, 2, 50, 100, 900), (1, 2, 70), (1, 2)):
        if texts <= rows <= 64 * texts:
            sizes = {0: rows, 1: texts, 2: pages, 3: texts * pages}
            assert any(each.accept(sizes) for each in guards), sizes
