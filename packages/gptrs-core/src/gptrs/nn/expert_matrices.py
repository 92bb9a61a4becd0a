"""The matrices of all experts of a mixture as one weight, floats or quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gptrs import functionals as F
from gptrs.backend.sharding import Axes
from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.checkpoint.params import Factors, Params
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor, dequantized
from gptrs.ir import dtypes
from gptrs.nn.layers import Module


class ExpertMatrices(Module):
    """Multiplies each row by the matrix of its expert: [R, I] -> [R, O].

    A quantized weight is kept as stored: only matrices chosen by a row are decoded to floats, one
    at a time, unless the backend has a kernel for their codes.
    """

    def __init__(
        self,
        weight: Tensor | None,
        quantized: tuple[QuantizedTensor, Mapping[Part, Tensor]] | None,
        *,
        turned: bool = False,
        low_rank: Factors | None = None,
    ) -> None:
        """Take a float weight [G, O, I], or [G, I, O] if `turned`, or a quantized one.

        `low_rank` is the product of an adapter, as `Params.expert_low_rank` returns it.
        """
        self.weight = weight
        self.low_rank = [*(low_rank or ())]
        self.parts: dict[Part, Tensor] = {} if quantized is None else dict(quantized[1])
        self._form = None if quantized is None else _of_one(quantized[0])
        self._turned = turned

    @classmethod
    def joined(
        cls,
        params: Params,
        name: str,
        experts: int,
        inputs: int,
        outputs: int,
        low_rank: Factors | None = None,
    ) -> ExpertMatrices:
        """Return matrices stored as one weight [G, I, O].

        A quantized weight is kept as stored on any backend. CheckpointError as `Params.tensor`.
        """
        shape = (experts, inputs, outputs)
        found = params.stored_parts(name, shape)
        weight = params.stacked_whole(name, shape) if found is None else None
        return cls(weight, found, turned=True, low_rank=low_rank)

    @classmethod
    def whole(
        cls,
        params: Params,
        name: str,
        experts: int,
        inputs: int,
        outputs: int,
        low_rank: Factors | None = None,
    ) -> ExpertMatrices:
        """Return matrices stored as one weight [G, O, I]. CheckpointError as `Params.tensor`."""
        weight = params.stacked_whole(name, (experts, outputs, inputs))
        return cls(weight, None, low_rank=low_rank)

    @classmethod
    def of_each(
        cls,
        params: Params,
        names: Sequence[str],
        inputs: int,
        outputs: int,
        axes: Axes | None = None,
        low_rank: Factors | None = None,
    ) -> ExpertMatrices:
        """Return matrices stored as separate weights [O, I].

        Weights that are quantized alike are kept so if the backend reads them. `axes` names the
        axes of each matrix. CheckpointError as `Params.tensor`.
        """
        shape = (outputs, inputs)
        found = params.stacked_parts(names, shape, axes)
        weight = params.stacked(names, shape, axes) if found is None else None
        return cls(weight, found, low_rank=low_rank)

    def __call__(self, x: Tensor, groups: Tensor) -> Tensor:
        """Multiply row r of `x` with matrix `groups[r]`, integers [R]."""
        found = self._product(x, groups)
        if not self.low_rank:
            return found
        a, b = (F.cast(each, x.dtype) for each in self.low_rank)
        return found + F.grouped_linear(F.grouped_linear(x, a, groups), b, groups)

    def _product(self, x: Tensor, groups: Tensor) -> Tensor:
        if self.weight is not None:
            matrices = F.swap_axes(self.weight, 1, 2) if self._turned else self.weight
            return F.grouped_linear(x, F.cast(matrices, x.dtype), groups)
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
