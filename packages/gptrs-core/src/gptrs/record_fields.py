"""Fields of records, and copies with others: Structs of msgspec, and dataclasses of users."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from typing import Any, Final, cast

from msgspec import Struct, StructMeta
from msgspec.structs import force_setattr

_BLANKS: Final[dict[type[object], Struct]] = {}
"""An instance of each Struct whose fields were read, but empty: none can be made without its
checks."""


def field_names(kind: type[object]) -> tuple[str, ...] | None:
    """Return the names of the fields of a Struct or a dataclass, None for other types."""
    if isinstance(kind, StructMeta):
        return kind.__struct_fields__
    # Whoever has made a dataclass has imported the module; no start should have to.
    dataclasses = sys.modules.get("dataclasses")
    if dataclasses is None or not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(cast("Any", kind)))


def taken_apart(value: object) -> None:
    """Note that the fields of a record were read, so that `with_fields` can make others like it."""
    kind = type(value)
    if isinstance(value, Struct) and kind not in _BLANKS:
        blank = copy.copy(value)
        for name in value.__struct_fields__:
            force_setattr(blank, name, None)
        _BLANKS[kind] = blank


def with_fields(kind: type[object], fields: Iterable[tuple[str, object]]) -> object:
    """Return an instance of `kind` with these fields, as `copy.copy` does, without `__init__`.

    So a frozen record needs no special care, and no check in it sees a placeholder. A Struct must
    have been `taken_apart` before.
    """
    blank = _BLANKS.get(kind)
    if blank is not None:
        made = copy.copy(blank)
        known = frozenset(blank.__struct_fields__)
        for name, value in fields:
            if name in known:
                force_setattr(made, name, value)
            else:  # an attribute that somebody gave it
                object.__setattr__(made, name, value)
        return made
    plain = object.__new__(kind)
    for name, value in fields:
        object.__setattr__(plain, name, value)
    return plain
