"""Names of Python objects as text, `module` or `module:attribute`, imported when needed."""

from __future__ import annotations

import importlib
from functools import reduce


def load_reference(reference: str) -> object:
    """The module, or the attribute (dots reach inside) of it, that `reference` names.

    Raises what the import raises, AttributeError when the module lacks the attribute.
    """
    module, _, attribute = reference.partition(":")
    loaded: object = importlib.import_module(module)
    return reduce(getattr, attribute.split("."), loaded) if attribute else loaded


def one_line(error: BaseException) -> str:
    """Type and message of `error` on one line of bounded length, whatever its `__str__` does."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "(its message cannot be shown)"
    name = type(error).__name__
    shown = message if len(message) <= 300 else f"{message[:297]}..."
    return f"{name}: {shown}" if shown else name
