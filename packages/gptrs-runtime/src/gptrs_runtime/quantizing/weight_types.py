"""The types that weights are quantized to, by the names that users give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import listed, quoted

Offset = Literal["none", "bias", "zero_point"]
"""Where the zero of a group is: amid the codes, or moved by a float bias or an integer."""

DEFAULT_GROUP = 32
LARGEST_GROUP = 1024


@dataclass(frozen=True, slots=True)
class WeightType:
    """Codes of `bits`, and a scale in f16 for each `group` of them; None is one for each row."""

    name: str
    bits: int
    offset: Offset = "none"
    group: int | None = DEFAULT_GROUP

    def grouped(self, group: int) -> WeightType:
        """Return the type with groups of another size; 0 is one group for each row.

        UsageError for a size that is no multiple of 8 up to LARGEST_GROUP.
        """
        if group and (group % 8 or not 8 <= group <= LARGEST_GROUP):
            raise UsageError(
                f"groups of {group} weights cannot be stored",
                hint=f"a multiple of 8 up to {LARGEST_GROUP}, or 0 for one group a row",
            )
        return WeightType(self.name, self.bits, self.offset, group or None)

    def group_of(self, columns: int) -> int:
        """Return the size of the groups of rows of `columns`."""
        return self.group or columns


WEIGHT_TYPES: Mapping[str, WeightType] = {
    "q8": WeightType("q8", 8),
    "q4": WeightType("q4", 4),
    "q4_asym": WeightType("q4_asym", 4, "zero_point"),
    "int8": WeightType("int8", 8, group=None),
}
"""The types of folders, by name."""
LOADED_TYPES = ("q8", "q4")
"""Those that weights may get when they are loaded."""
HEAD_TYPE = WEIGHT_TYPES["q8"]
"""The type of heads and tables of tokens, whose errors reach the output at once."""


def weight_type(name: str, known: tuple[str, ...] = tuple(WEIGHT_TYPES)) -> WeightType:
    """Return the type of that name; UsageError for one that is not among `known`."""
    if name not in known:
        raise UsageError(
            f"weights cannot be quantized to {quoted(str(name))}",
            hint=f"choose from {listed(known)}",
        )
    return WEIGHT_TYPES[name]
