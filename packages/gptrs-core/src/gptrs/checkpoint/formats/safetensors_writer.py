"""Writing safetensors files tensor by tensor, in memory that does not grow with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor, write_data
from gptrs.checkpoint.formats.safetensors_header import DTYPES
from gptrs.errors import UsageError

_TAG_OF = {dtype: tag for tag, dtype in DTYPES.items()}
_ALIGNMENT = 8


def write_safetensors(
    file: BinaryIO, tensors: Sequence[OutgoingTensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the file of these tensors, those of the widest elements first, so that all are aligned.

    UsageError for a dtype or a name that the format does not have, before anything is written.
    """
    for tensor in tensors:
        require_storable(tensor)
    ordered = sorted(tensors, key=lambda tensor: -tensor.type.dtype.itemsize)
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for tensor in ordered:
        end = position + tensor.type.nbytes
        header[tensor.name] = {
            "dtype": _TAG_OF[tensor.type.dtype],
            "shape": list(tensor.type.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in ordered:
        write_data(file, tensor)


def require_storable(tensor: OutgoingTensor) -> None:
    """UsageError unless a safetensors file can hold a tensor of that name and type."""
    if tensor.name == "__metadata__":
        raise UsageError("a tensor in a `.safetensors` file cannot be called `__metadata__`")
    if tensor.type.dtype not in _TAG_OF:
        raise UsageError(
            f"a `.safetensors` file cannot hold `{tensor.type}`:"
            f" it has no dtype {tensor.type.dtype}",
            hint="write a `.gptrsten` file, which holds every dtype",
        )
