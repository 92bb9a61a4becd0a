"""The methods of tensors: each calls the functional of its name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Self

from gptrs.capture.ports import functional
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DTypeLike

Axes = int | Sequence[int] | None
Number = bool | int | float | complex


class Methods:
    """Mixin: `x.sum(0)` is `functionals.sum(x, 0)`; see the functionals for definitions."""

    __slots__ = ()

    def __getitem__(self, key: object) -> Self:
        return functional("index")(self, key)

    @property
    def T(self) -> Self:  # noqa: N802
        """The axes reversed."""
        return functional("transpose")(self)

    # -- written by tools/elementwise_functions.py from the rows of gptrs.ir.ops.elementwise
    def neg(self) -> Self:
        """`-x`; integers wrap, so the least signed integer is its own negative."""
        return functional("neg")(self)

    def abs(self) -> Self:
        """`|x|`; integers wrap, so the least signed integer is its own absolute value."""
        return functional("abs")(self)

    def sign(self) -> Self:
        """-1, 0 or 1 with the sign of `x`; keeps -0.0 and NaN."""
        return functional("sign")(self)

    def exp(self) -> Self:
        """`e^x`."""
        return functional("exp")(self)

    def expm1(self) -> Self:
        """`e^x - 1`, accurate near 0."""
        return functional("expm1")(self)

    def log(self) -> Self:
        """The natural logarithm; -inf at 0, NaN below (complex: the principal branch)."""
        return functional("log")(self)

    def log1p(self) -> Self:
        """`log(1 + x)`, accurate near 0; -inf at -1, NaN below."""
        return functional("log1p")(self)

    def sqrt(self) -> Self:
        """The square root; NaN below 0, -0.0 at -0.0."""
        return functional("sqrt")(self)

    def rsqrt(self) -> Self:
        """`1 / sqrt(x)`; inf at 0.0, -inf at -0.0, NaN below."""
        return functional("rsqrt")(self)

    def reciprocal(self) -> Self:
        """`1 / x`; inf with the sign of `x` at zeros."""
        return functional("reciprocal")(self)

    def sin(self) -> Self:
        """The sine of `x` radians; NaN at infinities."""
        return functional("sin")(self)

    def cos(self) -> Self:
        """The cosine of `x` radians; NaN at infinities."""
        return functional("cos")(self)

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return functional("tanh")(self)

    def sigmoid(self) -> Self:
        """`1 / (1 + e^-x)`, computed so that no intermediate overflows."""
        return functional("sigmoid")(self)

    def erf(self) -> Self:
        """The error function, `2/sqrt(pi) * integral of e^(-t^2) from 0 to x`."""
        return functional("erf")(self)

    def floor(self) -> Self:
        """The largest integral value not above `x`."""
        return functional("floor")(self)

    def ceil(self) -> Self:
        """The smallest integral value not below `x`."""
        return functional("ceil")(self)

    def round(self) -> Self:
        """The nearest integral value, halves to the even one."""
        return functional("round")(self)

    def bitwise_not(self) -> Self:
        """Logical negation of `i1`, bitwise complement of integers."""
        return functional("bitwise_not")(self)

    def add(self, other: Self | Number) -> Self:
        """`functionals.add(self, other)`."""
        return functional("add")(self, other)

    def sub(self, other: Self | Number) -> Self:
        """`functionals.sub(self, other)`."""
        return functional("sub")(self, other)

    def mul(self, other: Self | Number) -> Self:
        """`functionals.mul(self, other)`."""
        return functional("mul")(self, other)

    def div(self, other: Self | Number) -> Self:
        """`functionals.div(self, other)`."""
        return functional("div")(self, other)

    def fmod(self, other: Self | Number) -> Self:
        """`functionals.fmod(self, other)`."""
        return functional("fmod")(self, other)

    def maximum(self, other: Self | Number) -> Self:
        """`functionals.maximum(self, other)`."""
        return functional("maximum")(self, other)

    def minimum(self, other: Self | Number) -> Self:
        """`functionals.minimum(self, other)`."""
        return functional("minimum")(self, other)

    def bitwise_and(self, other: Self | Number) -> Self:
        """`functionals.bitwise_and(self, other)`."""
        return functional("bitwise_and")(self, other)

    def bitwise_or(self, other: Self | Number) -> Self:
        """`functionals.bitwise_or(self, other)`."""
        return functional("bitwise_or")(self, other)

    def bitwise_xor(self, other: Self | Number) -> Self:
        """`functionals.bitwise_xor(self, other)`."""
        return functional("bitwise_xor")(self, other)

    def left_shift(self, other: Self | Number) -> Self:
        """`functionals.left_shift(self, other)`."""
        return functional("left_shift")(self, other)

    def right_shift(self, other: Self | Number) -> Self:
        """`functionals.right_shift(self, other)`."""
        return functional("right_shift")(self, other)

    # -- end of what is written

    def square(self) -> Self:
        """`x * x`."""
        return functional("square")(self)

    def relu(self) -> Self:
        """`max(x, 0)`."""
        return functional("relu")(self)

    def silu(self) -> Self:
        """`x * sigmoid(x)`."""
        return functional("silu")(self)

    def is_finite(self) -> Self:
        """i1: neither infinite nor NaN."""
        return functional("is_finite")(self)

    def is_nan(self) -> Self:
        """i1: NaN."""
        return functional("is_nan")(self)

    def gelu(self, approximate: Literal["none", "tanh", "quick"] = "none") -> Self:
        """Return the Gaussian error linear unit."""
        return functional("gelu")(self, approximate)

    def softmax(self, axis: int = -1) -> Self:
        """`exp(x)` over its sum along `axis`."""
        return functional("softmax")(self, axis)

    def log_softmax(self, axis: int = -1) -> Self:
        """Return the logarithm of `softmax`."""
        return functional("log_softmax")(self, axis)

    def pow(self, exponent: Self | Number) -> Self:
        """`x ^ exponent`."""
        return functional("pow")(self, exponent)

    def clamp(self, low: Self | Number | None = None, high: Self | Number | None = None) -> Self:
        """Not below `low`, not above `high`."""
        return functional("clamp")(self, low, high)

    def sum(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the sum along axes, None for all."""
        return functional("sum")(self, axis, keepdims)

    def prod(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the product along axes, None for all."""
        return functional("prod")(self, axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the mean along axes, None for all."""
        return functional("mean")(self, axis, keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the largest along axes, None for all."""
        return functional("max")(self, axis, keepdims)

    def min(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Return the smallest along axes, None for all."""
        return functional("min")(self, axis, keepdims)

    def any(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Logical or along axes, None for all axes."""
        return functional("any")(self, axis, keepdims)

    def all(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """Logical and along axes, None for all axes."""
        return functional("all")(self, axis, keepdims)

    def variance(self, axis: Axes = None, correction: int = 0, keepdims: bool = False) -> Self:
        """Return the variance along axes, None for all."""
        return functional("variance")(self, axis, correction, keepdims)

    def std(self, axis: Axes = None, correction: int = 0, keepdims: bool = False) -> Self:
        """Return the standard deviation along axes, None for all."""
        return functional("std")(self, axis, correction, keepdims)

    def logsumexp(self, axis: Axes = None, keepdims: bool = False) -> Self:
        """`log(sum(exp(x)))` along axes, None for all."""
        return functional("logsumexp")(self, axis, keepdims)

    def argmax(
        self, axis: int | None = None, keepdims: bool = False, dtype: DTypeLike = dtypes.si64
    ) -> Self:
        """Return the index of the largest along `axis`, of all for None."""
        return functional("argmax")(self, axis, keepdims, dtype)

    def argmin(
        self, axis: int | None = None, keepdims: bool = False, dtype: DTypeLike = dtypes.si64
    ) -> Self:
        """Return the index of the smallest along `axis`, of all for None."""
        return functional("argmin")(self, axis, keepdims, dtype)

    def cumsum(self, axis: int) -> Self:
        """Return the sums along `axis` up to each element."""
        return functional("cumsum")(self, axis)

    def cumprod(self, axis: int) -> Self:
        """Return the products along `axis` up to each element."""
        return functional("cumprod")(self, axis)

    def sort(self, axis: int = -1, descending: bool = False) -> Self:
        """Sort in ascending order along `axis`."""
        return functional("sort")(self, axis, descending)

    def argsort(self, axis: int = -1, descending: bool = False) -> Self:
        """si64: where the elements of `sort` were."""
        return functional("argsort")(self, axis, descending)

    def top_k(self, k: int, axis: int = -1, largest: bool = True) -> tuple[Self, Self]:
        """Return the `k` largest along `axis`, and their indices."""
        return functional("top_k")(self, k, axis, largest)

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """Return the elements under another shape, `x.reshape(2, -1)` or `x.reshape((2, -1))`."""
        return functional("reshape")(self, _flat(shape))

    def transpose(self, *permutation: int | Sequence[int]) -> Self:
        """Axis i of the result is axis `permutation[i]` of x; without one all are reversed."""
        return functional("transpose")(self, _flat(permutation) if permutation else None)

    def broadcast_to(self, *shape: int | Sequence[int]) -> Self:
        """Repeated to `shape`, aligned at the right."""
        return functional("broadcast_to")(self, _flat(shape))

    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Self:
        """Return the axes from `start_axis` to `end_axis` as one."""
        return functional("flatten")(self, start_axis, end_axis)

    def squeeze(self, axis: Axes = None) -> Self:
        """Drop axes of size 1."""
        return functional("squeeze")(self, axis)

    def expand_dims(self, axis: int | Sequence[int]) -> Self:
        """Insert axes of size 1."""
        return functional("expand_dims")(self, axis)

    def swap_axes(self, first: int, second: int) -> Self:
        """Swap two axes."""
        return functional("swap_axes")(self, first, second)

    def split(self, parts: int | Sequence[int], axis: int = -1) -> tuple[Self, ...]:
        """Equal pieces along `axis`, or pieces of the sizes listed."""
        return functional("split")(self, parts, axis)

    def flip(self, axis: Axes = None) -> Self:
        """Reverse the order along axes, None for all."""
        return functional("flip")(self, axis)

    def repeat_interleave(self, repeats: int, axis: int) -> Self:
        """Each element along `axis` several times, side by side."""
        return functional("repeat_interleave")(self, repeats, axis)

    def cast(self, dtype: DTypeLike) -> Self:
        """Return the elements converted to `dtype`."""
        return functional("cast")(self, dtype)

    def take(self, indices: Self, axis: int = 0) -> Self:
        """Return the slices along `axis` with these numbers."""
        return functional("take")(self, indices, axis)

    def gather(self, indices: Self, axis: int) -> Self:
        """Elements by their index along `axis`."""
        return functional("gather")(self, indices, axis)


def _flat(arguments: Sequence[int | Sequence[int]]) -> list[int]:
    """Return the numbers in `2, 3` or `(2, 3)`; symbolic sizes count as numbers."""
    parts = (part if isinstance(part, Iterable) else [part] for part in arguments)
    return [number for part in parts for number in part]


# Python's operators on tensors: each calls the functional of the same meaning.


class Operators:
    """Mixin: Python's operators; the other operand is a tensor, a NumPy array or a number.

    `==` compares elements, so compare tensors themselves by `is`; they hash by identity.
    """

    __slots__ = ()

    __array_ufunc__ = None
    """NumPy defers `array + tensor` to the tensor, as it does `array @ tensor`."""

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

    def __rmatmul__(self, other: object) -> Self:
        return functional("matmul")(other, self)

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

    # Python's own `==` returns a bool, and still does for operands that are neither tensors nor
    # numbers.
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
    return type(value).__module__ == "numpy"  # avoids an import
