"""Whether a word on the command line names a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gptrs.errors import UsageError
from gptrs.plugins.exporters import importer_of
from gptrs.quoting import quoted
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.sources.find_model import find_model, is_checkpoint
from gptrs_runtime.sources.hub import HubModel
from gptrs_runtime.sources.recommended import short_name_like

_PROGRAMS: Final = (".ptir", ".json")


def is_model(path: Path) -> bool:
    """Return whether `path` names a model that loads, not a program or a file for an importer.

    What exists is judged by its content; other names are bundled models or ids of the hub.
    """
    found = Path(model_path(path))
    if os.path.lexists(found):
        return found.is_dir() or is_checkpoint(found)
    return not _is_file_name(found) and HubModel.parse(str(found)) is not None


def require_named(path: Path) -> None:
    """Raise ModelError, as a load would, for a name that neither exists nor is one of a program."""
    if not (os.path.lexists(path) or _is_file_name(path)):
        find_model(model_path(path))


def require_first(word: str, others: Sequence[str], command: str) -> None:
    """Raise UsageError for the first of too many arguments, which should name a model.

    `others` are those too many. `command` itself refuses `word` if it is one of them and not
    almost the name of a model.
    """
    guess = short_name_like(word).rstrip()
    if guess or word not in others:
        raise UsageError(
            f"{quoted(word)}, the first argument, names no model",
            hint=guess or f"put a text of several words into quotes, see `{command} --help`",
        )


def _is_file_name(path: Path) -> bool:
    return path.suffix.lower() in _PROGRAMS or importer_of(path) is not None
