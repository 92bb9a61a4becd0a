"""Models of the Hugging Face hub, fetched by the library `huggingface_hub` into its own cache.

The library decides where the cache is, when a server is asked, and who may read what: `HF_HOME`,
`HF_HUB_OFFLINE`, `HF_ENDPOINT`, `HF_TOKEN`.
"""

from __future__ import annotations

import glob
import importlib
import logging
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Self, cast

from gptrs.errors import GptrsError, MissingLibraryError, ModelError
from gptrs.install_hints import install_extra
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import clipped, quoted
from gptrs_runtime.sources.hf_directory import INDEX, WEIGHTS, shards_of
from gptrs_runtime.sources.model_folder import (
    MODEL_CONFIG,
    MODULES,
    TRANSFORMER_CONFIG,
    module_folders,
)
from gptrs_runtime.sources.model_source import CONFIG, GENERATION_CONFIG, TOKENIZER

SETTINGS = (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    MODULES,
    TRANSFORMER_CONFIG,
    MODEL_CONFIG,
)
"""Files that are fetched besides the weights and the folders of modules."""
_NAME = r"[A-Za-z0-9_][\w.-]*"
_ID = re.compile(rf"({_NAME}/{_NAME})(?:@([\w.][\w./-]*))?", re.ASCII)
_LONGEST_REASON = 300
_LOG = logging.getLogger("gptrs")


@dataclass(frozen=True)
class HubModel:
    """A repository of the hub, and a branch, tag or commit; None: the newest state."""

    repository: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the model of `ORG/NAME` or `ORG/NAME@REVISION`, None for any other text."""
        found = _ID.fullmatch(text)
        if found is None or ".." in text or text.endswith(".gptrschk"):
            return None
        return cls(found[1], found[2])

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def download(model: HubModel) -> Path:
    """Fetch the files of a model that gptrs reads; return their folder in the library's cache.

    Weights are fetched in safetensors format only: `model.safetensors`, else the shards that its
    index names, and settings and weights in the folders of `modules.json`. ModelError gives the
    reason for a failure: there is no such model or revision, access is denied, or there is neither
    a connection nor a copy. MissingLibraryError if the library is not installed.
    """
    library = _library(model)
    _say_who_is_asked(library, model)
    with _problems(library, model), _quiet_unless_seen(library):
        fetch = cast("Callable[..., str]", library.snapshot_download)

        def fetched(names: Sequence[str], revision: str | None) -> Path:
            patterns = [glob.escape(name) for name in names]
            return Path(fetch(model.repository, revision=revision, allow_patterns=patterns))

        folder = fetched([*SETTINGS, WEIGHTS, INDEX], model.revision)
        named = _named_files(folder)
        if named:  # of the same commit: the branch may have moved meanwhile
            folder = fetched([*SETTINGS, WEIGHTS, INDEX, *named], folder.name)
    return folder


def _named_files(folder: Path) -> list[str]:
    """Return the shards and the files of modules that the files in `folder` name."""
    shards = () if (folder / WEIGHTS).exists() else shards_of(folder)
    modules = [f"{name}/{file}" for name in module_folders(folder) for file in (CONFIG, WEIGHTS)]
    return [*shards, *modules]


def _say_who_is_asked(library: ModuleType, model: HubModel) -> None:
    constants = importlib.import_module(f"{library.__name__}.constants")
    if not constants.HF_HUB_OFFLINE:
        _LOG.info("asking %s for the model `%s`", constants.ENDPOINT, model)


def _library(model: HubModel) -> ModuleType:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as problem:
        raise MissingLibraryError(
            f"{quoted(str(model))} does not exist here, and to get it from the Hugging Face hub"
            " the library `huggingface_hub` is needed",
            hint=f"{install_extra('gptrs-runtime', 'hub')}, or name a model folder or file",
        ) from problem


@contextmanager
def _problems(library: ModuleType, model: HubModel) -> Generator[None]:
    """Scope that turns errors of the library and its HTTP client into ModelError."""
    try:
        yield
    except GptrsError:
        raise
    except Exception as problem:
        errors = importlib.import_module(f"{library.__name__}.errors")
        raise _explained(errors, model, problem) from problem


def _explained(errors: ModuleType, model: HubModel, problem: Exception) -> ModelError:
    shown = quoted(str(model))
    if isinstance(problem, errors.GatedRepoError):
        return ModelError(
            f"{shown} may be read only by those to whom its authors gave access",
            hint="ask for access on its page, then log in with `hf auth login` or set HF_TOKEN",
        )
    if isinstance(problem, errors.RepositoryNotFoundError):
        return ModelError(
            f"{shown} does not exist, neither here nor, for all to read, on the Hugging Face hub",
            hint="check the name; for a private model log in with `hf auth login` or set HF_TOKEN",
        )
    if isinstance(problem, errors.RevisionNotFoundError):
        missing = quoted(str(model.revision))
        return ModelError(
            f"{quoted(model.repository)} on the Hugging Face hub has no revision {missing}",
            hint="name a branch, a tag or a whole commit after the `@`",
        )
    if isinstance(problem, errors.LocalEntryNotFoundError):
        return ModelError(
            f"{shown} does not exist here, is not whole in the cache of the Hugging Face hub, and"
            " the hub cannot be asked",
            hint="check the connection and HF_HUB_OFFLINE, or name a model folder or file",
        )
    reason = " ".join(str(problem).split()) or type(problem).__name__
    why = clipped(reason, _LONGEST_REASON)
    return ModelError(f"cannot get {shown} from the Hugging Face hub: {why}")


@contextmanager
def _quiet_unless_seen(library: ModuleType) -> Generator[None]:
    """Scope in which the library draws progress bars on a terminal only."""
    bars = importlib.import_module(f"{library.__name__}.utils")
    hide = not sys.stderr.isatty() and not bars.are_progress_bars_disabled()
    if hide:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            bars.enable_progress_bars()
