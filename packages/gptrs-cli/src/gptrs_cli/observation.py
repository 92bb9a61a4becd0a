"""Runs programs as the shared options say: overridden, dumped, traced, profiled."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import UsageError
from gptrs.plugins.trace_sinks import listening
from gptrs.runtime.functional_overrides import command_line_overrides
from gptrs.runtime.observe.dump import ProgramDump, dumping
from gptrs.runtime.observe.profile import Profile, profiling
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import OutputFileError
from gptrs_cli.terminal.stderr import note


@contextmanager
def observed(settings: Settings) -> Generator[Profile | None]:
    """Scope in which functionals are overridden and programs dumped, traced and profiled as asked.

    The options are checked first. Yields the profile that is being made, for results as JSON;
    otherwise the profile is shown, or written, in the end.
    """
    if settings.profile_out is not None:
        _make_folder(settings.profile_out)
    with _dumped(settings), command_line_overrides(settings.overrides):
        if not settings.profile and settings.profile_out is None:
            yield None
            return
        with profiling() as profile:
            try:
                yield profile
            finally:
                _deliver(profile, settings)


def profile_fields(profile: Profile | None) -> dict[str, object]:
    """What a result as JSON says of the profile: nothing if there is none."""
    return {} if profile is None else {"profile": profile.as_json()}


@contextmanager
def _dumped(settings: Settings) -> Generator[None]:
    if settings.dump_dir is None:
        if settings.dump_mode is not None:
            raise UsageError(
                "`--dump-mode` says what to dump, but not where", hint="add `--dump-dir DIR`"
            )
        with listening(settings.trace_sinks):
            yield
        return
    mode = "all" if settings.dump_mode is None else settings.dump_mode.value
    with dumping(settings.dump_dir, mode) as dump:
        try:
            with listening(settings.trace_sinks):
                yield
        finally:
            if dump.programs and not settings.json:
                note(_summary(dump))


def _summary(dump: ProgramDump) -> str:
    noun = "program" if dump.programs == 1 else "programs"
    return f"{dump.programs} {noun} dumped to {dump.path}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFileError(
            f"cannot make the folder `{folder}` for the profile: {error.strerror}",
            hint="name another one with --profile-out",
        ) from error


def _deliver(profile: Profile, settings: Settings) -> None:
    if not profile.programs:
        return
    if settings.profile_out is None:
        if not settings.json:
            note(profile.table())
        return
    contents = {"profile.json": json.dumps(profile.as_json()), "profile.txt": profile.table()}
    for name, text in contents.items():
        with atomic_file(settings.profile_out / name, OutputFileError) as file:
            file.write(f"{text}\n".encode())
    if not settings.json:
        note(f"profile written to {settings.profile_out}")
