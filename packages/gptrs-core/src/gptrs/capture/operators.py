"""Python's operators on tensors: each calls the functional of the same meaning."""

from __future__ import annotations

from typing import Self

from gptrs.capture.ports import functional


class Operators:
    """Mixin: Python's operators; the other operand is a tensor or a number.

    `==` compares elements, so that tensors are told apart by `is` and hash by identity.
    """

    __slots__ = ()

    __array_ufunc__ = None
    """NumPy leaves `array + tensor` to the tensor, which refuses what is not wrapped."""

    def __add__(self, other: object) -> Self:
        return functional("add")(self, other)

    def __radd__(self, other: object) -> Self:
        return functional("add")(other, self)

    def __sub__(self, other: object) -> Self:
        return functional("sub")(self, other)

    def __rsub__(self, other: object) -> Self:
        return functional("sub")(other, self)

    def __mul__(self, other: object) -> Self:
        return functional("mul")(self, other)

    def __rmul__(self, other: object) -> Self:
        return functional("mul")(other, self)

    def __truediv__(self, other: object) -> Self:
        return functional("div")(self, other)

    def __rtruediv__(self, other: object) -> Self:
        return functional("div")(other, self)

    def __floordiv__(self, other: object) -> Self:
        return functional("floor_divide")(self, other)

    def __rfloordiv__(self, other: object) -> Self:
        return functional("floor_divide")(other, self)

    def __mod__(self, other: object) -> Self:
        return functional("remainder")(self, other)

    def __rmod__(self, other: object) -> Self:
        return functional("remainder")(other, self)

    def __pow__(self, other: object) -> Self:
        return functional("pow")(self, other)

    def __rpow__(self, other: object) -> Self:
        return functional("pow")(other, self)

    def __matmul__(self, other: object) -> Self:
        return functional("matmul")(self, other)

    def __neg__(self) -> Self:
        return functional("neg")(self)

    def __abs__(self) -> Self:
        return functional("abs")(self)

    def __and__(self, other: object) -> Self:
        return functional("bitwise_and")(self, other)

    def __rand__(self, other: object) -> Self:
        return functional("bitwise_and")(other, self)

    def __or__(self, other: object) -> Self:
        return functional("bitwise_or")(self, other)

    def __ror__(self, other: object) -> Self:
        return functional("bitwise_or")(other, self)

    def __xor__(self, other: object) -> Self:
        return functional("bitwise_xor")(self, other)

    def __rxor__(self, other: object) -> Self:
        return functional("bitwise_xor")(other, self)

    def __invert__(self) -> Self:
        return functional("bitwise_not")(self)

    def __lshift__(self, other: object) -> Self:
        return functional("left_shift")(self, other)

    def __rlshift__(self, other: object) -> Self:
        return functional("left_shift")(other, self)

    def __rshift__(self, other: object) -> Self:
        return functional("right_shift")(self, other)

    def __rrshift__(self, other: object) -> Self:
        return functional("right_shift")(other, self)

    def __lt__(self, other: object) -> Self:
        return functional("less")(self, other)

    def __le__(self, other: object) -> Self:
        return functional("less_equal")(self, other)

    def __gt__(self, other: object) -> Self:
        return functional("greater")(self, other)

    def __ge__(self, other: object) -> Self:
        return functional("greater_equal")(self, other)

    # Python's own `==` gives a bool; what is neither a tensor nor a number still gets that.
    def __eq__(self, other: object) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not _has_elements(other):
            return NotImplemented
        return functional("equal")(self, other)

    def __ne__(self, other: object) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not _has_elements(other):
            return NotImplemented
        return functional("not_equal")(self, other)

    __hash__ = object.__hash__


def _has_elements(value: object) -> bool:
    if isinstance(value, Operators | bool | int | float | complex):
        return True
    return type(value).__module__ == "numpy"  # not imported for this alone
