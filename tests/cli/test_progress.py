"""What is said while programs are compiled, by backends that do not count their kernels."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs_backend_ref.backend import create
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.waiting import Waiting


def test_a_program_for_new_sizes_is_announced(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(Waiting, "add", lambda _, details: said.append(details))
    backend = create()

    @gptrs.jit(dynamic={"x": ("N",)})
    def double(x):
        return x * 2

    with gptrs.use_backend(backend), Waiting("reading") as waiting:
        with compilation_shown(backend, waiting):
            for size in (3, 3, 4):
                double(np.ones(size, np.float32))
        double(np.ones(5, np.float32))
    new = "compiling `jit double` (new sizes)"
    assert said == ["compiling `jit double` (not cached)", new, new]
