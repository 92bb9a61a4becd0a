"""The cache of the Hugging Face hub on this disk, as its own library sees it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from gptrs.errors import GptrsError, MissingLibraryError, ModelError
from gptrs.install_hints import install_extra
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import did_you_mean, quoted
from gptrs_runtime.sources.hub import HubModel


class CacheError(GptrsError):
    """The cache of the hub cannot be changed."""

    code = "file"


@dataclass(frozen=True)
class CachedRevision:
    """A commit of a model in the cache: the name that `--model` takes, its files and their bytes.

    `model` is that of the whole repository.
    """

    name: str
    model: str
    commit: str
    refs: tuple[str, ...]
    path: Path
    nbytes: int


def hub_library() -> ModuleType:
    """Return the library; MissingLibraryError where it is not installed."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as problem:
        raise MissingLibraryError(
            "the cache of the Hugging Face hub needs the library `huggingface_hub`",
            hint=install_extra("gptrs-runtime", "hub"),
        ) from problem


def cached_revisions() -> list[CachedRevision]:
    """Return every commit of every model in the cache, by name; none without a cache."""
    repositories = _repositories()
    found = [each for repository in repositories for each in _revisions(repository)]
    return sorted(found, key=lambda each: each.name)


def cached(model: HubModel) -> list[CachedRevision]:
    """Return the commits of a model, of one revision where it names one.

    ModelError where the cache has none.
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
    """Return what removing these frees; files that other commits share stay."""
    return int(_strategy(revisions).expected_freed_size)


def remove(revisions: Iterable[CachedRevision]) -> None:
    """Remove commits from the cache; CacheError where a file of them stays."""
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
    """Yield the commits; the newest state has the plain name, others one with `@`."""
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
