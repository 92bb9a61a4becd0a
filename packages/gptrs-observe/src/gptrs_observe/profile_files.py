"""`gptrs.profiling` and `--profile-out`: a profile as files in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import groupby
from pathlib import Path

from gptrs import __version__
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import GptrsError, UsageError
from gptrs.plugins.manager import manager
from gptrs_observe.measure.step_work import MachineLimits, measure_limits
from gptrs_observe.profile import Profile, recording
from gptrs_observe.profile_document import profile_document
from gptrs_observe.profile_report.page import report_page
from gptrs_observe.programs.op_work import kernel_name
from gptrs_observe.timeline import Interval

# A profile for other programs: Chrome's trace event format, and speedscope's.


def chrome_trace(profile: Profile) -> dict[str, object]:
    """Return the intervals as complete events, in microseconds from the start of the profile.

    For Perfetto (ui.perfetto.dev) and chrome://tracing; each thread is a track.
    """
    process = os.getpid()
    threads = _threads(profile)
    named: list[dict[str, object]] = [
        _metadata("process_name", process, 0, "gptrs"),
        *(
            _metadata("thread_name", process, at, "main" if at == 1 else f"thread {at}")
            for at in threads.values()
        ),
    ]
    events = [
        {
            "name": title(each),
            "cat": each.kind,
            "ph": "X",
            "ts": _microseconds(each.started - profile.started),
            "dur": _microseconds(each.seconds),
            "pid": process,
            "tid": threads[each.thread],
            "args": _arguments(each),
        }
        for each in _by_start(profile.timeline.intervals)
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"gptrs": __version__, "left_out": str(profile.timeline.left_out)},
        "traceEvents": [*named, *events],
    }


def speedscope(profile: Profile) -> dict[str, object]:
    """Return the intervals as evented profiles of speedscope (speedscope.app), one a thread."""
    frames: dict[str, int] = {}
    threads = _threads(profile)
    ordered = sorted(_by_start(profile.timeline.intervals), key=lambda each: threads[each.thread])
    profiles: list[dict[str, object]] = []
    for thread, group in groupby(ordered, key=lambda each: threads[each.thread]):
        events = list(_opened_and_closed(group, profile, frames))
        profiles.append(
            {
                "type": "evented",
                "name": "main" if thread == 1 else f"thread {thread}",
                "unit": "microseconds",
                "startValue": 0,
                "endValue": max([_microseconds(profile.seconds), *(at for _, at, _ in events)]),
                "events": [{"type": kind, "at": at, "frame": frame} for kind, at, frame in events],
            }
        )
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": "gptrs",
        "exporter": f"gptrs@{__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }


def title(interval: Interval) -> str:
    """Return the label of an interval."""
    if interval.kind == "kernel":
        return kernel_name(interval.name)
    return f"{interval.name} {interval.detail}".rstrip()


def _opened_and_closed(
    intervals: Iterable[Interval], profile: Profile, frames: dict[str, int]
) -> Iterable[tuple[str, float, int]]:
    """Yield when each frame opens and closes; an inner one never outlasts its parent."""
    open_: list[tuple[float, int]] = []
    now = 0.0
    for each in intervals:
        # Clocks are rounded to nanoseconds here: speedscope refuses a file whose events go back in
        # time.
        start = max(now, _microseconds(each.started - profile.started))
        while open_ and open_[-1][0] <= start:
            now, frame = open_.pop()
            yield "C", now, frame
        end = max(start, _microseconds(each.started + each.seconds - profile.started))
        end = min(end, open_[-1][0]) if open_ else end
        frame = frames.setdefault(title(each), len(frames))
        now = start
        yield "O", start, frame
        open_.append((end, frame))
    while open_:
        end, frame = open_.pop()
        yield "C", end, frame


def _by_start(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals in the order in which they began, outer ones first."""
    # Of two that begin together, the longer one is the outer.
    return sorted(intervals, key=lambda each: (each.started, -each.seconds))


def _threads(profile: Profile) -> dict[int, int]:
    """Return a small number for each thread; 1 is the one that started the profile."""
    found = dict.fromkeys(
        [profile.timeline.thread, *(i.thread for i in profile.timeline.intervals)]
    )
    return {thread: number for number, thread in enumerate(found, start=1)}


def _arguments(interval: Interval) -> dict[str, object]:
    given = {"detail": interval.detail, "program": interval.program, "layer": interval.layer}
    return {key: value for key, value in given.items() if value not in ("", None)}


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


@contextmanager
def profiling(folder: str | Path | None = None, title: str = "") -> Generator[Profile]:
    """Scope in which all programs of the process are profiled, which slows runs down.

    At the end, the profile is written to `folder`, which is created before anything runs:
    report.html, profile.json, profile.txt, trace.json for Perfetto, and profile.speedscope.json.
    Nothing is written if no program ran. `title` describes the run. UsageError for a folder that
    cannot be created or written to.
    """
    with nullcontext() if folder is None else folder_made(Path(folder)):
        profile = Profile()
        try:
            with recording(profile):
                yield profile
        finally:
            if folder is not None and profile.programs:
                write_profile(profile, Path(folder), title)


@contextmanager
def folder_made(folder: Path, error: type[GptrsError] = UsageError) -> Generator[None]:
    """Scope that first creates the folder of a profile; `error` if that fails.

    A folder that it created is removed if it is empty at the end.
    """
    made: list[Path] = []
    try:
        made += [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise error(
            f"cannot make the folder `{folder}` for the profile: {problem.strerror}",
            hint="name another one",
        ) from problem
    try:
        yield
    finally:
        with suppress(OSError):  # a folder with files is kept, and so are its parents
            for each in made:
                each.rmdir()


def write_profile(
    profile: Profile,
    folder: Path,
    title: str = "",
    threads: int | None = None,
    error: type[GptrsError] = UsageError,
) -> None:
    """Measure the machine, and write the files; `threads` are the backend's.

    All files are written, or none is: `error` if one cannot be written.
    """
    limits = _limits(profile, threads)
    contents = {
        "profile.json": json.dumps(profile_document(profile, limits)),
        "profile.txt": profile.table(),
        "trace.json": json.dumps(chrome_trace(profile)),
        "profile.speedscope.json": json.dumps(speedscope(profile)),
        "report.html": report_page(profile, limits, title),
    }
    with ExitStack() as staged:  # they get their names once all of them are on disk
        for name, text in contents.items():
            file = staged.enter_context(atomic_file(folder / name, error))
            file.write(f"{text.rstrip()}\n".encode())
            file.flush()


def _limits(profile: Profile, threads: int | None) -> MachineLimits | None:
    """Return the limits for the backend whose kernels took most time, None without kernels."""
    timed = [program for program in profile.programs.values() if program.kernels]
    if not timed:
        return None
    costliest = max(timed, key=lambda program: program.seconds)
    try:
        return measure_limits(manager().get_backend(costliest.backend, threads))
    except GptrsError:  # a backend that was constructed directly has no registered name
        return None
