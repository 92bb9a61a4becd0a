"""The matrices of all experts of a mixture as one weight, floats or quantized."""

from __future__ import annotations

from dataclasses import replace

from gptrs import functionals as F
from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Params
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor, dequantized
from gptrs.ir import dtypes
from gptrs.nn.module import Module


class ExpertMatrices(Module):
    """Each row times the matrix of its expert: [R, I] -> [R, O].

    The weight is [G, I, O] in the checkpoint. A quantized one stays as it is stored, on any
    backend: only the matrices that a row has chosen are brought to floats, one at a time.
    """

    def __init__(self, params: Params, name: str, experts: int, inputs: int, outputs: int) -> None:
        shape = (experts, inputs, outputs)
        found = params.stored_parts(name, shape)
        self.weight = params.stacked_whole(name, shape) if found is None else None
        self.parts: dict[Part, Tensor] = {} if found is None else dict(found[1])
        self._form = None if found is None else _of_one(found[0])

    def __call__(self, x: Tensor, groups: Tensor) -> Tensor:
        """Multiply row r of `x` with matrix `groups[r]`, integers [R]."""
        if self.weight is not None:
            matrices = F.cast(F.swap_axes(self.weight, 1, 2), x.dtype)
            return F.grouped_linear(x, matrices, groups)
        form, names = self._form, list(self.parts)
        assert form is not None, "a weight is whole or in parts"

        def row(values: Tensor, group: Tensor) -> Tensor:
            own = {name: primitives.take(self.parts[name], group) for name in names}
            matrix = dequantized(form, own.__getitem__, x.dtype)
            return primitives.dot_general(matrix, values, ([1], [0]))

        _, (found,) = primitives.scan(row, [], [x, F.cast(groups, dtypes.si64)])
        return found


def _of_one(quantized: QuantizedTensor) -> QuantizedTensor:
    """Return the form of one matrix [O, I] of many."""
    parts = {name: part.with_shape(part.shape[1:]) for name, part in quantized.parts.items()}
    return replace(quantized, shape=quantized.shape[1:], parts=parts, transposed=False)
