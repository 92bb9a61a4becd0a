"""The strings in descriptions, resolved: objects of modules, folders of packages."""

from __future__ import annotations

import importlib
import importlib.resources
from collections.abc import Callable
from functools import reduce
from pathlib import Path

from gptrs.errors import PluginError


def load_reference(reference: str) -> object:
    """Import what `module` or `module:attribute` names; dots reach inside the attribute.

    Raises what the import raises, AttributeError when the module lacks the attribute.
    """
    module, _, attribute = reference.partition(":")
    loaded: object = importlib.import_module(module)
    return reduce(getattr, attribute.split("."), loaded) if attribute else loaded


def require_callable(found: object, reference: str) -> Callable[..., object]:
    """Return what `reference` names; PluginError unless it is callable."""
    if not callable(found):
        kind = type(found).__name__
        raise PluginError(f"`{reference}` must be callable, it is a `{kind}`")
    return found


def resource_directory(reference: str) -> Path:
    """Return the folder that "package:relative/dir" names; PluginError if it is none."""
    package, _, folder = reference.partition(":")
    found = importlib.resources.files(package).joinpath(folder)
    if not isinstance(found, Path) or not found.is_dir():
        raise PluginError(f"`{reference}` is not a directory of an installed package")
    return found
