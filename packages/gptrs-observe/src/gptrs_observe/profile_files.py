"""`gptrs.profiling` and `--profile-out`: a profile as files in a folder."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import GptrsError, UsageError
from gptrs.plugins.manager import manager
from gptrs_observe.measure.step_work import MachineLimits, measure_limits
from gptrs_observe.profile import Profile, recording
from gptrs_observe.profile_document import profile_document
from gptrs_observe.profile_report.page import report_page
from gptrs_observe.trace_files import chrome_trace, speedscope


@contextmanager
def profiling(folder: str | Path | None = None, title: str = "") -> Generator[Profile]:
    """Scope in which all programs of the process are profiled; runs take longer meanwhile.

    In the end the profile is written to `folder`, which is made before anything runs: report.html,
    profile.json, profile.txt, trace.json for Perfetto, and profile.speedscope.json. Nothing is
    written where no program ran. `title` says what is run. UsageError for a folder that cannot be
    made or written to.
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
    """Scope that begins by making the folder of a profile; `error` if that is not possible.

    A folder that it made and that is empty at the end is removed.
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
        with suppress(OSError):  # one that has files stays, and what it lies in
            for each in made:
                each.rmdir()


def write_profile(
    profile: Profile,
    folder: Path,
    title: str = "",
    threads: int | None = None,
    error: type[GptrsError] = UsageError,
) -> None:
    """Measure the machine, and write the files; `threads` are those that the backend was given.

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
    with ExitStack() as staged:  # they get their names once all of them lie on the disk
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
    except GptrsError:  # a backend that was made by hand has no name to ask for
        return None
