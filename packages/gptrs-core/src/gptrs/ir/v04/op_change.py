"""Changes of an op since an older version of PTIR: names, attributes, regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.program import Region
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass

Attributes = dict[str, object]
Types = Sequence[TensorType]


def _nothing(attributes: Attributes, operands: Types, results: Types) -> None:
    """The attributes mean what they meant."""


def _same(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    return regions


@dataclass(frozen=True)
class OpChange:
    """Turns an instruction of an older version into one of today's, if it can."""

    op: str | None = None
    """Today's name of the op; None: the same."""
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Today's names of attributes by their old ones."""
    kinds: Mapping[str, AttributeKind] = field(default_factory=dict[str, AttributeKind])
    """How attributes were written that are gone or are written otherwise today."""
    upgrade: Callable[[Attributes, Types, Types], None] = _nothing
    """Turns attributes as read, by today's names, into today's, given the types of operands and
    results; ProgramError, which follows the name of the op, for what has no counterpart."""
    upgrade_regions: Callable[[tuple[Region, ...]], tuple[Region, ...]] = _same
    """Turns the regions into today's; ProgramError if there are none that mean the same."""


UNCHANGED = OpChange()
