"""Sizes that a graph computes in floats: `ceil(size / 32) * 32`, as exporters of detectors write.

The values stay tensors of the program. Where one has to be known, it is computed as a fraction from
the sizes behind it, if a float has no other value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from msgspec import Struct

from gptrs.api import GptrsError, ProgramError
from gptrs.api.models import Tensor
from gptrs.api.programs import DType
from gptrs.ir.symbolic_dim import SymbolicDim, exact_quotient
from gptrs_onnx import known_ops
from gptrs_onnx.element_types import DTYPES
from gptrs_onnx.node import Bound, Known, Node, sizes
from gptrs_onnx.onnx_ir import ir

_EXACT: Final = 2**23
"""Numerators up to here, over any integer, are on the right side of each integer as f32."""
_MOST: Final = 64
"""Most nodes between a value and the sizes behind it, and most elements of either."""
_MOVES: Final = ("Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")


class Fractional(Struct, frozen=True):
    """`numerator / denominator` as a float of 32 bits or more; ProgramError where it is rounded."""

    numerator: int
    denominator: int = 1

    def __add__(self, other: Fractional) -> Fractional:
        a, b = self._exact(), other._exact()
        top = a.numerator * b.denominator + b.numerator * a.denominator
        return _fraction(top, a.denominator * b.denominator)

    def __sub__(self, other: Fractional) -> Fractional:
        return self + Fractional(-other.numerator, other.denominator)

    def __mul__(self, other: Fractional) -> Fractional:
        a, b = self._exact(), other._exact()
        return _fraction(a.numerator * b.numerator, a.denominator * b.denominator)

    def __truediv__(self, other: Fractional) -> Fractional:
        a, b = self._exact(), other._exact()
        if isinstance(b.numerator, SymbolicDim) or b.numerator <= 0:
            raise ProgramError(f"no fraction of sizes has the denominator {b.numerator}")
        return _fraction(a.numerator * b.denominator, a.denominator * b.numerator)

    def __lt__(self, other: Fractional) -> bool:
        return (self - other).numerator < 0

    def __gt__(self, other: Fractional) -> bool:
        return other < self

    def __le__(self, other: Fractional) -> bool:
        return not other < self

    def __ge__(self, other: Fractional) -> bool:
        return not self < other

    def floor(self) -> Fractional:
        """Return the greatest integer that is not above."""
        return Fractional(self.numerator // self.denominator)

    def ceil(self) -> Fractional:
        """Return the least integer that is not below."""
        return Fractional(-(-self.numerator // self.denominator))

    def round(self) -> Fractional:
        """Return the nearest integer, the even one of two."""
        top, under = self.numerator, self.denominator
        if under % 2:
            return Fractional((2 * top + under) // (2 * under))
        half = under // 2
        # Whether the middle is below an odd number, which is rounded to one less: a guard, as a
        # formula for it is longer than a size may be.
        middle = (top - half) // (2 * under) - (top - half - 1) // (2 * under)
        return Fractional((top + half) // under - bool(middle > 0))

    def _exact(self) -> Fractional:
        """Return itself if a float holds it: its denominator is a power of two."""
        if self.denominator & (self.denominator - 1):
            raise ProgramError(f"a float rounds fractions with the denominator {self.denominator}")
        return self


def _fraction(numerator: int, denominator: int) -> Fractional:
    whole = exact_quotient(numerator, denominator)
    if whole is not None:
        numerator, denominator = whole, 1
    if not -_EXACT <= numerator <= _EXACT:  # of a free size, a guard of the program
        raise ProgramError(f"floats round fractions with the numerator {numerator}")
    return Fractional(numerator, denominator)


def _number(value: object) -> Fractional:
    """Return a size or a float as a fraction."""
    if isinstance(value, Fractional):
        return value
    if isinstance(value, (int, SymbolicDim, np.integer)):
        return _fraction(value if isinstance(value, SymbolicDim) else int(value), 1)  # pyright: ignore
    try:
        number = Fraction(float(value))  # pyright: ignore[reportArgumentType]
    except (OverflowError, ValueError) as error:
        raise ProgramError(f"{value} is not a fraction") from error
    return _fraction(number.numerator, number.denominator)


def _truncated(value: object) -> int:
    """Return the integer part of a size or a float."""
    number = _number(value)
    return (number.floor() if number.numerator >= 0 else number.ceil()).numerator


def sizes_behind(
    value: ir.Value,
    found: Callable[[ir.Value], Bound | None],
    node_of: Callable[[ir.Node], Node],
) -> Known | None:
    """Return the sizes, some of them symbols, that a value is as numbers; None for others.

    `found` gives the values of the graph so far, `node_of` a node as converters see it.
    """
    try:
        made = _Behind(found, node_of).known(value)
        if made is None:
            return None
        # As a list, truth values are Python's, and these are integers.
        return sizes([_whole(each) for each in made.reshape(-1).tolist()]).reshape(made.shape)
    except GptrsError:  # not for all sizes
        return None


def _whole(value: object) -> int:
    if isinstance(value, Fractional) and value.denominator == 1:
        return value.numerator
    if isinstance(value, (int, SymbolicDim)):
        return value  # pyright: ignore[reportReturnType]
    raise ProgramError(f"{value} is not a size")


class _Behind:
    """Values computed from the sizes behind them; fractions where the graph has floats."""

    def __init__(
        self, found: Callable[[ir.Value], Bound | None], node_of: Callable[[ir.Node], Node]
    ) -> None:
        self._found = found
        self._node_of = node_of
        self._nodes = 0
        self._made: dict[ir.Value, Known | None] = {}

    def known(self, value: ir.Value) -> Known | None:
        """Return a value; None if it is data, or of an operator that no sizes need."""
        if value not in self._made:
            self._made[value] = None
            held = self._found(value)
            if isinstance(held, np.ndarray):
                self._made[value] = held if held.size <= _MOST else None
            elif isinstance(held, Tensor):
                self._made[value] = self._computed(value)
        return self._made[value]

    def _computed(self, value: ir.Value) -> Known | None:
        source = value.producer()
        self._nodes += 1
        if source is None or source.domain not in ("", "ai.onnx") or self._nodes > _MOST:
            return None
        if len(source.outputs) > 1:
            return None
        node = self._node_of(source)
        given = [None if each is None else self.known(each) for each in source.inputs]
        missing = [each for each, own in zip(source.inputs, given, strict=True) if own is None]
        if any(each is not None and each.name for each in missing):
            return None
        return _evaluated(node, given)


def _evaluated(node: Node, given: Sequence[Known | None]) -> Known | None:
    """Return the result of a node on sizes and fractions; None for an operator that none need."""
    values = [each for each in given if each is not None]
    if node.op_type == "Cast":
        return _cast(values[0], DTYPES.get(ir.DataType(node.integer("to"))))
    if node.op_type in _MOVES or not any(map(_is_fractional, values)):
        found = known_ops.evaluated(node, given)
        return found if isinstance(found, np.ndarray) else None
    function = _FUNCTIONS.get(node.op_type)
    if function is None:
        return None
    return _each(function, *(_each(_number, each) for each in values))


def _is_fractional(x: Known) -> bool:
    return x.dtype == object and any(isinstance(each, Fractional) for each in x.flat)


def _each(function: Callable[..., Any], *operands: Known) -> Known:
    return np.asarray(np.frompyfunc(function, len(operands), 1)(*operands), object)


def _cast(x: Known, dtype: DType | None) -> Known | None:
    if dtype is None or dtype.is_bool or dtype.is_complex or dtype.bits < 32:
        return None  # sizes fit into 32 bits, and fractions of them are exact there
    return _each(_truncated if dtype.is_integer else _number, x)


_FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = {
    "Add": Fractional.__add__,
    "Sub": Fractional.__sub__,
    "Mul": Fractional.__mul__,
    "Div": Fractional.__truediv__,
    "Max": max,
    "Min": min,
    "Floor": Fractional.floor,
    "Ceil": Fractional.ceil,
    "Round": Fractional.round,
    "Less": Fractional.__lt__,
    "LessOrEqual": Fractional.__le__,
    "Greater": Fractional.__gt__,
    "GreaterOrEqual": Fractional.__ge__,
}
