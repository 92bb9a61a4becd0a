"""Products of each row with a matrix of its own choice: the experts of a mixture."""

from __future__ import annotations

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.operands import converted, require_dtype, require_integer, require_shape
from gptrs.ir import dtypes

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
