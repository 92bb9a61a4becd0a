"""Models that plugins bring along, by name: `demo` where gptrs-models is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from gptrs.errors import UsageError
from gptrs.plugins.descriptions import DemoModelPlugin
from gptrs.plugins.manager import manager
from gptrs.quoting import shown_value


def model_path(name: str | os.PathLike[str] | None) -> Path | str:
    """Return where the model that a user names lies, a name of the hub as it is.

    What lies at that path comes first, then the bundled model of that name. None means the first
    bundled model by name. PluginError where that is broken, or there is none for None; UsageError
    for an empty name, which as a path is the current folder, and for what is no path.
    """
    if name is None:
        return manager().demo_model_path()
    if not isinstance(cast("object", name), str | os.PathLike):
        raise UsageError(f"a model is named by a text or a path, got {shown_value(name)}")
    given = os.fspath(name)
    if not given:
        raise UsageError("the name of a model is empty", hint="`.` is the current folder")
    if os.path.lexists(given) or os.path.basename(given) != given:
        return given
    bundled = [record.name for record in manager().records(DemoModelPlugin)]
    return manager().demo_model_path(given) if given in bundled else given
