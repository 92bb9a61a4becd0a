"""The free-form attributes of a custom call: names with plain values, compared exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gptrs.errors import ProgramError
from gptrs.ir.dtypes import DType

DictionaryValue = bool | int | float | str | DType | tuple[int, ...]
"""What a name may stand for: the types of attributes that need no context to be read."""


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Names and values in the order of the names; `{k = 1, name = "x"}` in text.

    >>> Dictionary.of(k=1, name="x")["k"]
    1
    """

    items: tuple[tuple[str, DictionaryValue], ...] = ()

    @classmethod
    def of(
        cls, mapping: Mapping[str, DictionaryValue] | None = None, /, **values: DictionaryValue
    ) -> Dictionary:
        """The dictionary of these names and values."""
        return cls(tuple(sorted({**(mapping or {}), **values}.items(), key=lambda item: item[0])))

    def __getitem__(self, name: str) -> DictionaryValue:
        for key, value in self.items:
            if key == name:
                return value
        listed = ", ".join(self) or "none"
        raise ProgramError(f"a custom call has no attribute `{name}`; it has {listed}")

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items)

    def __len__(self) -> int:
        return len(self.items)
