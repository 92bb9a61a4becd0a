"""Settings that know which of them were looked at, so that the others can be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from typing_extensions import override


class ReadSettings(dict[str, object]):
    """A copy of JSON settings that knows which of them were looked at, in tables within, too.

    Whoever walks over all of them, `{**settings}` for example, has looked at all.
    """

    def __init__(self, settings: Mapping[str, object], seen: set[str] | None = None) -> None:
        super().__init__()
        self._seen = set[str]() if seen is None else seen
        for name, value in settings.items():
            if isinstance(value, dict) and not isinstance(value, ReadSettings):
                value = ReadSettings(cast("dict[str, object]", value))
            super().__setitem__(name, value)

    def overlaid(self, over: Mapping[str, object], under: Mapping[str, object]) -> ReadSettings:
        """Return a copy with `over` in place of its own, and `under` where it has none.

        Of its own settings, those that are looked at in either are looked at in both.
        """
        own = {name: super(ReadSettings, self).__getitem__(name) for name in super().__iter__()}
        return ReadSettings({**under, **own, **over}, self._seen)

    def unseen(self) -> list[str]:
        """Return the settings that nobody looked at, as `NAME`, or `TABLE.NAME` within one.

        A table without a part that was looked at counts as looked at whole.
        """
        found: list[str] = []
        for name in super().__iter__():
            value = super().__getitem__(name)
            if name not in self._seen:
                found.append(name)
            elif isinstance(value, ReadSettings) and value._seen:
                found += (f"{name}.{each}" for each in value.unseen())
        return found

    @override
    def __getitem__(self, name: str) -> object:
        self._seen.add(name)
        return super().__getitem__(name)

    @override
    def __contains__(self, name: object) -> bool:
        self._seen.add(str(name))
        return super().__contains__(name)

    @override
    def get(self, name: str, default: object = None) -> object:
        self._seen.add(name)
        return super().get(name, default)

    @override
    def __iter__(self) -> Iterator[str]:
        self._seen.update(super().keys())
        return super().__iter__()

    @override
    def keys(self):
        self._seen.update(super().keys())
        return super().keys()

    @override
    def values(self):
        self._seen.update(super().keys())
        return super().values()

    @override
    def items(self):
        self._seen.update(super().keys())
        return super().items()
