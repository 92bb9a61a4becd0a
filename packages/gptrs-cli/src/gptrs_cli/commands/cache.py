"""`gptrs cache`: the compiled kernels and packed weights that backends keep on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated

import typer

from gptrs.runtime.measure.kernel_caches import (
    CacheReport,
    Entries,
    WeightCacheReport,
    kernel_caches,
    weight_caches,
)
from gptrs.runtime.measure.kernel_caches import warm as warm_model
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.inputs import parse_integers
from gptrs_cli.options.model import ModelOption
from gptrs_cli.options.settings import LOAD, Settings
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.stderr import printable

app = typer.Typer(
    help="Show, fill or clear compiled kernels and packed weights.",
    add_completion=False,
    rich_markup_mode=None,
)
_NO_BACKEND = "no backend that works here keeps compiled kernels"


@app.command()
@command_options("backend")
def info(settings: Settings) -> None:
    """Show the kernels and weights on disk, and which are stale."""
    caches = kernel_caches(settings.backend)
    reports = {name: cache.cache_report() for name, cache in caches.items()}
    kept = weight_caches(settings.backend)
    weights = {name: cache.weight_report() for name, cache in kept.items()}
    if settings.json:
        listed = [_as_json(name, report) for name, report in reports.items()]
        of_weights = [_weights_as_json(name, report) for name, report in weights.items()]
        print(json.dumps({"caches": listed, "weights": of_weights}, indent=2))
        return
    for name, report in reports.items():
        _print_report(name, report)
    for name, report in weights.items():
        _print_weights(name, report)
    if any(report.stale.count for report in (*reports.values(), *weights.values())):
        print("\n`gptrs cache clear --stale` removes those that are stale.")
    if not reports:
        print(f"{_NO_BACKEND}.")


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
            help="Compile for prompts of so many tokens; these without it, where they fit.",
        ),
    ] = None,
    settings: Settings,
) -> None:
    """Compile and pack what the first run of a model needs."""
    lengths = None
    if prompt_lengths is not None:
        lengths = parse_integers(prompt_lengths, "--prompt-lengths", "numbers of tokens")
    started = time.perf_counter()
    loaded = loaded_model(model, settings)
    with progress_bar("warming") as step:
        compiled, weights = warm_model(loaded, lengths, step)
    seconds = time.perf_counter() - started
    if settings.json:
        fields = {"model": loaded.name, "backend": loaded.backend.name, "compiled": compiled}
        packed = {"weights": weights.count, "weight_bytes": weights.nbytes}
        print(json.dumps({**fields, **packed, "seconds": seconds}))
        return
    done = f"{_counted(compiled, 'kernel')} compiled" if compiled else "nothing to compile"
    if weights.count:
        done += f", {_counted(weights.count, 'packed weight')} written ({_size(weights.nbytes)}),"
    print(f"{done} for {loaded.name} on {loaded.backend.name}, {seconds:.1f} s")


@app.command()
@command_options("backend")
def clear(
    *,
    stale: Annotated[
        bool,
        typer.Option("--stale", help="Only what this version and machine would not use."),
    ] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Only kernels.")] = False,
    weights: Annotated[bool, typer.Option("--weights", help="Only packed weights.")] = False,
    settings: Settings,
) -> None:
    """Remove compiled kernels and packed weights."""
    every = kernels == weights
    caches = kernel_caches(settings.backend)
    kept = weight_caches(settings.backend) if every or weights else {}
    removed = {
        name: cache.clear_cache(stale_only=stale)
        for name, cache in caches.items()
        if every or kernels
    }
    unpacked = {name: cache.clear_weights(stale_only=stale) for name, cache in kept.items()}
    if settings.json:
        print(json.dumps({"caches": _removed(removed), "weights": _removed(unpacked)}))
        return
    for noun, entries_by_name in (("kernel", removed), ("packed weight", unpacked)):
        for name, entries in entries_by_name.items():
            print(f"{name}: {_counted(entries.count, noun)} removed, {_size(entries.nbytes)}")
    if not caches:
        print(f"{_NO_BACKEND}.")


def _removed(entries_by_name: Mapping[str, Entries]) -> list[dict[str, object]]:
    return [
        {"backend": name, "removed": entries.count, "bytes": entries.nbytes}
        for name, entries in entries_by_name.items()
    ]


def _as_json(name: str, report: CacheReport) -> dict[str, object]:
    versions = [
        {
            "version": version.name,
            "current": version.current,
            "entries": version.entries.count,
            "bytes": version.entries.nbytes,
        }
        for version in report.versions
    ]
    return {
        "backend": name,
        "folder": str(report.folder) if report.folder else None,
        "entries": report.entries.count,
        "bytes": report.entries.nbytes,
        "budget_bytes": report.budget_bytes,
        "stale_entries": report.stale.count,
        "stale_bytes": report.stale.nbytes,
        "versions": versions,
    }


def _print_report(name: str, report: CacheReport) -> None:
    print(f"{name}")
    print(printable(f"  folder   {report.folder or 'none: kernels are compiled in each process'}"))
    held, budget = _size(report.entries.nbytes), _size(report.budget_bytes)
    print(f"  kernels  {report.entries.count}, {held} of at most {budget}")
    for version in report.versions:
        mark = "in use" if version.current else "stale"
        print(f"  {mark:<8} {_shown(version.entries)}: {printable(version.name)}")


def _weights_as_json(name: str, report: WeightCacheReport) -> dict[str, object]:
    files = [
        {
            "path": file.path,
            "current": file.current,
            "entries": file.entries.count,
            "bytes": file.entries.nbytes,
        }
        for file in report.files
    ]
    return {
        "backend": name,
        "folder": str(report.folder) if report.folder else None,
        "entries": report.entries.count,
        "bytes": report.entries.nbytes,
        "budget_bytes": report.budget_bytes,
        "stale_entries": report.stale.count,
        "stale_bytes": report.stale.nbytes,
        "files": files,
    }


def _print_weights(name: str, report: WeightCacheReport) -> None:
    print(f"{name}, packed weights")
    print(printable(f"  folder   {report.folder or 'none: weights are packed in each process'}"))
    held, budget = _size(report.entries.nbytes), _size(report.budget_bytes)
    print(f"  weights  {report.entries.count}, {held} of at most {budget}")
    for file in report.files:
        mark = "in use" if file.current else "stale"
        print(f"  {mark:<8} {_shown(file.entries)}: {printable(file.path)}")


def _shown(entries: Entries) -> str:
    return f"{entries.count}, {_size(entries.nbytes)}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else noun + 's'}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1024**2:.1f} MiB"
