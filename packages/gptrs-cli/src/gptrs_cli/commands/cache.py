"""`gptrs cache`: shows, fills and clears the caches on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Protocol, TypeVar

import typer
from msgspec import UNSET, Struct, UnsetType

from gptrs_cli.loading import loaded_model
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import LOAD, ModelOption, Settings
from gptrs_cli.options.text_input import parse_integers
from gptrs_cli.plain_commands import Application
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.streams import printable
from gptrs_observe.measure.kernel_caches import (
    CachePart,
    CacheReport,
    Entries,
    digest_cache,
    kernel_caches,
    program_cache,
    weight_caches,
)
from gptrs_observe.measure.kernel_caches import warm as warm_model
from gptrs_runtime.results import Result

app = Application(
    "Show, fill or clear the caches on disk.",
    add_completion=False,
)
_NO_BACKEND = "no backend that works here has a cache of kernels"

_BYTES = {"nbytes": "bytes"}
Told = TypeVar("Told")


class PartContent(Struct, frozen=True, kw_only=True, rename=_BYTES):
    """The entries of one version of gptrs, or of one file of weights."""

    version: str | UnsetType = UNSET
    path: str | UnsetType = UNSET
    current: bool
    entries: int
    nbytes: int


class CacheContent(Struct, frozen=True, kw_only=True, rename=_BYTES):
    """The contents of a cache."""

    backend: str | UnsetType = UNSET
    folder: str | None
    entries: int
    nbytes: int
    budget_bytes: int
    stale_entries: int
    stale_bytes: int
    versions: list[PartContent] | UnsetType = UNSET
    files: list[PartContent] | UnsetType = UNSET
    installed: list[PartContent] | UnsetType = UNSET


class CacheInfo(Result, frozen=True, kw_only=True, tag="gptrs.cache.info/1"):
    """`gptrs cache info`: compiled kernels, packed weights, optimized programs, digests."""

    caches: list[CacheContent]
    weights: list[CacheContent]
    programs: list[CacheContent]
    digests: list[CacheContent]


class CacheWarm(Result, frozen=True, kw_only=True, tag="gptrs.cache.warm/1"):
    """`gptrs cache warm`."""

    model: str
    backend: str
    compiled: int
    weights: int
    weight_bytes: int
    programs: int
    program_bytes: int
    seconds: float


class Cleared(Struct, frozen=True, kw_only=True, rename=_BYTES):
    """The number and size of the entries removed from a cache."""

    backend: str | UnsetType = UNSET
    removed: int
    nbytes: int


class CacheClear(Result, frozen=True, kw_only=True, tag="gptrs.cache.clear/1"):
    """`gptrs cache clear`."""

    caches: list[Cleared]
    weights: list[Cleared]
    programs: list[Cleared]
    digests: list[Cleared]


class _Kind(Struct, frozen=True):
    """A kind of cache: what its parts are called in text and in JSON; `field` names the whole."""

    field: str
    title: str
    noun: str
    without: str
    parts: str | None = None
    part: str = ""


_KERNELS = _Kind(
    "caches", "compiled kernels", "kernel", "kernels are compiled", "versions", "version"
)
_WEIGHTS = _Kind("weights", "packed weights", "weight", "weights are packed", "files", "path")
_PROGRAMS = _Kind("programs", "optimized programs", "program", "programs are optimized")
_DIGESTS = _Kind("digests", "digests of weights", "digest", "weights are read for their digest")


class _Reporting(Protocol):
    def __call__(self) -> CacheReport: ...


class _Clearing(Protocol):
    def __call__(self, *, stale_only: bool) -> Entries: ...


class _Cache(Struct, frozen=True):
    """A cache of one kind; `backend` is empty if all backends share it."""

    kind: _Kind
    backend: str
    report: _Reporting
    clear: _Clearing

    @property
    def title(self) -> str:
        return f"{self.backend}, {self.kind.title}" if self.backend else self.kind.title


@app.command()
@command_options("backend")
def info(settings: Settings) -> None:
    """Show the kernels, weights and programs on disk, and mark stale ones."""
    caches = _caches(settings.backend)
    reports = [(cache, cache.report()) for cache in caches]
    if settings.json:
        listed = [(cache.kind, _told(cache, report)) for cache, report in reports]
        return print_result(CacheInfo(**_by_kind(listed)))
    for cache, report in reports:
        _print_report(cache, report)
    if any(report.stale.count for _, report in reports):
        print("\n`gptrs cache clear --stale` removes the stale ones.")
    _note_no_backend(caches)


@app.command()
@command_options(*LOAD)
def warm(
    *,
    model: ModelOption = None,
    prompt_lengths: Annotated[
        str | None,
        typer.Option(
            "--prompt-lengths",
            metavar="1,128,512",
            help="Prompt lengths in tokens to compile for, if the context is that long.",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Compile and pack everything that the first run of a model needs."""
    lengths = None
    if prompt_lengths is not None:
        # Before the model is loaded: an error of the option should not cost a load.
        lengths = parse_integers(prompt_lengths, "--prompt-lengths", "numbers of tokens")
    started = time.perf_counter()
    loaded = loaded_model(model, settings)
    with progress_bar("warming") as step:
        made = warm_model(loaded, lengths, step)
    seconds = time.perf_counter() - started
    if settings.json:
        return print_result(
            CacheWarm(
                model=loaded.name,
                backend=loaded.backend.name,
                compiled=made.kernels,
                weights=made.weights.count,
                weight_bytes=made.weights.nbytes,
                programs=made.programs.count,
                program_bytes=made.programs.nbytes,
                seconds=seconds,
            )
        )
    done = [
        f"{_counted(made.kernels, made.noun)} compiled" if made.kernels else "nothing to compile"
    ]
    for noun, written in (("packed weight", made.weights), ("optimized program", made.programs)):
        if written.count:
            done.append(f"{_counted(written.count, noun)} written ({_size(written.nbytes)})")
    print(f"{', '.join(done)}: {loaded.name} on {loaded.backend.name}, {seconds:.1f} s")


@app.command()
@command_options("backend")
def clear(
    *,
    stale: Annotated[
        bool,
        typer.Option("--stale", help="Only entries that this version and machine cannot use."),
    ] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Only kernels.")] = False,
    weights: Annotated[bool, typer.Option("--weights", help="Only packed weights.")] = False,
    programs: Annotated[
        bool, typer.Option("--programs", help="Only optimized programs (shared by all backends).")
    ] = False,
    digests: Annotated[
        bool, typer.Option("--digests", help="Only digests of weights (for prompt caches).")
    ] = False,
    settings: Settings,
) -> None:
    """Remove compiled kernels, packed weights, optimized programs and digests of weights."""
    asked = {_KERNELS: kernels, _WEIGHTS: weights, _PROGRAMS: programs, _DIGESTS: digests}
    caches = _caches(settings.backend)
    # None of the four options means all of them.
    chosen = [cache for cache in caches if asked[cache.kind] or not any(asked.values())]
    removed = [(cache, cache.clear(stale_only=stale)) for cache in chosen]
    if settings.json:
        listed = [(cache.kind, _cleared(cache, entries)) for cache, entries in removed]
        return print_result(CacheClear(**_by_kind(listed)))
    for cache, entries in removed:
        print(f"{cache.title}: {entries.count} removed, {_size(entries.nbytes)}")
    _note_no_backend(caches)


def _caches(backend: str | None) -> list[_Cache]:
    """Return the caches of a backend (default: all that work), of programs and of digests."""
    kernels = [
        _Cache(_KERNELS, name, cache.cache_report, cache.clear_cache)
        for name, cache in kernel_caches(backend).items()
    ]
    weights = [
        _Cache(_WEIGHTS, name, cache.weight_report, cache.clear_weights)
        for name, cache in weight_caches(backend).items()
    ]
    programs, digests = program_cache(), digest_cache()
    shared = [
        _Cache(_PROGRAMS, "", programs.report, programs.clear),
        _Cache(_DIGESTS, "", digests.report, digests.clear),
    ]
    return [*kernels, *weights, *shared]


def _note_no_backend(caches: Sequence[_Cache]) -> None:
    if all(cache.kind is not _KERNELS for cache in caches):
        print(f"{_NO_BACKEND}.")


def _by_kind(listed: Sequence[tuple[_Kind, Told]]) -> dict[str, list[Told]]:
    """Return the caches of each kind; an empty list for a kind that was not asked for."""
    kinds = (_KERNELS, _WEIGHTS, _PROGRAMS, _DIGESTS)
    # A kind without a cache is an empty list in the JSON, not a missing field.
    return {kind.field: [told for its, told in listed if its is kind] for kind in kinds}


def _told(cache: _Cache, report: CacheReport) -> CacheContent:
    kind = cache.kind
    return CacheContent(
        backend=cache.backend or UNSET,
        folder=str(report.folder) if report.folder else None,
        entries=report.entries.count,
        nbytes=report.entries.nbytes,
        budget_bytes=report.budget_bytes,
        stale_entries=report.stale.count,
        stale_bytes=report.stale.nbytes,
        installed=[_part(part, "version") for part in report.installed] or UNSET,
        **(
            {}
            if kind.parts is None
            else {kind.parts: [_part(part, kind.part) for part in report.parts]}
        ),
    )


def _part(part: CachePart, named: str) -> PartContent:
    return PartContent(
        **{named: part.name},
        current=part.current,
        entries=part.entries.count,
        nbytes=part.entries.nbytes,
    )


def _cleared(cache: _Cache, entries: Entries) -> Cleared:
    return Cleared(backend=cache.backend or UNSET, removed=entries.count, nbytes=entries.nbytes)


def _print_report(cache: _Cache, report: CacheReport) -> None:
    print(cache.title)
    for part in report.installed:
        mark = "installed" if part.current else "not used"
        print(f"  {mark:<8} {_shown(part.entries)}: {printable(part.name)}")
    print(printable(f"  folder   {report.folder or f'none: {cache.kind.without} in each process'}"))
    print(f"  held     {_shown(report.entries)} of at most {_size(report.budget_bytes)}")
    for part in report.parts:
        # A part without a name is all of a cache that does not tell origins apart: the total says
        # it.
        if part.name:
            mark = "in use" if part.current else "stale"
            print(f"  {mark:<8} {_shown(part.entries)}: {printable(part.name)}")


def _shown(entries: Entries) -> str:
    return f"{entries.count}, {_size(entries.nbytes)}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else noun + 's'}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1024**2:.1f} MiB"
