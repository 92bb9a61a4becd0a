"""An optional protocol of backends that compute with quantized weights as they are."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gptrs.ir.tensor_type import TensorType


@runtime_checkable
class QuantizedWeightReader(Protocol):
    """A backend whose programs may take quantized weights as parameters.

    What reads them is `dequantize` or `dequantize_affine` of `unpack_bits`, the form in which
    `gptrs.checkpoint.quantized_tensor.dequantized` writes them. Other backends get such weights as
    f32, decoded once when they are loaded, and so with several times the memory.
    """

    def reads_quantized(self, codes: TensorType, bits: int, group_size: int) -> bool:
        """Return whether weights of these packed codes stay as they are, [.., O, I * bits / 8]."""
        ...
