"""Resizing by factors, as torch's kernels compute it.

With a factor such as 1.3, a size may stay as it is. torch's kernels then keep the axis, while its
decompositions resample it by the factor. Sizes that are symbols in a graph of Dynamo are left as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

import torch
from torch import fx
from torch._decomp import decompositions

_ATEN: Any = torch.ops.aten
_KINDS: Final = {
    ("linear", 3): _ATEN.upsample_linear1d,
    ("bilinear", 4): _ATEN.upsample_bilinear2d,
    ("trilinear", 5): _ATEN.upsample_trilinear3d,
    ("nearest", 4): _ATEN.upsample_nearest2d,
}
"""The operators whose kernels do so, by the mode and the rank of the input."""
_OF_BYTES: Final = ("bilinear", "bicubic")
_NEAREST: Final = _ATEN.upsample_nearest2d
_Size = int | torch.SymInt


def resizing_rules(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return decompositions for these operators in exported programs, by those of the table."""

    def rule(kind: Any) -> Callable[..., Any]:
        def resized(x: torch.Tensor, size: Sequence[_Size] | None, *rest: Any) -> Any:
            *align, factors = rest
            found = cast("Any", decompositions).upsample_compute_output_size(
                x.size(), size, factors
            )
            scales = _scales(kind, x.shape[2:], found, factors or [None] * len(found))
            return table[kind.default](x, found, *align, *scales)

        return resized

    rules = {kind.vec: rule(kind) for kind in _KINDS.values()}
    for mode in _OF_BYTES:
        kind = getattr(_ATEN, f"upsample_{mode}2d")
        for overload in (kind.vec, kind.default):
            rules[overload] = partial(_resized, mode, {**table, **rules}[overload])
    return rules


def _resized(
    mode: str,
    rule: Callable[..., Any],
    x: torch.Tensor,
    size: Sequence[_Size] | None,
    align: bool,
    *factors: Any,
) -> Any:
    """Return an image by a decomposition, or by torch's own operator if it consists of bytes."""
    if x.dtype is not torch.uint8:
        return rule(x, size, align, *factors)
    # The overload `vec` has a size or a list of factors, the other one both, each on its own.
    given = factors[0] if len(factors) == 1 else None if None in factors else factors
    return torch.ops.gptrs.resize_bytes(x, size, given or None, mode, align, False)


def keep_sizes(module: fx.GraphModule) -> None:
    """Let calls of `interpolate` in a Dynamo graph keep the axes that do not change."""
    for node in module.graph.nodes:
        if node.target is torch.nn.functional.interpolate:
            _keep_sizes(node)
    module.recompile()


def _keep_sizes(node: fx.Node) -> None:
    names = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    x, factors = cast("Any", given["input"]).meta["example_value"], given.get("scale_factor")
    mode, recomputes = cast("str", given.get("mode", "nearest")), given.get(names[-1])
    if given.get("antialias"):
        return
    count = x.dim() - 2
    several = isinstance(factors, (list, tuple))
    each = list(cast("Sequence[float]", factors)) if several else [cast("float", factors)] * count
    if x.dtype is torch.uint8 and mode in _OF_BYTES:
        size = given.get("size")
        size = [size] * count if isinstance(size, (int, fx.Node)) else size
        align = bool(given.get("align_corners"))
        node.target = torch.ops.gptrs.resize_bytes.default
        found = None if factors is None else each
        node.args, node.kwargs = (given["input"], size, found, mode, align, bool(recomputes)), {}
        return
    kind = _KINDS.get((mode, x.dim()))
    if kind is None or factors is None or recomputes:
        return
    sizes = node.meta["example_value"].shape[2:]
    if not all(isinstance(number, (int, float)) for number in (*x.shape[2:], *each)):
        return
    scales = _scales(kind, x.shape[2:], sizes, each)
    if scales != each:
        align = () if kind is _NEAREST else (bool(given.get("align_corners")),)
        node.target = kind.default
        node.args, node.kwargs = (given["input"], list(sizes), *align, *scales), {}


def _scales(
    kind: Any, sizes: Sequence[_Size], results: Sequence[_Size], scales: Sequence[float | None]
) -> list[float | None]:
    """Return the factors by which axes are resampled; None for the quotient of their sizes."""
    own = zip(sizes, results, scales, strict=True)
    return [
        # Whole factors are the quotient: symbols need not be compared.
        None
        if scale is not None
        and scale % 1
        and (result == size or (kind is _NEAREST and result == 2 * size))
        else scale
        for size, result, scale in own
    ]
