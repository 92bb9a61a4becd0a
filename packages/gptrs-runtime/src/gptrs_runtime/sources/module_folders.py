"""The subfolders of the modules that sentence-transformers lists in `modules.json`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, cast

from gptrs.checkpoint.files.open_file import is_plain, read_whole
from gptrs.errors import ModelError
from gptrs.strict_json import parse_list
from gptrs_runtime.sources.model_folder import ModelFolder
from gptrs_runtime.sources.model_source import MAX_SETTINGS_BYTES, ModelSource
from gptrs_runtime.sources.sentence_transformers import MODULES

_PACKAGE: Final = "sentence_transformers."
MOST_MODULES: Final = 16
"""A list of more modules is refused."""


def module_folders(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the folders directly inside `path` that its `modules.json` names, each once.

    Not that of a transformer, whose files are in the folder itself. Names that could lead elsewhere
    are left out, and of a malformed list, or one of too many modules, all: a model can be of use
    without its modules, and who needs them is told by `embedding_recipe` what is wrong.
    """
    try:
        found = ModelFolder(path).find(MODULES)
        entries = parse_list(read_whole(found, MAX_SETTINGS_BYTES), MODULES) if found else []
    except ModelError:
        return ()
    if len(entries) > MOST_MODULES:
        return ()
    folders = (_folder(entry) for entry in entries)
    return tuple(dict.fromkeys(folder for folder in folders if is_plain(folder)))


def ends_in_logits(source: ModelSource) -> bool:
    """Return whether the last module of a model scores texts by logits: `LogitScore`.

    Not for a malformed list: who needs the modules is told what is wrong.
    """
    try:
        last = (source.read_json_list(MODULES) or [None])[-1]
    except ModelError:
        return False
    kind = cast("Mapping[str, object]", last).get("type") if isinstance(last, Mapping) else None
    return isinstance(kind, str) and kind.startswith(_PACKAGE) and kind.endswith(".LogitScore")


def _folder(entry: object) -> str:
    if not isinstance(entry, Mapping):
        return ""
    settings = cast("Mapping[str, object]", entry)
    kind, folder = settings.get("type"), settings.get("path")
    if not isinstance(kind, str) or not isinstance(folder, str):
        return ""
    return "" if kind.rpartition(".")[2] == "Transformer" else folder
