"""Typed reading of JSON settings: every error names the setting, its file, the need, the value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeGuard, cast

from gptrs.checkpoint.read_settings import ReadSettings
from gptrs.errors import ModelError
from gptrs.quoting import listed, quoted, shown_value

_MOST_LAYERS = 10_000


class Fields:
    """Settings in which null counts as missing.

    `where` says in errors which settings they are: "in `preprocessor_config.json`", "of a `gpt2`
    model". Every method raises ModelError for a value of another kind, and for a missing one that
    has no default.
    """

    def __init__(self, settings: Mapping[str, object], where: str) -> None:
        self._settings = settings
        self._where = where

    @property
    def settings(self) -> Mapping[str, object]:
        """Return all settings, null included."""
        return self._settings

    def overlaid(
        self, over: Mapping[str, object], under: Mapping[str, object] | None = None
    ) -> Mapping[str, object]:
        """Return the settings with `over` in place of theirs, and `under` where they have none.

        They know what is looked at in either, as `{**settings}` would not.
        """
        if isinstance(self._settings, ReadSettings):
            return self._settings.overlaid(over, under or {})
        return {**(under or {}), **self._settings, **over}

    def get(self, name: str, default: object = None) -> object:
        """Return the value of any type, `default` where it is missing."""
        value = self._settings.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """Return an integer >= `minimum` and below 2^63."""
        value = self.get(name, default)
        if not is_integer(value) or not minimum <= value < 2**63:
            raise self.error(name, f"must be an integer >= {minimum}")
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        """Return a number of layers: at least 1 and at most 10,000, as some make lists of them."""
        value = self.integer(name, default)
        if value > _MOST_LAYERS:
            raise self.error(name, f"must be at most {_MOST_LAYERS}")
        return value

    def integers(self, name: str, default: Sequence[int], minimum: int = 1) -> tuple[int, ...]:
        """Return a list of integers >= `minimum`; only a default may be empty."""
        value = self.get(name)
        if value is None:
            return tuple(default)
        entries = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
        found = [entry for entry in entries if is_integer(entry) and entry >= minimum]
        if not found or len(found) != len(entries):
            raise self.error(name, f"must be a list of integers >= {minimum}")
        return tuple(found)

    def number(self, name: str, default: float | None = None, minimum: float = 0.0) -> float:
        """Return a number >= `minimum` and below 1e30."""
        value = self.get(name, default)
        if not is_number(value) or not minimum <= value < 1e30:
            raise self.error(name, f"must be a number >= {minimum:g}")
        return float(value)

    def count(self, name: str) -> int | None:
        """Return a number >= 1 of any size, rounded down; None if it is missing."""
        value = self.get(name)
        if value is None:
            return None
        if not is_number(value) or value < 1:
            raise self.error(name, "must be a number >= 1")
        return int(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a string; None if it is missing without a default."""
        value = self.get(name, default)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "must be a string")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Return a table of strings, in which null is the empty one."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self.error(name, "must be a table of strings")
        table = {key: entry or "" for key, entry in cast("dict[str, object]", value).items()}
        if not all(isinstance(entry, str) for entry in table.values()):
            raise self.error(name, "must be a table of strings")
        return cast("dict[str, str]", table)

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of a few words."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, f"must be one of {', '.join(choices)}")
        return value

    def choices(self, name: str, allowed: Iterable[str]) -> tuple[str, ...] | None:
        """Return a list of words of those `allowed`; one word is a list of it, None is missing."""
        value = self.get(name)
        if value is None:
            return None
        words = cast("list[object]", value) if isinstance(value, list) else [value]
        known = [word for word in words if isinstance(word, str) and word in set(allowed)]
        if not words or len(known) != len(words):
            raise self.error(name, f"must be of {listed(allowed, most=9)}")
        return tuple(known)

    def require(self, name: str, *supported: object) -> None:
        """ModelError unless the setting is missing or one of the supported values."""
        value = self.get(name)
        if value is not None and value not in supported:
            raise self.error(name, f"is supported as {' or '.join(map(repr, supported))} only")

    def without_effect(self, *names: str) -> None:
        """Say that settings change nothing, as others are, so that nobody is told of them."""
        for name in names:
            self.get(name)

    def error(self, name: str, need: str) -> ModelError:
        """Return the error that a setting does not meet a need, with the value that was found."""
        found = self.get(name)
        shown = "nothing" if found is None else shown_value(found)
        return ModelError(f"{quoted(name)} {self._where} {need}, found {shown}")


class ConfigFields(Fields):
    """The settings in the config.json of a model of a `kind`, which errors name."""

    def __init__(self, settings: Mapping[str, object], kind: str) -> None:
        super().__init__(settings, f"of a `{kind}` model")


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is an integer: bools are none, though Python says so."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a JSON value is a number, integer or not, but no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)
