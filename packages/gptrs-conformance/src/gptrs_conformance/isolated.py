"""The kit in forked children: a backend that crashes, or ends the process, is a failure of a case.

A child announces each case before it runs it. If it ends early, or is silent for too long, that
case is to blame; the rest of its op is skipped, and a new child continues with the next one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from msgspec import Struct, field

from gptrs.backend.contract import Backend
from gptrs.errors import BackendError, GptrsError
from gptrs.progress import StepProgress
from gptrs_conformance.kit import CaseGroup, Plan, new_report, run_plan
from gptrs_conformance.op_runner import Outcome
from gptrs_conformance.report import CaseName, Report

_LOOK_S = 0.5
"""How often it is looked whether a silent child is still there."""
_KEEP_S = 2.0
"""How often `keep` gets the report."""
CASE_S = 600.0
"""How long a case may take."""

Opened = Callable[[], AbstractContextManager[Backend]]
"""Opens the scope in which a backend runs, and creates the backend."""
Keep = Callable[[Report], object]


def run_isolated(
    opened: Opened,
    plan: Plan,
    *,
    jobs: int = 1,
    seconds: float = CASE_S,
    progress: StepProgress | None = None,
    keep: Keep | None = None,
) -> Report:
    """Run `plan` on the backend returned by `opened`, in `jobs` child processes at a time.

    A case may take `seconds`. `keep` gets the report from time to time, and at the end. An
    interrupt ends the run with an incomplete report. Exceptions of `opened` in a child are raised
    here; BackendError if it ends the process. If processes cannot fork, the kit runs in this one.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        with opened() as backend:
            return run_plan(backend, plan, progress)
    steps = plan.steps()
    # Every n-th step: neighbours are the same op on other types, and some ops take much longer than
    # others.
    shares = [share for at in range(jobs) if (share := steps[at::jobs])]
    workers = [_Worker(opened, share, seconds) for share in shares]
    run = _Run(new_report(plan), workers, len(steps), progress or _ignore, keep or _ignore)
    try:
        run.follow()
        run.report.complete = True
    except KeyboardInterrupt:
        pass
    finally:
        for worker in workers:
            worker.stop()
    run.progress(run.begun, len(steps), "")
    run.keep_now()
    return run.report


class _Run(Struct):
    """The report of a run, from the messages of all workers."""

    report: Report
    workers: Sequence[_Worker]
    total: int
    progress: StepProgress
    keep: Keep
    _started: float = field(default_factory=time.perf_counter)
    _kept: float = field(default_factory=time.monotonic)

    @property
    def begun(self) -> int:
        """How many steps were begun, or left out after the end of a child."""
        return sum(worker.position for worker in self.workers)

    def follow(self) -> None:
        """Collect messages of the workers until all are done."""
        active = list(self.workers)
        for worker in active:
            worker.start()
        while active:
            ready = wait([worker.receiver for worker in active], _LOOK_S)
            for worker in list(active):
                answer = worker.answer(worker.receiver in ready)
                if answer is not None:
                    self._take(*answer)
                if worker.done:
                    active.remove(worker)
            if time.monotonic() - self._kept > _KEEP_S:
                self.keep_now()

    def keep_now(self) -> None:
        """Hand the report on."""
        self.report.seconds = time.perf_counter() - self._started
        self.keep(self.report)
        self._kept = time.monotonic()

    def _take(self, kind: str, *words: Any) -> None:
        if kind == "raised":
            raise words[0]
        if kind == "backend":
            (self.report.backend,) = words
        elif kind == "step":
            self.progress(self.begun - 1, self.total, *words)
        else:
            name, *outcome = words
            self.report.add(name, Outcome(*outcome))


class _Worker:
    """Runs a share of the steps in a child, and in another one after each that was ended."""

    def __init__(self, opened: Opened, steps: Sequence[CaseGroup], seconds: float) -> None:
        self.done = False
        self._opened = opened
        self._steps = steps
        self._seconds = seconds
        self.position = 0
        """The first step that no child has begun."""
        self._case: CaseName | None = None
        self._process: BaseProcess | None = None

    def start(self) -> None:
        """Start a child with the steps that are left."""
        pipe = cast("tuple[Connection, Connection]", multiprocessing.Pipe(duplex=False))
        self.receiver, sender = pipe
        self._case, self._heard = None, time.monotonic()
        self._process = multiprocessing.get_context("fork").Process(
            target=_work, args=(sender, self._opened, self._steps[self.position :])
        )
        self._process.start()
        # The parent's copy, which would keep the pipe open: the end of a dead child would never be
        # read.
        sender.close()

    def stop(self) -> None:
        """End the child."""
        if self._process is not None:
            # SIGKILL: a child that hangs in native code handles no other signal.
            self._process.kill()
            self._process.join()
            self.receiver.close()
            self._process = None

    def answer(self, ready: bool) -> tuple[Any, ...] | None:
        """Return the next message of the child, or of its end; None if there is none."""
        assert self._process is not None
        if ready:
            try:
                return self._read(self.receiver.recv())
            except EOFError:
                self._process.join()
                return self._go_on(_ending(self._process))
        # A grandchild may hold the pipe open after the child died. Messages that are still in it
        # come first.
        if not self._process.is_alive() and not self.receiver.poll():
            return self._go_on(_ending(self._process))
        if time.monotonic() - self._heard > self._seconds:
            return self._go_on(f"takes longer than {self._seconds:g} s")
        return None

    def _read(self, answer: tuple[Any, ...]) -> tuple[Any, ...] | None:
        self._heard = time.monotonic()
        kind, *words = answer
        if kind == "step":
            self.position += 1
        elif kind == "case":
            self._case = CaseName(*words)
            return None
        elif kind == "done":
            self.done = True
            return None
        elif kind == "outcome":
            return "outcome", self._case, *words
        return answer

    def _go_on(self, ending: str) -> tuple[Any, ...]:
        """Start the next child after one that was ended; return the case that it failed."""
        self.stop()
        case = self._case
        if case is None:
            raise BackendError(f"making the backend {ending}")
        subject, reason = case.name, f"it {ending}"
        while self.position < len(self._steps):  # the rest of the op would probably end it, too
            if self._steps[self.position].subject != subject:
                break
            self.position += 1
        if case.dtype:
            reason += f"; the cases of `{subject}` after it were not run"
        self.done = self.position == len(self._steps)
        if not self.done:
            self.start()
        return "outcome", case, "fail", reason


def _work(sender: Connection, opened: Opened, steps: Sequence[CaseGroup]) -> None:
    """Run the steps in the child; announce each case, then send its outcome."""
    # A thread of the parent that draws a bar may have held the lock of its standard error.
    sys.stderr = sys.__stderr__
    try:
        with opened() as backend:
            sender.send(("backend", backend.name))
            for step in steps:
                sender.send(("step", step.subject))
                for case, run in step.cases():
                    sender.send(("case", *case))
                    outcome = run(backend)
                    sender.send(("outcome", outcome.status, outcome.reason))
        sender.send(("done",))
    except GptrsError as error:
        sender.send(("raised", error))
    except KeyboardInterrupt:  # the parent gets it, too
        # Without exit handlers, which belong to the parent's copies of libraries.
        os._exit(1)


def _ignore(*_: object) -> None:
    """Ignore the arguments."""


def _ending(process: BaseProcess) -> str:
    """Say how a child ended."""
    code = process.exitcode or 0
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended the process with exit code {code}"
