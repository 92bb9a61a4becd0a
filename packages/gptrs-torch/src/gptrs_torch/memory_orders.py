"""Rules by which traced results have the memory order of torch's kernels.

For some operators torch predicts the order of their operands, while its kernel on the CPU gives a
result in row-major order, or in that of `channels_last`. Callers rely on it by `view`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

_ATEN: Any = torch.ops.aten
_ROW_MAJOR: Final = (
    _ATEN.roll.default,
    _ATEN.reflection_pad1d.default,
    _ATEN._softmax.default,
    _ATEN._log_softmax.default,
    _ATEN.native_layer_norm.default,
    _ATEN.stack.default,
    _ATEN.cat.default,
    _ATEN.native_batch_norm.default,
    _ATEN._native_batch_norm_legit_functional.default,
    _ATEN._native_batch_norm_legit.no_stats,
    _ATEN._native_batch_norm_legit_no_training.default,
)
_IMAGES: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Images and volumes may keep an order of their own, by rank."""
_LOSE_CHANNELS_LAST: Final = frozenset(
    {
        _ATEN.reflection_pad1d.default,
        _ATEN.native_layer_norm.default,
        _ATEN.stack.default,
    }
)
Rule = Callable[..., Any]


def order_rules(table: dict[Any, Rule]) -> dict[Any, Rule]:
    """Return rules for these operators, which then are as in the table, or stay whole."""
    made: dict[Any, Rule] = {op: partial(_ordered, op, table.get(op)) for op in _ROW_MAJOR}
    return {
        **made,
        _ATEN.roll.default: partial(_rolled, made[_ATEN.roll.default]),
        _ATEN.stack.default: partial(_stacked, made[_ATEN.stack.default]),
        _ATEN._fft_r2c.default: _transform,
        _ATEN.channel_shuffle.default: _shuffled,
    }


def _rolled(rule: Rule, x: torch.Tensor, shifts: list[int], dims: Sequence[int] = ()) -> Any:
    """Trace a roll: images keep their order, except in a roll of all elements in a row."""
    if not _is_image(x):
        return rule(x, shifts, dims)
    made = _ATEN.roll.default(x.contiguous(), shifts, dims)
    return made.contiguous(memory_format=_IMAGES[x.ndim]) if dims else made


def _stacked(rule: Rule, parts: list[torch.Tensor], dim: int = 0) -> Any:
    """Trace a stack: of images, along one of their axes, it is that axis of their `cat`, in two."""
    axis = dim % (parts[0].ndim + 1)
    if axis == parts[0].ndim or not all(map(_is_image, parts)):
        return rule(parts, dim)
    return _ATEN.cat.default(parts, axis).unflatten(axis, (len(parts), -1))


def _is_image(x: torch.Tensor) -> bool:
    """Return whether a tensor has its channels last in memory, and is not in row-major order."""
    image = _IMAGES.get(x.ndim)
    return image is not None and not x.is_contiguous() and x.is_contiguous(memory_format=image)


def _shuffled(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Trace a shuffle of channels, which keeps the order of images."""
    batch, channels, *sizes = x.shape
    apart = x.reshape(batch, groups, channels // groups, *sizes).transpose(1, 2)
    made = apart.reshape(x.shape).contiguous()
    image = _IMAGES.get(x.ndim)
    if image is not None and x.is_contiguous(memory_format=image):
        return made.contiguous(memory_format=image)
    return made


def _ordered(op: Any, rule: Rule | None, x: Any, *rest: Any, **named: Any) -> Any:
    """Trace an operator with operands in the order that its kernel gives the result."""
    wanted = _moved(op, x)
    if wanted is not None:
        return op(wanted, *rest, **named)
    return NotImplemented if rule is None else rule(x, *rest, **named)


def _moved(op: Any, x: torch.Tensor | list[torch.Tensor]) -> object:
    """Return an operand, or several, in another order; None if they have the right one."""
    several = x if isinstance(x, list) else [x]
    image = None if op in _LOSE_CHANNELS_LAST else _IMAGES.get(several[0].ndim)
    if image is not None and all(each.is_contiguous(memory_format=image) for each in several):
        return None
    if all(each.is_contiguous() for each in several):
        return None
    moved = [each.contiguous() for each in several]
    return moved if isinstance(x, list) else moved[0]


def _transform(x: torch.Tensor, dim: list[int], normalization: int, onesided: bool) -> Any:
    """Trace the transform along several axes as one after the other; they are the innermost."""
    if len(dim) == 1:
        return NotImplemented
    real = _ATEN._fft_r2c(x, dim[-1:], normalization, onesided)
    made = _ATEN._fft_c2c(real, dim[:-1], normalization, True)
    lead = sorted((i for i in range(x.ndim) if i not in dim), key=lambda i: -x.stride(i))
    order = [*lead, *dim]
    return made.permute(order).contiguous().permute([order.index(i) for i in range(x.ndim)])
