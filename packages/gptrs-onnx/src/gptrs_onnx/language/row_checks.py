"""Whether a step keeps its tokens apart: several texts share it, so only attention may mix them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gptrs.api.models import Tensor
from gptrs.ir.symbolic_dim import SymbolicDim, evaluated, symbols_of
from gptrs_onnx.language.trials import UnrecognizedError
from gptrs_onnx.node import Node

_MIXING: Final = frozenset(
    (
        *("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "CumSum", "DFT", "GRU"),
        *("GlobalAveragePool", "GroupNormalization", "InstanceNormalization", "LSTM", "Loop"),
        *("MaxPool", "NonZero", "QLinearConv", "RNN", "ReverseSequence", "STFT", "Scan"),
        *("Compress", "Unique", "FusedConv", "Attention", "MultiHeadAttention", "QAttention"),
    )
)
"""Operators that combine several rows, or whose data decides the number of rows."""
_TWO: Final = frozenset(
    (
        *("MatMul", "FusedMatMul", "Gemm", "Einsum", "MatMulInteger", "Gather"),
        *("GatherElements", "GatherND", "ScatterElements", "ScatterND"),
    )
)
"""Operators that mix rows if two of their inputs have rows."""
_ALONG: Final = frozenset(
    (
        *("Softmax", "LogSoftmax", "Hardmax", "LayerNormalization", "RMSNormalization"),
        *("SimplifiedLayerNormalization", "Concat", "TopK", "LpNormalization"),
    )
)
"""Operators along the attribute `axis`; normalizations, from there to the last one."""


def require_separate_rows(
    node: Node, inputs: Sequence[tuple[Tensor, bool]], outputs: Sequence[Tensor]
) -> None:
    """Raise UnrecognizedError for a node that may mix the rows of tokens.

    `inputs` come with whether they have such rows.
    """
    rows = [x for x, has_rows in inputs if has_rows and _axes(x)]
    if not rows:
        return
    if node.op_type in _MIXING or (node.op_type in _TWO and len(rows) > 1):
        raise UnrecognizedError(f"{node} mixes tokens")
    if node.op_type in _ALONG:
        first = node.integer("axis", 1 if node.op_type == "Softmax" and node.version < 13 else -1)
        axis = first % rows[0].rank
        ends = axis + 1 if node.op_type in ("Concat", "TopK") else rows[0].rank
        whole = "Softmax" in node.op_type and node.version >= 13
        along = range(axis, axis + 1 if whole else ends)
        if any(each in _axes(x) for x in rows for each in along if each < x.rank):
            raise UnrecognizedError(f"{node} works along the tokens")
    for made in outputs:
        if not _is_proportional(made):
            raise UnrecognizedError(f"{node} changes the number of tokens")


def _axes(x: Tensor) -> list[int]:
    """Return the axes whose size depends on the number of tokens."""
    return [axis for axis, dim in enumerate(x.shape) if isinstance(dim, SymbolicDim)]


def _is_proportional(x: Tensor) -> bool:
    """Return whether a tensor has a fixed number of elements for each token."""
    sizes = [
        math.prod(evaluated(dim, dict.fromkeys(symbols_of([dim]), count)) for dim in x.shape)
        for count in (6, 12)
    ]
    return 2 * sizes[0] == sizes[1]
