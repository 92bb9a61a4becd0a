"""The thread that writes files: when nothing else is asked for, the newest first, and at exit."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from gptrs_backend_numba.kept_weights import weight_file
from gptrs_backend_numba.kept_weights.weight_file import BackgroundWriter
from runtime.serving_models import eventually


def noting(done: list[int], number: int) -> Callable[[Callable[[], bool]], None]:
    return lambda stopped: done.append(number)


def test_nothing_is_done_until_it_is_quiet_or_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weight_file, "_QUIET_S", 1e6)
    made, done = BackgroundWriter(), list[int]()
    for number in range(3):
        made.add(noting(done, number))
    time.sleep(0.1)
    assert done == []
    made.finish()
    assert done == [2, 1, 0], "the newest first"
    made.end(1)


def test_jobs_are_done_by_themselves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weight_file, "_QUIET_S", 0.01)
    made, done = BackgroundWriter(), threading.Event()
    made.add(lambda stopped: done.set())
    assert done.wait(60)
    made.end(1)


def test_what_is_not_urgent_is_left_when_the_process_ends():
    made, done = BackgroundWriter(), list[int]()
    made.add(noting(done, 1), urgent=False)
    made.add(noting(done, 2))
    made.end(60)
    assert done == [2]


def test_the_end_waits_for_a_while_and_then_has_the_job_stop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weight_file, "_QUIET_S", 0.01)
    made, started, stops = BackgroundWriter(), threading.Event(), list[bool]()

    def long(stopped: Callable[[], bool]) -> None:
        started.set()
        end = time.monotonic() + 300
        while not stopped() and time.monotonic() < end:
            time.sleep(0.01)
        stops.append(stopped())

    made.add(long)
    assert started.wait(120)
    before = time.monotonic()
    made.end(0.2)
    assert time.monotonic() - before < 120
    eventually(lambda: stops)  # a busy machine does not let it stop in the time of `end`
    assert stops == [True]


def test_nothing_is_waited_for_where_nothing_was_asked_for():
    before = threading.active_count()
    made = BackgroundWriter()
    made.end(5)
    assert threading.active_count() == before


def test_an_interrupt_ends_the_wait_at_exit_where_it_is_ignored() -> None:
    """As it is from the end of a command on; the exit code stays its own."""
    script = """
import atexit, signal, time
from gptrs_backend_numba.kept_weights.weight_file import BackgroundWriter

def never_done(stopped):
    print("begun", flush=True)
    while not stopped():
        time.sleep(0.01)

signal.signal(signal.SIGINT, signal.SIG_IGN)
made = BackgroundWriter()
made.add(never_done)
atexit.register(made.end, 3600)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)  # again, as the first may come before the wait
            time.sleep(0.2)
        ended = process.poll()
        process.kill()
        said = process.communicate()[1]
    assert (ended, said) == (0, b"")
