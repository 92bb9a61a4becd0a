"""The sizes that an export left free: their ranges, and how they depend on one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import sympy
import torch
from torch.export import ExportedProgram

from gptrs.api import UsageError
from gptrs.api.importers import ModelInput
from gptrs_torch.symbols import expression_of

MOST: Final = 2**60
"""A range whose end is above this is unbounded."""


class ExportedSizes:
    """Sizes of the inputs of an exported program, as far as it limits them.

    Sizes that are one symbol are read off the inputs; each expression of symbols must then have the
    value, and lie in the range, that torch found when it exported the program.
    """

    def __init__(self, exported: ExportedProgram) -> None:
        self._axes: list[tuple[str, int, sympy.Expr]] = []
        for node in exported.graph.nodes:
            held = node.meta.get("val")
            if node.op == "placeholder" and isinstance(held, torch.Tensor):
                sizes = enumerate(map(expression_of, held.shape))
                self._axes += [(node.name, axis, size) for axis, size in sizes if size is not None]
        self._axes.sort(key=lambda each: not each[2].is_Symbol)  # symbols first
        ranges = cast("Mapping[sympy.Expr, Any]", exported.range_constraints)
        self._ranges = {size: (each.lower, each.upper) for size, each in ranges.items()}

    def check(self, inputs: Mapping[str, ModelInput], given: Mapping[str, torch.Tensor]) -> None:
        """Refuse sizes that the export does not allow: UsageError names the first one."""
        known: dict[sympy.Expr, tuple[int, str]] = {}
        for name, axis, size in self._axes:
            if name not in given:
                continue
            found = given[name].shape[axis]
            slot = inputs[name]
            wanted = self._value(size, known)
            if wanted is not None and wanted != found:
                source = ", ".join(sorted({known[each][1] for each in _symbols(size)}))
                raise UsageError(
                    f"the input {slot} has {found} elements along axis {axis}, not {wanted}",
                    hint=f"that size follows from the one of {source}",
                )
            if wanted is None and size.is_Symbol:
                known[size] = found, f"`{name}`"
            self._check_range(slot, axis, size, found)

    def _value(self, size: sympy.Expr, known: Mapping[sympy.Expr, tuple[int, str]]) -> int | None:
        """Return the value of an expression, None where a symbol of it has none yet."""
        if any(each not in known for each in _symbols(size)):
            return None
        return int(cast("Any", size).subs({each: known[each][0] for each in _symbols(size)}))

    def _check_range(self, slot: ModelInput, axis: int, size: sympy.Expr, found: int) -> None:
        low, high = self._ranges.get(size, (found, found))
        if not (low <= found <= high):
            to = f"{low} to {high}" if high < MOST else f"at least {low}"
            raise UsageError(
                f"the input {slot} has {found} elements along axis {axis}, the export allows {to}",
                hint="export the program with a wider `torch.export.Dim`",
            )


def _symbols(size: sympy.Expr) -> set[sympy.Expr]:
    return cast("set[sympy.Expr]", size.free_symbols)
