"""Python on a terminal says what it waits for while a backend compiles, once it takes long."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr
from types import SimpleNamespace
from typing import cast

import pytest

from gptrs.backend.contract import Backend
from gptrs.capture import compile_notice
from gptrs.capture.compile_notice import CompileNotices
from gptrs.progress import NOTICES
from runtime.serving_models import eventually


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Compiling:
    """What notices ask of a backend."""

    name = "slow"

    def __init__(self, *, tells_kernels: bool) -> None:
        self.tells_kernels = tells_kernels
        self.tell: Callable[[int, None], None] = lambda number, total: None

    @contextmanager
    def compiling(self, tell: Callable[[int, None], None]) -> Generator[None]:
        self.tell = tell
        yield


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(compile_notice, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(NOTICES, "are_shown", True)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def compile_for(
    seconds: float | None,
    stream: io.StringIO | None,
    notices: CompileNotices,
    kernels: int,
    tells: bool = True,
) -> None:
    """Compile so many kernels, which take this long together; None: until there is a notice."""
    backend = Compiling(tells_kernels=tells)
    with redirect_stderr(stream), notices.during(cast("Backend", backend)):
        for number in range(kernels):
            backend.tell(number + 1, None)
        if seconds is None:
            assert stream is not None
            eventually(stream.getvalue)
        else:
            time.sleep(seconds)


def test_a_long_wait_is_one_line(stream: Terminal) -> None:
    compile_for(None, stream, CompileNotices(), kernels=3)
    begin, _, end = stream.getvalue().partition(" ... ")
    assert begin == "gptrs: backend `slow` compiles kernels once"
    assert end.startswith("3 of them, ")
    assert end.endswith(" s\n")


def test_whole_programs_are_told(stream: Terminal) -> None:
    compile_for(None, stream, CompileNotices(), kernels=0, tells=False)
    assert stream.getvalue().startswith("gptrs: backend `slow` compiles a program once ... ")


def test_short_waits_are_told_when_they_add_up(
    stream: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices = CompileNotices()
    monkeypatch.setattr(compile_notice, "_PATIENCE_S", 600)
    compile_for(0.1, stream, notices, kernels=1)
    assert stream.getvalue() == ""
    assert notices._waited >= 0.1
    notices._waited += 600
    compile_for(None, stream, notices, kernels=1)


def test_kernels_that_are_kept_cause_no_line(stream: Terminal) -> None:
    compile_for(0.5, stream, CompileNotices(), kernels=0)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("where", ["a pipe", "a simple terminal", "nowhere", "a command"])
def test_nothing_is_said_where_nobody_looks(
    where: str, stream: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "a pipe":
        monkeypatch.setattr(stream, "isatty", lambda: False)
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    elif where == "a simple terminal":
        monkeypatch.setenv("TERM", "dumb")
    elif where == "a command":
        monkeypatch.setattr(NOTICES, "are_shown", False)
    given = None if where == "nowhere" else stream
    compile_for(0.4, given, CompileNotices(), kernels=2)
    assert stream.getvalue() == ""


def test_a_notebook_is_told(stream: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "isatty", lambda: False)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    compile_for(None, stream, CompileNotices(), kernels=2)
    assert "2 of them" in stream.getvalue()
