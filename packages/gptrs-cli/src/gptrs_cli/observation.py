"""What `--dump-dir` and `--trace-sink` ask for, while a command runs programs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from gptrs.errors import UsageError
from gptrs.plugins.trace_sinks import listening
from gptrs.runtime.dump import ProgramDump, dumping
from gptrs_cli.settings import Settings
from gptrs_cli.stderr import note


@contextmanager
def observed(settings: Settings) -> Generator[None]:
    """Scope in which programs are dumped and traced as asked, which is checked before all else."""
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
