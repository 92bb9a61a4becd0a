"""`gptrs models`: the models on this disk, and those of the hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gptrs.errors import UsageError
from gptrs.quoting import counted, quoted
from gptrs_cli.inspect.checkpoint import byte_size
from gptrs_cli.models.disk_models import DiskModel, disk_models
from gptrs_cli.models.hub_cache import CachedRevision, cached, freed_bytes, remove
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import Settings
from gptrs_cli.plain_commands import Application
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.stderr import is_terminal, note, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.bundled_models import model_path
from gptrs_runtime.results import Result
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.hub import HubModel, download

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
    """`gptrs models remove`: the commits that went, and the bytes that are free now."""

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

    What is there already is not fetched again.
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
    """Print where a model lies on this disk; nothing is fetched."""
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

    All its revisions go, or the one that is named.
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
    """Ask on a terminal; UsageError where nobody can answer."""
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
            hint="it is ORG/NAME, perhaps with @REVISION; files of your own are yours to remove",
        )
    return model


def _path(name: str) -> Path:
    """Return where a model lies; ModelError where it is not on this disk."""
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
