"""Names of the fields of records: Structs of msgspec, and dataclasses of users."""

from __future__ import annotations

import sys
from typing import Any, cast

from msgspec import StructMeta


def field_names(kind: type[object]) -> tuple[str, ...] | None:
    """Return the names of the fields of a Struct or a dataclass, None for other types."""
    if isinstance(kind, StructMeta):
        return kind.__struct_fields__
    # Whoever has made a dataclass has imported the module; no start should have to.
    dataclasses = sys.modules.get("dataclasses")
    if dataclasses is None or not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(cast("Any", kind)))
