"""Typed reading of a model's config.json: every error names the setting, the value and the need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

from gptrs.errors import ModelError


class ConfigFields:
    """The settings of one model; `kind` names it in errors."""

    def __init__(self, settings: Mapping[str, object], kind: str) -> None:
        self._settings = settings
        self._kind = kind

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """An integer >= `minimum`; ModelError if it is not, or missing without a default."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._error(name, f"must be an integer >= {minimum}", value)
        return value

    def integers(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """A list of integers >= 1, of which there is at least one."""
        value = self._get(name, default)
        if isinstance(value, list | tuple):
            entries = cast("Sequence[object]", value)
            if entries and all(_is_count(entry) for entry in entries):
                return tuple(cast("Sequence[int]", entries))
        raise self._error(name, "must be a list of integers >= 1", cast("object", value))

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number >= 0; ModelError if it is not, or missing without a default."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
            raise self._error(name, "must be a number >= 0", value)
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._error(name, "must be true or false", value)
        return value

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """One of a few words."""
        value = self._get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self._error(name, f"must be one of {', '.join(choices)}", value)
        return value

    def require(self, name: str, supported: object) -> None:
        """ModelError when `name` is set to anything but null or the one supported value."""
        value = self._settings.get(name)
        if value is not None and value != supported:
            raise self._error(name, f"is supported as {supported!r} only", value)

    def _get(self, name: str, default: object) -> object:
        value = self._settings.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"config.json of a `{self._kind}` model lacks `{name}`")
        return value

    def _error(self, name: str, need: str, value: object) -> ModelError:
        shown = repr(value)
        clipped = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return ModelError(f"`{name}` of a `{self._kind}` model {need}, config.json has {clipped}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
