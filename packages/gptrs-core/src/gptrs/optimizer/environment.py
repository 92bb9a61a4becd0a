"""Environment variables that every call reads, since they may change between calls."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast


class Variables:
    """Some variables by name, read like `os.environ.get` in a tenth of the time."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._keys = [os.environ.encodekey(name) for name in names]
        self._unset = (None,) * len(names)

    def values(self) -> tuple[str | None, ...]:
        """Return their values now, None for those that are not set."""
        environ = os.environ
        # The mapping that it wraps; to ask `environ` for what is not set raises an exception.
        wrapped = cast("Mapping[str, str] | None", getattr(environ, "_data", None))
        if wrapped is None:
            return tuple([environ.get(name) for name in self._names])
        found = tuple(map(wrapped.get, self._keys))
        if found == self._unset:
            return found
        return tuple([None if value is None else environ.decodevalue(value) for value in found])
