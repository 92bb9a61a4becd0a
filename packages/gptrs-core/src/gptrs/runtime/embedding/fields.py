"""Typed reading of the JSON files of sentence-transformers: errors name file, setting and need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from gptrs.errors import ModelError
from gptrs.quoting import listed, quoted, shown_value


class EmbeddingFields:
    """The settings in the file `where`, in which null is nothing."""

    def __init__(self, settings: Mapping[str, object], where: str) -> None:
        self._settings = settings
        self._where = where

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def count(self, name: str) -> int | None:
        """A number >= 1, None if there is none; what is said of enormous ones is their size."""
        value = self._settings.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
            raise self.error(name, "must be a number >= 1")
        return int(value)

    def text(self, name: str, default: str | None = None) -> str | None:
        """A string."""
        value = self._get(name, default)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "must be a string")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """A table of strings, in which null is the empty one."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.error(name, "must be a table of strings")
        table = {key: entry or "" for key, entry in cast("dict[str, object]", value).items()}
        if not all(isinstance(entry, str) for entry in table.values()):
            raise self.error(name, "must be a table of strings")
        return cast("dict[str, str]", table)

    def choices(self, name: str, allowed: Iterable[str]) -> tuple[str, ...] | None:
        """A word or a list of words, each one of those `allowed`; None if there is nothing."""
        value = self._settings.get(name)
        if value is None:
            return None
        words = cast("list[object]", value) if isinstance(value, list) else [value]
        known = [word for word in words if isinstance(word, str) and word in set(allowed)]
        if not words or len(known) != len(words):
            raise self.error(name, f"must be of {listed(allowed, most=9)}")
        return tuple(known)

    def require(self, name: str, *supported: object) -> None:
        """ModelError unless the value is null or one of the supported ones."""
        value = self._settings.get(name)
        if value is not None and value not in supported:
            raise self.error(name, f"is supported as {listed(map(str, supported))} only")

    def error(self, name: str, need: str) -> ModelError:
        """That `name` does not meet a need, and what was found."""
        found = self._settings.get(name)
        shown = "nothing" if found is None else shown_value(found)
        return ModelError(f"{quoted(name)} in {quoted(self._where)} {need}, found {shown}")

    def _get(self, name: str, default: object) -> object:
        value = self._settings.get(name)
        return default if value is None else value
