"""The user's selection of plugins, by the command line and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from functools import cache

from msgspec import Struct

OWN = frozenset(
    f"gptrs-{name}"
    for name in (
        *("core", "runtime", "observe", "cli", "models", "conformance", "new", "serve", "onnx"),
        *("ray", "torch", "train", "backend-ref", "backend-numba", "backend-jax"),
    )
)
"""The distributions of gptrs itself; no other one can take the names of their plugins."""


@cache
def canonical(distribution: str) -> str:
    """Normalize the name of a distribution: lower case, `-` for `_` and `.` (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def is_own(distribution: str | None) -> bool:
    """Return whether the distribution is part of gptrs itself."""
    return canonical(distribution or "") in OWN


class Selection(Struct, frozen=True):
    """Plugins by NAME, `KIND:NAME`, `DISTRIBUTION:NAME` or distribution: excluded, or allowed.

    `strict` turns every broken, incompatible or duplicate plugin into an error.
    """

    disabled: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None
    strict: bool = False

    @classmethod
    def from_environment(cls, disabled: Iterable[str] = ()) -> Selection:
        """Return the selection of the environment, with `disabled` (command line) excluded, too.

        `GPTRS_DISABLE_PLUGINS` and `GPTRS_PLUGINS` are comma-separated lists; the latter allows
        nothing else. `GPTRS_PLUGIN_STRICT=1` is strict. Empty values count as unset.
        """
        allowed = _comma_list("GPTRS_PLUGINS")
        return cls(
            disabled=frozenset(disabled) | _comma_list("GPTRS_DISABLE_PLUGINS"),
            allowed=allowed or None,
            strict=os.environ.get("GPTRS_PLUGIN_STRICT", "") not in ("", "0"),
        )

    def exclusion(self, names: Collection[str]) -> tuple[str, str] | None:
        """Return reason and hint if the plugin known by `names` is excluded; None if it is not."""
        for name in names:
            if name in self.disabled:
                return (
                    f"disabled as `{name}`",
                    f"leave out `-p no:{name}`, or `{name}` from `GPTRS_DISABLE_PLUGINS`",
                )
        if self.allowed is not None and not self.allowed.intersection(names):
            return "not in the list `GPTRS_PLUGINS`", "add it to `GPTRS_PLUGINS`, or unset that"
        return None

    def unmatched(self, known: Collection[str]) -> list[str]:
        """Return the selected names that no installed plugin has, in order."""
        return sorted((self.disabled | (self.allowed or frozenset())).difference(known))


def _comma_list(variable: str) -> frozenset[str]:
    parts = os.environ.get(variable, "").split(",")
    return frozenset(part.strip() for part in parts if part.strip())
