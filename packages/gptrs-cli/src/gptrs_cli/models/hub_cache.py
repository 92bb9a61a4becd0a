"""The models in the cache of the Hugging Face hub on this disk, through its own library."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

from gptrs.errors import GptrsError, MissingLibraryError, ModelError
from gptrs.install_hints import install_extra
from gptrs.quoting import did_you_mean, quoted
from gptrs_runtime.sources.gguf_choice import chosen, files_below, variants
from gptrs_runtime.sources.hub import HubModel


class CacheError(GptrsError):
    """The cache of the hub cannot be changed."""

    exit_code = 3
    code = "file"


class CachedRevision(Struct, frozen=True):
    """A commit of a model in the cache: the name that `--model` takes, its files and their bytes.

    `model` is the name of the whole repository. A GGUF file of a commit is a model of its own:
    `tag` is its quantization and `path` its first part. `folder` has all files of the commit;
    `modified` is a time in seconds.
    """

    name: str
    model: str
    commit: str
    refs: tuple[str, ...]
    folder: Path
    path: Path
    nbytes: int
    modified: float
    tag: str | None = None


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
    """Return the commits of a model, or of the revision or the GGUF file that it names.

    Raises ModelError if the cache has none.
    """
    revisions = cached_revisions()
    wanted = model.revision
    found = [
        each
        for each in revisions
        if each.model == model.repository
        and (wanted is None or wanted in each.refs or each.commit.startswith(wanted))
        and (model.quantization is None or _is_tagged(each, model.quantization))
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


def _is_tagged(revision: CachedRevision, tag: str) -> bool:
    try:
        return chosen(variants(files_below(revision.folder)), tag, "").tag == revision.tag
    except ModelError:
        return False


def freed_bytes(revisions: Iterable[CachedRevision]) -> int:
    """Return the bytes that removing these frees; files shared with other commits stay."""
    whole, files = _removal(revisions)
    return int(whole.expected_freed_size) + sum(blob.stat().st_size for blob in _unshared(files))


def remove(revisions: Iterable[CachedRevision]) -> None:
    """Remove commits, or GGUF files of them, from the cache.

    CacheError if a file could not be removed.
    """
    revisions = list(revisions)
    whole, files = _removal(revisions)
    try:
        blobs = _unshared(files)
        # Links before blobs: interrupted here, a blob without links wastes space, a link without a
        # blob is a broken model.
        for path in (*files, *blobs):
            path.unlink()
        whole.execute()
    except OSError as error:
        raise CacheError(f"cannot remove all: {error.strerror or error}") from error
    left = [each.path for each in revisions if each.path.exists()]
    if left:
        raise CacheError(
            f"{quoted(str(left[0]), 200)} could not be removed", hint="who may write there?"
        )


def _removal(revisions: Iterable[CachedRevision]) -> tuple[Any, list[Path]]:
    """Return the strategy that removes whole commits, and the links of files of other commits."""
    given = {(each.commit, each.tag): each for each in revisions}
    staying = {each.commit for each in cached_revisions() if (each.commit, each.tag) not in given}
    whole = {each.commit for each in given.values()} - staying
    files = [part for each in given.values() if each.commit in staying for part in _parts(each)]
    return _cache().delete_revisions(*whole), files


def _parts(revision: CachedRevision) -> list[Path]:
    found = variants(files_below(revision.folder))
    parts = [part for each in found if each.tag == revision.tag for part in each.parts]
    return [revision.folder / part for part in parts]


def _unshared(links: list[Path]) -> list[Path]:
    """Return the blobs that only these links, in the snapshots of a repository, lead to."""
    blobs = {link.resolve() for link in links} - set(links)
    others: set[Path] = set()
    for repository in {blob.parents[1] for blob in blobs}:
        every = (path for path in (repository / "snapshots").rglob("*") if path.is_symlink())
        # The hub stores each blob once, and commits link to it: removing one that another commit
        # uses would break that model silently.
        others |= {path.resolve() for path in every if path not in links}
    return sorted(blobs - others)


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
        folder = Path(revision.snapshot_path)
        found = variants(files_below(folder))
        about = repository.repo_id, revision.commit_hash, refs, folder
        for each in found:
            path = folder / each.parts[0]
            yield CachedRevision(
                f"{name}:{each.tag}", *about, path, each.nbytes, path.stat().st_mtime, each.tag
            )
        if not found or any(folder.glob("*.safetensors")):
            size = int(revision.size_on_disk) - sum(each.nbytes for each in found)
            yield CachedRevision(name, *about, folder, size, float(revision.last_modified))
