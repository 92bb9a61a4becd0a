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
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Self, cast

from msgspec import Struct

from gptrs.errors import GptrsError, MissingLibraryError, ModelError
from gptrs.install_hints import install_extra
from gptrs.quoting import clipped, quoted
from gptrs_runtime.sources import gguf_choice
from gptrs_runtime.sources.hf_directory import INDEX, WEIGHTS, shards_of
from gptrs_runtime.sources.model_folder import (
    MODEL_CONFIG,
    MODULES,
    TRANSFORMER_CONFIG,
    module_folders,
)
from gptrs_runtime.sources.model_source import CONFIG, GENERATION_CONFIG, TOKENIZER
from gptrs_runtime.sources.quantization_config import MODELOPT_CONFIG

SETTINGS = (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    MODELOPT_CONFIG,
    MODULES,
    TRANSFORMER_CONFIG,
    MODEL_CONFIG,
)
"""Files that are fetched besides the weights and the folders of modules."""
_NAME = r"[A-Za-z0-9_][\w.-]*"
_ID = re.compile(
    rf"(?:(?:https?:/{{1,2}})?(?:hf\.co|huggingface\.co)/)?({_NAME}/{_NAME})(?:@([\w.][\w./-]*))?"
    r"(?::([\w.+-]+))?",
    re.ASCII,
)
_LONGEST_REASON = 300
_NO_NEWS = ("No files matched", "Ignored error while", "Ignoring corrupted tree cache")
"""Warnings of the library: repositories of GGUF files lack settings, and a cache that cannot be
written is an error soon after, or harmless."""
_LOG = logging.getLogger("gptrs")
_ASKED: ContextVar[dict[HubModel, Path] | None] = ContextVar("_ASKED", default=None)


class HubModel(Struct, frozen=True):
    """A repository of the hub, and a branch, tag or commit; None: the newest state.

    `quantization` names one of its GGUF files; None: safetensors, else the preferred GGUF file.
    """

    repository: str
    revision: str | None = None
    quantization: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the model of `ORG/NAME[@REVISION][:QUANTIZATION]`, None for any other text.

        `hf.co/` before it, as other tools write it, is allowed.
        """
        found = _ID.fullmatch(text)
        is_file = text.endswith((".gptrschk", ".gguf")) and ":" not in text
        # `a/../b` would be a repository name to the pattern, and a path to the cache.
        if found is None or ".." in text or is_file:
            return None
        return cls(found[1], found[2], found[3])

    @property
    def name(self) -> str:
        """The name without the revision."""
        return self.repository + (f":{self.quantization}" if self.quantization else "")

    def __str__(self) -> str:
        at = "" if self.revision is None else f"@{self.revision}"
        return self.repository + at + (f":{self.quantization}" if self.quantization else "")


def download(model: HubModel) -> Path:
    """Fetch the files of a model that gptrs reads; return its folder or GGUF file in the cache.

    Weights are `model.safetensors`, else the shards that its index names, and settings and weights
    in the folders of `modules.json`. A repository without them, or a model with a quantization,
    means a GGUF file, or the parts of one. What was fetched in part is continued. ModelError gives
    the reason for a failure: there is no such model, revision or quantization, access is denied,
    or there is neither a connection nor a copy. MissingLibraryError if the library is not
    installed.
    """
    asked = _ASKED.get()
    if asked is None:
        return _downloaded(model)
    if model not in asked:
        asked[model] = _downloaded(model)
    return asked[model]


@contextmanager
def asked_once() -> Generator[None]:
    """Scope in which the hub is asked for each model once, however often it is opened."""
    token = _ASKED.set({})
    try:
        yield
    finally:
        _ASKED.reset(token)


def _downloaded(model: HubModel) -> Path:
    library = _library(model)
    _say_who_is_asked(library, model)
    with _problems(library, model), _quiet_unless_seen(library):
        fetch = cast("Callable[..., str]", library.snapshot_download)

        def fetched(names: Sequence[str], revision: str | None) -> Path:
            # Names of files of a repository may contain `[`, which would be a pattern to the
            # library.
            patterns = [glob.escape(name) for name in names]
            return Path(fetch(model.repository, revision=revision, allow_patterns=patterns))

        if model.quantization is None:
            folder = fetched([*SETTINGS, WEIGHTS, INDEX], model.revision)
            named = _named_files(folder) if folder.is_dir() else []
            if named:  # of the same commit: the branch may have moved meanwhile
                folder = fetched([*SETTINGS, WEIGHTS, INDEX, *named], folder.name)
            if named or (folder / WEIGHTS).exists():
                return folder
        else:
            folder = fetched([CONFIG], model.revision)
        found = gguf_choice.variants(_gguf_files(library, model, folder))
        if not found and model.quantization is None and folder.is_dir():
            return folder  # opening it says what is missing
        file = _chosen(model, found)
        return fetched(file.parts, folder.name) / file.parts[0]


def _chosen(model: HubModel, found: Sequence[gguf_choice.GgufVariant]) -> gguf_choice.GgufVariant:
    """Return the file that the name of a model means, and say which one if it is not named."""
    if not found and model.quantization is None:
        raise ModelError(
            f"{quoted(model.repository)} on the Hugging Face hub has no files of a model",
            hint="gptrs reads safetensors with a config.json, and GGUF",
        )
    if not found:
        raise ModelError(
            f"{quoted(model.repository)} has no GGUF files, and {quoted(str(model.quantization))}"
            " names the quantization of one",
            hint=f"name it `{model.repository}`; `--weights q4` quantizes it when it is loaded",
        )
    file = gguf_choice.chosen(found, model.quantization, quoted(str(model.repository)))
    if model.quantization is None and len(found) > 1:
        size = gguf_choice.shown_size(file.nbytes)
        _LOG.info("taking %s (%s) of `%s`", file.tag, size, model)
    return file


def _gguf_files(library: ModuleType, model: HubModel, folder: Path) -> Mapping[str, int]:
    """Return the GGUF files of the commit of `folder` with their sizes; offline, those in it."""
    try:
        info = library.HfApi().model_info(
            model.repository, revision=folder.name, files_metadata=True
        )
    except Exception as problem:  # the folder is known, so without an answer use the files there
        _LOG.debug("the files of `%s` are not known: %s", model, problem)
        return gguf_choice.files_below(folder)
    files = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    return {name: size for name, size in files.items() if name.endswith(".gguf")}


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
    # First, since it derives from the error of a missing repository.
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
    of_file = isinstance(problem, OSError) and problem.filename is not None
    return ModelError(
        f"cannot get {shown} from the Hugging Face hub: {why}",
        hint="models are kept in HF_HOME, which must be a folder to write to" if of_file else None,
    )


@contextmanager
def _quiet_unless_seen(library: ModuleType) -> Generator[None]:
    """Scope in which the library draws progress bars on a terminal only.

    Nor does it give the warnings of `_NO_NEWS`.
    """
    bars = importlib.import_module(f"{library.__name__}.utils")
    hide = not sys.stderr.isatty() and not bars.are_progress_bars_disabled()
    # A filter of a logger does not see records of the loggers below it, those of handlers do.
    handlers = list(bars.logging.get_logger(library.__name__).handlers)
    # Lines of a progress bar, redrawn many times a second, would fill log files.
    if hide:
        bars.disable_progress_bars()
    for handler in handlers:
        handler.addFilter(_is_news)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_news)
        if hide:
            bars.enable_progress_bars()


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_NO_NEWS)
