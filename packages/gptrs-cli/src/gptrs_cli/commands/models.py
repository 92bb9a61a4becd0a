"""`gptrs models`: lists, fetches and removes the models on this disk."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import typer
from msgspec import Struct

from gptrs.errors import GptrsError, MissingLibraryError, ModelError, UsageError
from gptrs.install_hints import install_extra
from gptrs.plugins.descriptions import DemoModelPlugin
from gptrs.plugins.manager import manager
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import counted, did_you_mean, quoted
from gptrs_cli.inspect.checkpoint import byte_size
from gptrs_cli.models.head import architecture
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.plain_commands import Application
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import is_terminal, note, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.results import Result
from gptrs_runtime.sources.find_model import find_model, is_checkpoint
from gptrs_runtime.sources.hub import HubModel, download
from gptrs_runtime.sources.model_source import CONFIG

# The cache of the Hugging Face hub on this disk, through its own library.


class CacheError(GptrsError):
    """The cache of the hub cannot be changed."""

    code = "file"


@dataclass(frozen=True)
class CachedRevision:
    """A commit of a model in the cache: the name that `--model` takes, its files and their bytes.

    `model` is the name of the whole repository.
    """

    name: str
    model: str
    commit: str
    refs: tuple[str, ...]
    path: Path
    nbytes: int


def hub_library() -> ModuleType:
    """Return the library; MissingLibraryError if it is not installed."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as problem:
        raise MissingLibraryError(
            "the cache of the Hugging Face hub needs the library `huggingface_hub`",
            hint=install_extra("gptrs-runtime", "hub"),
        ) from problem


def cached_revisions() -> list[CachedRevision]:
    """Return all commits of all models in the cache, by name; none if there is no cache."""
    repositories = _repositories()
    found = [each for repository in repositories for each in _revisions(repository)]
    return sorted(found, key=lambda each: each.name)


def cached(model: HubModel) -> list[CachedRevision]:
    """Return the commits of a model, or of the revision that it names.

    Raises ModelError if the cache has none.
    """
    revisions = cached_revisions()
    wanted = model.revision
    found = [
        each
        for each in revisions
        if each.model == model.repository
        and (wanted is None or wanted in each.refs or each.commit.startswith(wanted))
    ]
    if not found:
        shown = quoted(str(model))
        guess = did_you_mean(str(model), {each.name for each in revisions})
        raise ModelError(
            f"{shown} is not in the cache of the hub",
            hint=f"{guess}`gptrs models list` shows what is,"
            f" `gptrs models pull {model}` fetches it",
        )
    return found


def freed_bytes(revisions: Iterable[CachedRevision]) -> int:
    """Return the bytes that removing these frees; files shared with other commits stay."""
    return int(_strategy(revisions).expected_freed_size)


def remove(revisions: Iterable[CachedRevision]) -> None:
    """Remove commits from the cache; CacheError if a file could not be removed."""
    revisions = list(revisions)
    try:
        _strategy(revisions).execute()
    except OSError as error:
        raise CacheError(f"cannot remove all: {error.strerror or error}") from error
    left = [each.path for each in revisions if each.path.exists()]
    if left:
        raise CacheError(
            f"{quoted(str(left[0]), 200)} could not be removed", hint="who may write there?"
        )


def _strategy(revisions: Iterable[CachedRevision]) -> Any:
    return _cache().delete_revisions(*(each.commit for each in revisions))


def _cache() -> Any:
    library = hub_library()
    constants = importlib.import_module(f"{library.__name__}.constants")
    return library.scan_cache_dir(constants.HF_HUB_CACHE)


def _repositories() -> list[Any]:
    library = hub_library()
    errors = importlib.import_module(f"{library.__name__}.errors")
    try:
        cache = _cache()
    except errors.CacheNotFound:
        return []
    return [each for each in cache.repos if each.repo_type == "model"]


def _revisions(repository: Any) -> Iterator[CachedRevision]:
    """Yield the commits; the newest has the plain name, others one with `@`."""
    for revision in repository.revisions:
        refs = tuple(sorted(revision.refs))
        at = "main" if "main" in refs else (*refs, revision.commit_hash)[0]
        name = repository.repo_id if at == "main" else f"{repository.repo_id}@{at}"
        yield CachedRevision(
            name,
            repository.repo_id,
            revision.commit_hash,
            refs,
            Path(revision.snapshot_path),
            int(revision.size_on_disk),
        )


# Models on this disk: their kinds, and whether they run here.


_DEEPEST = 3
"""Depth of the search below a given folder."""


Source = Literal["bundled", "hub", "folder"]


class DiskModel(Struct, frozen=True, rename={"nbytes": "bytes"}):
    """A model on this disk: the name that `--model` takes, and its path.

    `source` is `bundled`, `hub` or `folder`; `problem` says why it does not run, None if it does.
    `architecture` is the class of transformers that config.json names: its head.
    """

    name: str
    source: Source
    kind: str | None
    architecture: str | None
    nbytes: int
    path: str
    problem: str | None = None


def disk_models(folders: Iterable[Path]) -> Iterator[DiskModel]:
    """Yield the bundled models, those in the cache of the hub, and those in `folders`.

    Raises ModelError if one of them is not a folder.
    """
    for record in manager().records(DemoModelPlugin):
        try:
            path = manager().demo_model_path(record.name)
        except GptrsError as error:
            yield DiskModel(record.name, "bundled", None, None, 0, ".", error.message)
            continue
        yield _examined(record.name, "bundled", path)
    try:
        for revision in cached_revisions():
            yield _examined(revision.name, "hub", revision.path)
    except MissingLibraryError as error:
        note(f"{error.message}: it is not listed")
    for folder in folders:
        if not folder.is_dir():
            raise ModelError(f"{quoted(str(folder), 200)} is no folder")
        for path in _models_in(folder, _DEEPEST):
            yield _examined(str(path), "folder", path)


def _models_in(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the model folders and files at or below `folder`, except in hidden folders."""
    if (folder / CONFIG).is_file():
        yield folder
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.suffix == ".gptrschk" and is_checkpoint(entry):
            yield entry
        elif depth > 0 and entry.is_dir() and not entry.name.startswith("."):
            yield from _models_in(entry, depth - 1)


def _examined(name: str, source: Source, path: Path) -> DiskModel:
    kind, head, size = None, None, _size(path)
    try:
        model = find_model(path)
        kind, head = model.model_type, architecture(model)
        manager().model_plugin(kind)
        model.weights.names()
    except GptrsError as error:
        return DiskModel(name, source, kind, head, size, str(path), error.message)
    return DiskModel(name, source, kind, head, size, str(path))


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder."""
    files = [path] if path.is_file() else [Path(top, n) for top, _, ns in os.walk(path) for n in ns]
    total = 0
    for file in files:
        try:
            total += file.stat().st_size
        except OSError:  # a dangling link
            continue
    return total


app = Application(
    "List, fetch and remove the models on this disk.",
    add_completion=False,
)
_BYTES = {"nbytes": "bytes"}
_HubArgument = Annotated[
    str, typer.Argument(metavar="ORG/NAME[@REVISION]", help="A model of the Hugging Face hub.")
]


class ModelsList(Result, frozen=True, kw_only=True, tag="gptrs.models.list/1"):
    """`gptrs models list`."""

    models: list[DiskModel]


class ModelsPull(Result, frozen=True, kw_only=True, tag="gptrs.models.pull/1", rename=_BYTES):
    """`gptrs models pull`."""

    model: str
    kind: str
    path: str
    nbytes: int


class ModelsPath(Result, frozen=True, kw_only=True, tag="gptrs.models.path/1"):
    """`gptrs models path`."""

    model: str
    path: str


class ModelsRemove(Result, frozen=True, kw_only=True, tag="gptrs.models.remove/1", rename=_BYTES):
    """`gptrs models remove`: the removed commits, and the bytes that this freed."""

    model: str
    revisions: list[str]
    nbytes: int


@app.command("list")
@command_options()
def list_models(
    *,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...", help="Search these folders as well.", show_default=False
        ),
    ] = None,
    settings: Settings,
) -> None:
    """List models: bundled ones, the cache of the hub, folders."""
    found = list(disk_models(folders or []))
    if settings.json:
        return print_result(ModelsList(models=found))
    if not found:
        note("there are none; `gptrs models pull ORG/NAME` fetches one, FOLDER names others")
        return
    rows = [_row(model) for model in found]
    print_table(["model", "from", "kind", "architecture", "size", "runs"], rows)


@app.command()
@command_options()
def pull(*, model: _HubArgument, settings: Settings) -> None:
    """Fetch a model of the hub into its cache.

    Files that are there already are not fetched again.
    """
    path = download(_hub_model(model))
    size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    kind = find_model(path).model_type
    if settings.json:
        return print_result(ModelsPull(model=model, kind=kind, path=str(path), nbytes=size))
    print(printable(f"{model}: {kind}, {byte_size(size)} in {path}"))


@app.command()
@command_options()
def path(
    *,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A bundled model, one of the hub's cache, or a path."),
    ],
    settings: Settings,
) -> None:
    """Print the path of a model on this disk; nothing is fetched."""
    found = str(_path(model))
    if settings.json:
        print_result(ModelsPath(model=model, path=found))
    else:
        print(printable(found))


@app.command("remove")
@command_options()
def remove_model(
    *,
    model: _HubArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    settings: Settings,
) -> None:
    """Remove a model from the cache of the hub.

    Removes all its revisions, or the one that is named.
    """
    revisions = cached(_hub_model(model))
    size = freed_bytes(revisions)
    what = f"{model}, {counted(len(revisions), 'revision')}, {byte_size(size)}"
    if not yes and not _confirmed(what, as_json=settings.json):
        note("nothing was removed")
        raise typer.Exit(1)
    remove(revisions)
    if settings.json:
        commits = [each.commit for each in revisions]
        return print_result(ModelsRemove(model=model, revisions=commits, nbytes=size))
    print(printable(f"removed {what}"))


def _confirmed(what: str, *, as_json: bool) -> bool:
    """Ask on a terminal; UsageError if nobody can answer."""
    if as_json or not is_terminal(sys.stdin):
        raise UsageError(f"removing {what} needs a yes", hint="add --yes")
    sys.stderr.write(printable(f"remove {what}? [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _hub_model(name: str) -> HubModel:
    model = HubModel.parse(name)
    if model is None:
        raise UsageError(
            f"{quoted(name)} is no name on the Hugging Face hub",
            hint="names are ORG/NAME or ORG/NAME@REVISION; remove files of your own yourself",
        )
    return model


def _path(name: str) -> Path:
    """Return the path of a model; ModelError if it is not on this disk."""
    found = Path(model_path(name))
    wanted = HubModel.parse(name)
    if found.exists() or wanted is None:
        return find_model(found).path.absolute()
    revisions: list[CachedRevision] = cached(wanted)
    newest = [each for each in revisions if each.name == wanted.repository]
    return (newest or revisions)[0].path


def _row(model: DiskModel) -> list[str]:
    runs = "yes" if model.problem is None else f"no: {model.problem}"
    kind, head = model.kind or "", model.architecture or ""
    return [model.name, model.source, kind, head, byte_size(model.nbytes), runs]
