"""`gptrs.profiling` and `--profile-out`: a profile as files in a folder."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import GptrsError, UsageError
from gptrs.plugins.manager import manager
from gptrs.runtime.measure.machine_limits import MachineLimits, measure_limits
from gptrs.runtime.observe.profile import Profile, recording
from gptrs.runtime.observe.profile_document import profile_document
from gptrs.runtime.observe.profile_report.page import report_page
from gptrs.runtime.observe.trace_files import chrome_trace, speedscope


@contextmanager
def profiling(folder: str | Path | None = None, title: str = "") -> Generator[Profile]:
    """Scope in which all programs of the process are profiled; runs take longer meanwhile.

    In the end the profile is written to `folder`, which is made before anything runs: report.html,
    profile.json, profile.txt, trace.json for Perfetto, and profile.speedscope.json. Nothing is
    written where no program ran. `title` says what is run. UsageError for a folder that cannot be
    made or written to.
    """
    if folder is not None:
        make_folder(Path(folder))
    profile = Profile()
    try:
        with recording(profile):
            yield profile
    finally:
        if folder is not None and profile.programs:
            write_profile(profile, Path(folder), title)


def make_folder(folder: Path, error: type[GptrsError] = UsageError) -> None:
    """Make the folder of a profile; raise `error` if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise error(
            f"cannot make the folder `{folder}` for the profile: {problem.strerror}",
            hint="name another one",
        ) from problem


def write_profile(
    profile: Profile,
    folder: Path,
    title: str = "",
    threads: int | None = None,
    error: type[GptrsError] = UsageError,
) -> None:
    """Measure the machine, and write the files; `threads` are those that the backend was given.

    Each file is written whole or not at all; `error` if one cannot be written.
    """
    limits = _limits(profile, threads)
    contents = {
        "profile.json": json.dumps(profile_document(profile, limits)),
        "profile.txt": profile.table(),
        "trace.json": json.dumps(chrome_trace(profile)),
        "profile.speedscope.json": json.dumps(speedscope(profile)),
        "report.html": report_page(profile, limits, title),
    }
    for name, text in contents.items():
        with atomic_file(folder / name, error) as file:
            file.write(f"{text.rstrip()}\n".encode())


def _limits(profile: Profile, threads: int | None) -> MachineLimits | None:
    """Return the limits for the backend whose kernels took most time, None without kernels."""
    timed = [program for program in profile.programs.values() if program.kernels]
    if not timed:
        return None
    costliest = max(timed, key=lambda program: program.seconds)
    try:
        return measure_limits(manager().get_backend(costliest.backend, threads))
    except GptrsError:  # a backend that was made by hand has no name to ask for
        return None
