"""Windows of convolutions and pooling on the spatial axes of `[N, spatial.., C]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass

Extents = int | Sequence[int]
"""One integer for all spatial axes, or one for each."""

Padding = int | Sequence[int] | Sequence[Sequence[int]] | Literal["same", "valid"]
"""An integer for all sides, or for each spatial axis an integer or (low, high); or by name."""


@dataclass(frozen=True, slots=True)
class AxisWindows:
    """Intervals on an axis: number `o` holds `o * stride - low + k * dilation`, 0 <= k < size."""

    axis: int
    dim: int
    size: int
    stride: int
    dilation: int
    low: int = 0
    high: int = 0

    @property
    def reach(self) -> int:
        """Elements from the first to the last one of an interval."""
        return (self.size - 1) * self.dilation + 1

    @property
    def positions(self) -> int:
        """Return how many intervals fit in the padded axis; below 1 if none does."""
        return (self.low + self.dim + self.high - self.reach) // self.stride + 1

    @property
    def starts(self) -> range:
        """The first element of each interval, negative in the padding."""
        return range(-self.low, self.positions * self.stride - self.low, self.stride)

    def misses(self) -> bool:
        """Return whether some interval holds nothing but padding."""
        # Decided without the dim where it can be: a symbolic one would have to become a number.
        if self.dilation == 1 and max(self.low, self.high) < self.reach and self.dim >= 1:
            return False
        if self.starts[-1] >= self.dim:
            return True
        return any(
            start % self.dilation >= min(self.dim, start + self.reach)
            for start in self.starts[: -(-self.low // self.stride)]
        )


Windows = tuple[AxisWindows, ...]
"""One entry a spatial axis."""


def windows_of(
    name: str,
    x: Tensor,
    kernel: Extents,
    stride: Extents,
    padding: Padding,
    dilation: Extents,
    axes: Sequence[int] | None = None,
) -> Windows:
    """Return the windows on `axes` of `x`, by default all but the first and the last.

    Padding "valid" is none. "same" gives `ceil(dim / stride)` positions, an odd element going to
    the high side (TensorFlow's and ONNX's `SAME_UPPER`; for stride 1 also torch's). UsageError for
    malformed extents or padding.
    """
    axes = range(1, x.rank - 1) if axes is None else axes
    dims = [x.shape[axis] for axis in axes]
    columns = [
        extents(name, label, value, len(dims))
        for label, value in (("kernel", kernel), ("stride", stride), ("dilation", dilation))
    ]
    bare = [AxisWindows(*entries) for entries in zip(axes, dims, *columns, strict=True)]
    sides = (
        [_same(each) for each in bare] if padding == "same" else sides_of(name, padding, len(bare))
    )
    return tuple(
        replace(each, low=low, high=high) for each, (low, high) in zip(bare, sides, strict=True)
    )


def require_fit(name: str, x: Tensor, windows: Windows) -> None:
    """UsageError unless each axis of `x` with its padding holds a window."""
    for each in windows:
        if each.positions < 1:
            raise UsageError(
                f"`{name}` cannot fit a kernel over {each.reach} elements into axis {each.axis} of"
                f" `{x.type}`, which has {each.low + each.dim + each.high} with padding"
            )


def extents(name: str, label: str, value: Extents, count: int, least: int = 1) -> tuple[int, ...]:
    """`value` for each of `count` axes; UsageError unless these are integers >= `least`."""
    entries = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(entries) == count and all(_is_count(entry, least) for entry in entries):
        return entries
    raise UsageError(
        f"`{name}` takes as `{label}` an integer >= {least}, or {count} of them, one a spatial"
        f" axis; got {value!r}"
    )


def _same(axis: AxisWindows) -> tuple[int, int]:
    positions = -(-axis.dim // axis.stride)
    total = max((positions - 1) * axis.stride + axis.reach - axis.dim, 0)
    return total // 2, total - total // 2


def sides_of(
    name: str,
    padding: Padding,
    count: int,
    *,
    names: str = '"same", "valid", ',
    trims: bool = False,
) -> list[tuple[int, int]]:
    """Return `padding` as (low, high) of each of `count` axes; UsageError unless it is one.

    With `trims`, sides may be negative. `names` lists the words that the functional takes.
    """
    if padding == "valid" and names:
        return [(0, 0)] * count
    entries = tuple(padding) if isinstance(padding, Sequence) else (padding,) * count
    sides = [pair for pair in (_side_pair(entry, trims) for entry in entries) if pair is not None]
    if len(sides) == len(entries) == count:
        return sides
    integer = "an integer" if trims else "an integer >= 0"
    raise UsageError(
        f"`{name}` takes as `padding` {names}{integer}, or {count} entries, one a"
        f" spatial axis, each an integer or a pair (low, high); got {padding!r}"
    )


def _side_pair(entry: object, trims: bool) -> tuple[int, int] | None:
    """Return an entry of a padding as (low, high), None if it is not one."""
    least = None if trims else 0
    match entry:
        case [int(low), int(high)] if _is_count(low, least) and _is_count(high, least):
            return low, high
        case int() if _is_count(entry, least):
            return entry, entry
        case _:
            return None


def _is_count(value: object, least: int | None) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return least is None or value >= least
