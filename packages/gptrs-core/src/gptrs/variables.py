"""The environment variables of gptrs, and a fast way to read them in every call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

VARIABLES: Final = frozenset(
    (
        *("GPTRS_BACKEND", "GPTRS_NUM_THREADS", "GPTRS_EAGER", "GPTRS_OVERRIDES"),
        *("GPTRS_TRACE_SINKS", "GPTRS_CHECK_RESULTS", "GPTRS_CACHE_DIR", "GPTRS_CACHE_BYTES"),
        *("GPTRS_PROGRAM_CACHE_BYTES", "GPTRS_WEIGHT_CACHE_BYTES", "GPTRS_WEIGHT_BUDGET"),
        *("GPTRS_CHAT_HISTORY", "GPTRS_PLUGINS"),
        *("GPTRS_DISABLE_PLUGINS", "GPTRS_PLUGIN_STRICT", "GPTRS_OPT_PRE_ITERS"),
        *("GPTRS_OPT_POST_ITERS", "GPTRS_PASS_STATS", "GPTRS_SERVE_API_KEY"),
    )
)
"""All variables except generation options and plugin variables, which start with the plugin's name;
`doctor` warns of misspelled ones."""


class Variables:
    """A few variables by name, read like `os.environ.get` in a tenth of the time."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._keys = [os.environ.encodekey(name) for name in names]
        self._unset = (None,) * len(names)

    def values(self) -> tuple[str | None, ...]:
        """Return their current values, None where unset."""
        environ = os.environ
        # The dict inside `environ`: a lookup of an unset variable in `environ` itself raises and
        # catches a KeyError, which is slow.
        wrapped: Mapping[str, str] | None = getattr(environ, "_data", None)  # no `cast`: it is slow
        if wrapped is None:
            return tuple([environ.get(name) for name in self._names])
        if wrapped.keys().isdisjoint(self._keys):
            return self._unset
        found = map(wrapped.get, self._keys)
        return tuple([None if value is None else environ.decodevalue(value) for value in found])
