"""Whether a word on the command line names a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gptrs.plugins.exporters import importer_of
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.sources.find_model import is_checkpoint
from gptrs_runtime.sources.hub import HubModel

_PROGRAMS: Final = (".ptir", ".json")


def is_model(path: Path) -> bool:
    """Return whether `path` names a model that loads, not a program or a file for an importer.

    What exists is judged by its content; other names are bundled models or ids of the hub.
    """
    found = Path(model_path(path))
    if os.path.lexists(found):
        return found.is_dir() or is_checkpoint(found)
    if found.suffix.lower() in _PROGRAMS or importer_of(found) is not None:
        return False
    return HubModel.parse(str(found)) is not None
