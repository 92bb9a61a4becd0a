"""What is said while programs are compiled, by backends that do not count their kernels."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

import gptrs
from gptrs_backend_ref.backend import create
from gptrs_cli.terminal import progress, rich_output
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.progress import compilation_shown


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


def test_long_work_tells_how_far_it_is_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock = iter([0.0, 1.0, 20.0, 31.0, 40.0, 62.0, 5000.0, 5031.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.progress_bar("prompts") as step:
        for done, total in ((10, 100), (20, 100), (40, 100), (50, 100), (60, 100), (61, 100)):
            step(done, total, "")
        step(100, 100, "")
    assert capsys.readouterr().err.splitlines() == [
        "prompts: 40 of 100, about 60 s left",
        "prompts: 60 of 100, about 49 s left",
        "prompts: 61 of 100, about 64 min left",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.1, "1 s"), (90, "90 s"), (91, "2 min"), (5400, "90 min"), (5401, "2 h")],
)
def test_durations_are_rounded_up(seconds: float, text: str):
    assert progress._duration(seconds) == text
