"""Loading the model of a command by its options."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gptrs.errors import UsageError
from gptrs.lazy_module import lazy_module
from gptrs.plugins.trace_sinks import listening
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.failures import OutputFileError
from gptrs_cli.terminal.streams import note
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.forward import command_line_overrides
from gptrs_runtime.load import load
from gptrs_runtime.loaded_model import LoadedModel

if TYPE_CHECKING:
    from gptrs_observe import dump, profile_document, profile_files
    from gptrs_observe import profile as profiles
    from gptrs_observe.profile import Profile
else:
    dump = lazy_module("gptrs_observe.dump")
    profiles = lazy_module("gptrs_observe.profile")
    profile_document = lazy_module("gptrs_observe.profile_document")
    profile_files = lazy_module("gptrs_observe.profile_files")


def loaded_model(path: Path | None, settings: Settings, adapter: Path | None = None) -> LoadedModel:
    """Load the model at `path` (None: the bundled demo model); raise what `load_model` raises."""
    model_path(path)  # a missing model is reported before a backend is created
    options = settings.load.on(settings.load.made_backend())
    return load(path, replace(options, adapter=adapter))


def adapter_of(model: LoadedModel) -> str | UnsetType:
    """Return the folder of a model's adapter for a result; UNSET if there is none."""
    return UNSET if model.adapter is None else str(model.adapter.path)


# The shared options of runs: overrides, dumps, trace sinks, profiles.


@contextmanager
def observed(settings: Settings) -> Generator[Profile | None]:
    """Scope with the overrides, dumps, traces and profile that the options ask for.

    Options are checked first. Yields the profile, for results as JSON; otherwise the profile is
    printed or written when the scope ends.
    """
    with _profile_folder(settings), _dumped(settings), command_line_overrides(settings.overrides):
        if not settings.profile and settings.profile_out is None:
            yield None
            return
        profile = profiles.Profile()
        try:
            with profiles.recording(profile):
                yield profile
        finally:
            _deliver(profile, settings)


def profile_of(profile: Profile | None) -> dict[str, object] | UnsetType:
    """Return the profile of a result as JSON; UNSET if there is none."""
    return UNSET if profile is None else profile_document.profile_document(profile)


def _profile_folder(settings: Settings) -> AbstractContextManager[None]:
    """Return a scope with the folder of `--profile-out`, if that is given."""
    if settings.profile_out is None:
        return nullcontext()
    return profile_files.folder_made(settings.profile_out, OutputFileError)


@contextmanager
def _dumped(settings: Settings) -> Generator[None]:
    if settings.dump_dir is None:
        asked = {
            "--dump-mode": settings.dump_mode,
            "--dump-inputs": settings.dump_inputs,
            "--dump-weights": settings.dump_weights,
        }
        if any(asked.values()):
            first = next(name for name, value in asked.items() if value)
            raise UsageError(
                f"`{first}` says what to dump, but not where", hint="add `--dump-dir DIR`"
            )
        with listening(settings.trace_sinks):
            yield
        return
    mode = "all" if settings.dump_mode is None else settings.dump_mode.value
    inputs, weights = settings.dump_inputs, settings.dump_weights
    with dump.dumping(settings.dump_dir, mode, inputs=inputs, weights=weights) as dumped:
        try:
            with listening(settings.trace_sinks):
                yield
        finally:
            if dumped.programs and not settings.json:
                note(_summary(dumped))


def _summary(dumped: dump.ProgramDump) -> str:
    noun = "program" if dumped.programs == 1 else "programs"
    return f"{dumped.programs} {noun} dumped to {dumped.path}"


def _deliver(profile: Profile, settings: Settings) -> None:
    if not profile.programs:
        return
    if settings.profile_out is None:
        if not settings.json:
            note(profile.table())
        return
    title = " ".join(["gptrs", *sys.argv[1:]])
    profile_files.write_profile(
        profile, settings.profile_out, title, settings.load.threads, OutputFileError
    )
    if not settings.json:
        note(f"profile written to {settings.profile_out}; open report.html in it")
