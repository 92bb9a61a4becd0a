"""Checks of the types of options: a wrong one is told by its name, not where it is first used."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeGuard, cast

import numpy as np

from gptrs.errors import UsageError
from gptrs.quoting import shown_value

Kind = tuple[str, Callable[[object], bool]]
"""The values of an option in words, and a check that tells them from others."""


def _is_list(value: object, is_entry: Callable[[object], bool]) -> bool:
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_sequence and all(map(is_entry, cast("Sequence[object]", value)))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number of Python or NumPy; a bool is none."""
    return isinstance(value, float | np.floating) or _is_integer(value)


INTEGER: Final[Kind] = ("an integer", _is_integer)
NUMBER: Final[Kind] = ("a number", is_number)
FLAG: Final[Kind] = ("True or False", lambda value: isinstance(value, bool | np.bool_))
TEXT: Final[Kind] = ("a text", _is_text)
SIZE: Final[Kind] = ("bytes or a text such as 2GB", lambda v: _is_text(v) or _is_integer(v))
PATH: Final[Kind] = ("a path", lambda value: isinstance(value, str | os.PathLike))
TEXTS: Final[Kind] = ("a list of texts", lambda value: _is_list(value, _is_text))
FUNCTIONS: Final[Kind] = ("a list of functions", lambda value: _is_list(value, callable))


def having(method: str, what: str) -> Kind:
    """Return the kind of objects that have a `method`, called `what`."""
    return what, lambda value: callable(getattr(value, method, None))


def require_types(options: object, kinds: Mapping[str, Kind]) -> None:
    """UsageError unless each attribute of `options` that `kinds` names is of its kind.

    None is allowed where the class has it as the default.
    """
    for name, (what, is_one) in kinds.items():
        value = cast("object", getattr(options, name))
        if is_one(value) or (value is None and getattr(type(options), name) is None):
            continue
        listed = what.startswith("a list of") and isinstance(value, str)
        raise UsageError(
            f"`{name}` must be {what}, got {shown_value(value)}",
            hint=f"`{name}=[{value!r:.100}]` has one" if listed else None,
        )
