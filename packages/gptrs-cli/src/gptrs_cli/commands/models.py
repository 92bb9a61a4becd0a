"""`gptrs models`: lists, fetches and removes the models on this disk."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer
from msgspec import Struct

from gptrs.errors import GptrsError, MissingLibraryError, ModelError, UsageError
from gptrs.plugins.descriptions import DemoModelPlugin
from gptrs.plugins.manager import manager
from gptrs.quoting import counted, quoted
from gptrs_cli.inspect.checkpoint import byte_size
from gptrs_cli.models.head import architecture
from gptrs_cli.models.hub_cache import (
    CachedRevision,
    cached,
    cached_revisions,
    freed_bytes,
    remove,
)
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.plain_commands import Application
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import is_terminal, note, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.results import Result
from gptrs_runtime.sources.find_model import find_model, is_checkpoint
from gptrs_runtime.sources.gguf_model import SHARD
from gptrs_runtime.sources.hub import HubModel, download
from gptrs_runtime.sources.model_source import CONFIG
from gptrs_runtime.sources.recommended import RecommendedModel, recommended, short_name_like

_DEEPEST = 3
"""Depth of the search below a given folder."""
_DAY = 86_400
_UNITS = (
    *(("year", 365 * _DAY), ("month", 30 * _DAY), ("week", 7 * _DAY), ("day", _DAY)),
    *(("hour", 3600), ("minute", 60)),
)
"""Units of ages in seconds, longest first."""


Source = Literal["bundled", "hub", "folder"]


class DiskModel(Struct, frozen=True, rename={"nbytes": "bytes"}):
    """A model on this disk: the name that `--model` takes, and its path.

    `source` is `bundled`, `hub` or `folder`; `problem` says why it does not run, None if it does.
    `architecture` is the class of transformers that config.json names: its head. `modified` is
    the time of its last change in UTC, None if it is unknown.
    """

    name: str
    source: Source
    kind: str | None
    architecture: str | None
    nbytes: int
    path: str
    problem: str | None = None
    modified: str | None = None


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
            yield _examined(revision.name, "hub", revision.path, revision.modified)
    # The hub's library is an optional dependency: without it, the other models are still listed.
    except MissingLibraryError as error:
        note(f"{error.message}: it is not listed")
    for folder in folders:
        if not folder.is_dir():
            raise ModelError(f"{quoted(str(folder), 200)} is not a folder")
        for path in _models_in(folder, _DEEPEST):
            yield _examined(str(path), "folder", path)


def _models_in(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the model folders and files at or below `folder`, except in hidden folders."""
    # A model folder is one entry. Descending into it would list other files of its repository, such
    # as GGUF copies or checkpoints of training, as further models.
    if (folder / CONFIG).is_file():
        yield folder
        return
    try:
        entries = sorted(folder.iterdir())
    # A folder that this user may not read hides its own models, not those beside it.
    except OSError:
        return
    for entry in entries:
        part = SHARD.fullmatch(entry.name)
        if entry.suffix in (".gptrschk", ".gguf") and is_checkpoint(entry):
            # A model split into parts is listed once, by its first part, which is also the one to
            # load.
            if part is None or int(part[2]) == 1:
                yield entry
        # The depth bounds the walk even through a link to a folder above. Hidden folders hold
        # caches and version control, whose files are not models of the user.
        elif depth > 0 and entry.is_dir() and not entry.name.startswith("."):
            yield from _models_in(entry, depth - 1)


def _examined(name: str, source: Source, path: Path, modified: float | None = None) -> DiskModel:
    kind, head, size, problem = None, None, _size(path), None
    try:
        model = find_model(path)
        kind, head = model.model_type, architecture(model)
        manager().model_plugin(kind)
        # Reads the headers of all weight files, and so finds a download that was cut off.
        model.weights.names()
    except GptrsError as error:
        problem = error.message
    if modified is None:
        modified = path.stat().st_mtime
    when = datetime.fromtimestamp(modified, UTC).isoformat(timespec="seconds")
    return DiskModel(name, source, kind, head, size, str(path), problem, when)


def _size(path: Path) -> int:
    """Return the bytes of a model: of a file with its other parts, or of the files in a folder."""
    if path.is_dir():
        # `os.walk` does not follow links to folders, so a cycle of links ends here.
        files = [Path(top, name) for top, _, names in os.walk(path) for name in names]
        if (path / CONFIG).is_file():  # GGUF files beside it are other models
            files = [file for file in files if file.suffix != ".gguf"]
    else:
        part = SHARD.fullmatch(path.name)
        # The stem comes from a file name, which may contain `[` or `*`: escaped, it matches only
        # itself.
        parts = part and path.parent.glob(f"{glob.escape(part[1])}-?????-of-{part[3]}.gguf")
        files = [*(parts or (path,))]
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
    str,
    typer.Argument(metavar="ORG/NAME[@REVISION][:Q4_K_M]", help="A model of the Hugging Face hub."),
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


class ModelsRecommended(Result, frozen=True, kw_only=True, tag="gptrs.models.recommended/1"):
    """`gptrs models recommended`."""

    models: list[RecommendedModel]


@app.command("recommended")
@command_options()
def recommended_models(
    *,
    task: Annotated[
        str | None,
        typer.Argument(metavar="[TASK]", help="Show those for this task.", show_default=False),
    ] = None,
    settings: Settings,
) -> None:
    """List small open models to begin with.

    Tasks are text, chat, code, embedding, reranking, vision and speech. Each command takes the
    short name for the model. The size is that of the weights, on disk and in memory. Nothing is
    fetched.
    """
    found = [each for each in recommended() if task in (None, each.task)]
    if not found:
        tasks = ", ".join(dict.fromkeys(each.task for each in recommended()))
        raise UsageError(f"no model is recommended for {quoted(str(task))}", hint=f"tasks: {tasks}")
    if settings.json:
        return print_result(ModelsRecommended(models=found))
    rows = [
        [
            *(
                each.task,
                each.short,
                each.name,
                each.parameters_shown,
                byte_size(each.nbytes),
            ),
            *(each.license, each.about),
        ]
        for each in found
    ]
    print_table(["task", "short", "model", "parameters", "size", "license", "for"], rows)
    note(f"try one: {found[0].example}")


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
        note(
            "there are none; `gptrs models recommended` shows some, `gptrs models pull ORG/NAME`"
            " fetches one, FOLDER names others"
        )
        return
    rows = [_row(model) for model in found]
    print_table(["model", "from", "kind", "architecture", "size", "modified", "runs"], rows)


@app.command()
@command_options()
def pull(*, model: _HubArgument, settings: Settings) -> None:
    """Fetch a model of the hub into its cache.

    Files that are there already are not fetched again.
    """
    path = download(_hub_model(model))
    size, kind = _size(path), find_model(path).model_type
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
    # A program that waits for JSON cannot answer a question, and a piped standard input must not be
    # taken for consent.
    if as_json or not is_terminal(sys.stdin):
        raise UsageError(f"removing {what} needs a yes", hint="add --yes")
    # Not by `input`: that would write the question to standard output, into a redirected file.
    sys.stderr.write(printable(f"remove {what}? [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _hub_model(name: str) -> HubModel:
    model = HubModel.parse(str(model_path(name)))
    if model is None:
        raise UsageError(
            f"{quoted(name)} is not a name on the Hugging Face hub",
            hint=f"{short_name_like(name)}names are ORG/NAME, ORG/NAME@REVISION or"
            " ORG/NAME:QUANTIZATION, or those that `gptrs models recommended` lists",
        )
    return model


def _path(name: str) -> Path:
    """Return the path of a model; ModelError if it is not on this disk."""
    found = Path(model_path(name))
    wanted = HubModel.parse(str(found))
    if found.exists() or wanted is None:
        return find_model(found).path.absolute()
    revisions: list[CachedRevision] = cached(wanted)
    # A name without a revision means that of the default branch, if the cache has it.
    newest = [each for each in revisions if each.name == wanted.repository]
    return (newest or revisions)[0].path


def _row(model: DiskModel) -> list[str]:
    runs = "yes" if model.problem is None else f"no: {model.problem}"
    kind, head = model.kind or "", model.architecture or ""
    age = "" if model.modified is None else shown_age(datetime.fromisoformat(model.modified))
    return [model.name, model.source, kind, head, byte_size(model.nbytes), age, runs]


def shown_age(moment: datetime, now: datetime | None = None) -> str:
    """Return how long ago a moment is, in its largest whole unit: `3 days ago`."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "just now"
