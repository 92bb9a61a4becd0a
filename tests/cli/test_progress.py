"""What is said while programs are compiled, by backends that do not count their kernels."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

import gptrs
from gptrs_backend_ref.backend import create
from gptrs_cli.terminal import rich_output
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


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_bar_is_one_line_whatever_the_name(monkeypatch: pytest.MonkeyPatch, width: int):
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(rich_output, "_console", lambda _: console)
    with rich_output.bar("writing gpt2.gptrschk") as step:
        step(1234, 20000, "model.layers.10.self_attn.q_proj.weight." * 3)
    (line,) = written.getvalue().replace("\x1b[?25l", "").replace("\x1b[?25h", "").split("\r")[-1:]
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip("\n")
    assert len(shown) <= width
    assert "\n" not in shown
    assert "1234/20000" in shown
