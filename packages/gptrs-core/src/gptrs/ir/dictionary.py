"""Free-form attributes of composites and custom calls: plain values, compared exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gptrs.errors import ProgramError
from gptrs.ir.dtypes import DType
from gptrs.quick_dataclass import dataclass

DictionaryValue = bool | int | float | str | DType | tuple[int, ...]
"""The types of attributes that need no context to be read."""


@dataclass(frozen=True, slots=True, eq=False)
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
        """Return the dictionary of these names and values."""
        return cls(tuple(sorted({**(mapping or {}), **values}.items(), key=lambda item: item[0])))

    def __getitem__(self, name: str) -> DictionaryValue:
        for key, value in self.items:
            if key == name:
                return value
        listed = ", ".join(self) or "none"
        raise ProgramError(f"there is no attribute `{name}`; there are {listed}")

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same names with indistinguishable values: 1 is not True."""
        return isinstance(other, Dictionary) and self._exact() == other._exact()

    def __hash__(self) -> int:
        return hash(self._exact())

    def _exact(self) -> tuple[object, ...]:
        """Values with their types; floats as text, so that -0.0 is not 0.0, but NaN is NaN."""
        return tuple(
            (name, type(value), repr(value) if isinstance(value, float) else value)
            for name, value in self.items
        )
