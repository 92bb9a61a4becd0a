"""A tensor on its way into a file: its type, which comes first, and its elements, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import BinaryIO, Self

import numpy as np

from gptrs.checkpoint.formats.tensor_index import stored_bytes
from gptrs.errors import CheckpointError
from gptrs.ir.packed_int4 import pack_int4
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted


@dataclass(frozen=True)
class OutgoingTensor:
    """`parts` gives the elements in order, as arrays of any shape; it may be called again.

    All parts but the last have an even number of elements.
    """

    name: str
    type: TensorType
    parts: Callable[[], Iterable[np.ndarray]]

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> Self:
        """Return the outgoing tensor of an array in memory."""
        return cls(name, TensorType.of(array), lambda: (array,))

    def whole(self) -> np.ndarray:
        """Return the elements in one array."""
        parts = [np.ascontiguousarray(part).reshape(-1) for part in self.parts()]
        flat = parts[0] if len(parts) == 1 else np.concatenate([*parts, self._no_elements()])
        return flat.reshape(self.type.shape)

    def _no_elements(self) -> np.ndarray:
        return np.empty(0, self.type.dtype.numpy)


def write_data(file: BinaryIO, tensor: OutgoingTensor) -> int:
    """Write the elements, row-major, 4-bit integers packed two a byte, and return how many bytes.

    CheckpointError if the parts are not as many as the type says, which a reader could not tell.
    """
    written = 0
    for part in tensor.parts():
        packed = pack_int4(part) if tensor.type.dtype.bits == 4 else part
        dense = np.ascontiguousarray(packed, TensorType.of(packed).dtype.numpy)
        written += file.write(dense.reshape(-1).view(np.uint8).data)
    if written != stored_bytes(tensor.type):
        raise CheckpointError(
            f"tensor {quoted(tensor.name)} takes {stored_bytes(tensor.type)} bytes as"
            f" `{tensor.type}`, {written} were there to write"
        )
    return written
