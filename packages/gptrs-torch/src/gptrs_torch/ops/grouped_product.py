"""Products whose groups of rows, columns or terms have matrices of their own: `_grouped_mm`."""

from __future__ import annotations

from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import dtypes
from gptrs_torch.node import Node
from gptrs_torch.registry import converts
from gptrs_torch.values import converted, is_number


@converts("_grouped_mm")
def grouped_product(
    node: Node,
    x: Tensor,
    y: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: object = None,
) -> Tensor:
    """Return products of groups; `offs` holds where each ends on the axis that they divide.

    Of matrices x [G, M, K] and y [G, K, N] each is multiplied with its own. Else groups divide the
    rows of x [M, K], the columns of y [K, N], or, of two matrices, what is summed up.
    """
    del out_dtype
    if bias is not None:
        node.refuse("has a bias")
    if offs is None:
        return converted(F.matmul(x, y), node.dtype)
    ends = converted(offs, dtypes.si64)
    if x.rank == 2 and y.rank == 3:
        made = F.grouped_linear(x, F.transpose(y, (0, 2, 1)), _groups(node, ends, x.shape[0]))
    elif x.rank == 3:
        turned = F.transpose(y, (1, 0))
        made = F.grouped_linear(turned, x, _groups(node, ends, y.shape[1]))
        made = F.transpose(made, (1, 0))
    else:
        made = _sums(node, x, y, ends)
    return converted(made, node.dtype)


def _groups(node: Node, ends: Tensor, count: int) -> Tensor:
    """Return the group of each of `count` places: how many groups end before or at it.

    Places behind the last group count to it: torch leaves their results open.
    """
    if not is_number(count):
        node.refuse("has a free count of rows")
    places = F.expand_dims(F.arange(count), 1)
    groups = F.sum(F.cast(F.greater_equal(places, ends), dtypes.si64), 1)
    return F.minimum(groups, ends.shape[0] - 1)


def _sums(node: Node, x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """Return x [M, K] times y [K, N] for each group of terms, [G, M, N]."""
    groups = _groups(node, ends, x.shape[1])
    within = F.less(F.arange(x.shape[1]), ends[ends.shape[0] - 1])
    names = F.expand_dims(F.expand_dims(F.arange(ends.shape[0]), 1), 1)
    own = F.logical_and(F.equal(groups, names), within)
    return F.matmul(F.where(own, F.expand_dims(x, 0), F.zeros([], x.dtype)), y)
