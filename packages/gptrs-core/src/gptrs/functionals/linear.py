"""Matrix products and the affine map."""

from __future__ import annotations

from typing import Literal

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.matching import pattern_example
from gptrs.functionals.operands import (
    converted,
    expand,
    require_dtype,
    require_integer,
    require_same_dtype,
    require_shape,
)
from gptrs.ir import dtypes
from gptrs.ir.shapes import broadcast_shapes


@functional
def matmul(lhs: Tensor, rhs: Tensor) -> Tensor:
    """The matrix product by NumPy's rules: [B.., M, K] @ [B.., K, N] -> [B.., M, N].

    A vector on the left counts as [1, K], on the right as [K, 1], and the added axis is dropped
    from the result. Batch dims broadcast. UsageError for scalars or when the K differ.
    """
    require_same_dtype("matmul", lhs, rhs)
    if not lhs.rank or not rhs.rank or lhs.shape[-1] != rhs.shape[max(rhs.rank - 2, 0)]:
        raise UsageError(
            f"`matmul` of `{lhs.type}` and `{rhs.type}`: the last axis of the left"
            " must match the one before the last of the right"
        )
    batch = broadcast_shapes([lhs.shape[:-2], rhs.shape[:-2]], "`matmul`")
    if not rhs.shape[:-2]:
        return primitives.dot_general(lhs, rhs, ([-1], [max(rhs.rank - 2, 0)]))
    if lhs.rank == 1:
        lhs = expand(lhs, (*batch, lhs.shape[0]))
        axes = range(len(batch))
        return primitives.dot_general(lhs, rhs, ([-1], [-2]), (axes, axes))
    lhs = expand(lhs, batch + lhs.shape[-2:])
    rhs = expand(rhs, batch + rhs.shape[-2:])
    axes = range(len(batch))
    return primitives.dot_general(lhs, rhs, ([-1], [-2]), (axes, axes))


@pattern_example(x="f32[2, 3]", weight="f32[4, 3]", bias="f32[4]", layout="out_in")
@pattern_example(x="f32[2, 3]", weight="f32[3, 4]", bias="f32[4]", layout="in_out")
@pattern_example(x="f32[2, 3]", weight="f32[4, 3]", layout="out_in")
@pattern_example(x="f32[2, 3]", weight="f32[3, 4]", layout="in_out")
@functional(composite=True)
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    layout: Literal["out_in", "in_out"] = "out_in",
) -> Tensor:
    """`x W^T + b`: x [..., I], bias [O] -> [..., O], all of one element type.

    `weight` is [O, I] (torch's `Linear`) by default, [I, O] (GPT-2's `Conv1D`) with
    `layout="in_out"`.
    """
    if layout not in ("out_in", "in_out"):
        raise UsageError(f'`linear` knows layout="out_in" and "in_out", got {layout!r}')
    require_same_dtype("linear", x, weight, *([] if bias is None else [bias]))
    contracted = 1 if layout == "out_in" else 0
    if weight.rank != 2 or x.rank == 0 or x.shape[-1] != weight.shape[contracted]:
        raise UsageError(
            f"`linear` cannot map `{x.type}` with a weight of `{weight.type}` ({layout})"
        )
    product = primitives.dot_general(x, weight, ([-1], [contracted]))
    if bias is None:
        return product
    require_shape("linear", "bias", bias, product.shape[-1:])
    return primitives.add(product, expand(bias, product.shape))


# Products of each row with a matrix of its own choice: the experts of a mixture.


_FLOATS = (dtypes.f16, dtypes.bf16, dtypes.f32, dtypes.f64)


@functional(composite=True)
def grouped_linear(x: Tensor, weight: Tensor, groups: Tensor) -> Tensor:
    """Row r of x times the transposed matrix `weight[groups[r]]`: [R, I], [G, O, I] -> [R, O].

    Only the matrices that `groups` [R], integers, names are read (the experts of Shazeer et al.
    2017). `x` and `weight` are of one type of f16, bf16, f32 and f64. A group outside [0, G) raises
    ExecutionError when it runs. UsageError for operands that do not fit.
    """
    require_dtype("grouped_linear", _FLOATS, x=x, weight=weight)
    require_integer("grouped_linear", groups=groups)
    if x.rank != 2 or weight.rank != 3 or x.shape[1] != weight.shape[2] or x.dtype != weight.dtype:
        raise UsageError(
            "`grouped_linear` needs x [R, I] and weight [G, O, I] of one element type,"
            f" got `{x.type}` and `{weight.type}`"
        )
    require_shape("grouped_linear", "groups", groups, (x.shape[0],))

    def row(values: Tensor, group: Tensor) -> Tensor:
        return primitives.dot_general(primitives.take(weight, group), values, ([1], [0]))

    _, (found,) = primitives.scan(row, [], [x, converted(groups, dtypes.si64)])
    return found
