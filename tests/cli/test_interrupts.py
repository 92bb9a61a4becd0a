"""Ctrl-C arrives wherever it strikes, and ends in our exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from gptrs_cli.terminal.interrupts import interrupts_arrive


class Destroyed:
    """Is interrupted while it is destroyed, where Python cannot raise."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


def wait_for_the_interrupt() -> None:
    Destroyed()
    time.sleep(20)


def test_an_interrupt_in_a_destructor_strikes_again(capfd):
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupts_arrive():
        wait_for_the_interrupt()
    assert time.monotonic() - started < 10
    assert capfd.readouterr().err == ""


def fail_after_an_interrupt() -> None:
    Destroyed()
    raise RuntimeError("half done")


def test_an_error_that_comes_of_an_interrupt_counts_as_one():
    with pytest.raises(KeyboardInterrupt) as raised, interrupts_arrive():
        fail_after_an_interrupt()
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_an_error_without_an_interrupt_stays_what_it_is():
    with pytest.raises(RuntimeError, match="as it is"), interrupts_arrive():
        raise RuntimeError("as it is")


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    with interrupts_arrive():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before


def test_a_process_that_ignores_interrupts_goes_on_doing_so():
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_arrive():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)


def test_other_errors_in_a_destructor_are_reported_as_ever(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: reported.append(problem.exc_type))

    class Faulty:
        def __del__(self) -> None:
            raise ValueError

    with interrupts_arrive():
        Faulty()
    assert reported == [ValueError]


INTERRUPTED = """
import os, signal, sys
def interrupt(*_):
    # Libraries run code compiled from strings; CPython remembers an interrupt that leaves it.
    exec("os.kill(os.getpid(), signal.SIGINT)")
{patch}
from gptrs_cli.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "patch",
    [
        "import importlib; importlib.import_module = interrupt",
        "import gptrs_cli.main; gptrs_cli.main.warnings_as_lines = interrupt",
    ],
    ids=["while importing", "while running"],
)
def test_an_interrupt_before_any_work_exits_with_130(patch):
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(patch=patch)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 130
    assert "Traceback" not in result.stderr
