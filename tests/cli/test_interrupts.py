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


def test_the_echo_of_an_interrupt_does_not_interrupt_what_it_began():
    cleaned = []

    def interrupted() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)
        finally:
            for _ in range(30):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.001)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt), interrupts_arrive():
        interrupted()
    assert cleaned


STORM = """
import os, signal, sys, threading, time
def storm():
    time.sleep({after})
    for _ in range(30):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep({every})
from gptrs_cli.__main__ import main
sys.argv = ["gptrs", "generate", "--max-tokens", "100000", "--ignore-eos", "--context-shift"]
threading.Thread(target=storm).start()
sys.exit(main())
"""


@pytest.mark.sample(1)
@pytest.mark.long
@pytest.mark.parametrize("every", [0.0, 0.003, 0.03])
@pytest.mark.parametrize("after", [0.1, 1.0])
def test_a_storm_of_interrupts_ends_with_130(every, after):
    command = [sys.executable, "-c", STORM.format(every=every, after=after)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


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
