"""Runs programs as the shared options say: overridden, dumped, traced, profiled."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from gptrs.errors import UsageError
from gptrs.plugins.trace_sinks import listening
from gptrs.runtime.functional_overrides import command_line_overrides
from gptrs.runtime.observe.dump import ProgramDump, dumping
from gptrs.runtime.observe.profile import Profile, recording
from gptrs.runtime.observe.profile_document import profile_document
from gptrs.runtime.observe.profile_files import make_folder, write_profile
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
        make_folder(settings.profile_out, OutputFileError)
    with _dumped(settings), command_line_overrides(settings.overrides):
        if not settings.profile and settings.profile_out is None:
            yield None
            return
        profile = Profile()
        try:
            with recording(profile):
                yield profile
        finally:
            _deliver(profile, settings)


def profile_fields(profile: Profile | None) -> dict[str, object]:
    """Return the fields of a JSON result about the profile, none where there is no profile."""
    return {} if profile is None else {"profile": profile_document(profile)}


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


def _deliver(profile: Profile, settings: Settings) -> None:
    if not profile.programs:
        return
    if settings.profile_out is None:
        if not settings.json:
            note(profile.table())
        return
    title = " ".join(["gptrs", *sys.argv[1:]])
    write_profile(profile, settings.profile_out, title, settings.threads, OutputFileError)
    if not settings.json:
        note(f"profile written to {settings.profile_out}; open report.html in it")
