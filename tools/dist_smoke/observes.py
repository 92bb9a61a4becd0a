"""Dumps and pictures of programs need a backend, and neither models nor the command line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gptrs
from gptrs import functionals as F

with tempfile.TemporaryDirectory() as folder:
    with gptrs.dumping(Path(folder) / "dump"):
        total = F.sum(gptrs.tensor([1.0, 2.0])).item()
    assert total == 3.0, total
    assert list(Path(folder).rglob("*.ptir")), "the dump has no program"
program = gptrs.jit(lambda x: F.softmax(x)).lower(gptrs.tensor([1.0, 2.0]))
assert "<svg" in (program._repr_svg_() or ""), "a notebook shows no picture"
