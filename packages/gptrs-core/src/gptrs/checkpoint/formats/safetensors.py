"""Reading safetensors files through a memory mapping: tensors are views that copy nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from gptrs.checkpoint.files.open_file import open_regular, read_at, resolved
from gptrs.checkpoint.formats.foreign_files import (
    FIRST_BYTES,
    OutgoingTensor,
    require_no_pointer,
    write_data,
)
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import (
    DAMAGED,
    DTYPES,
    MAX_HEADER_BYTES,
    Header,
    parse_header,
)
from gptrs.errors import CheckpointError, UsageError
from gptrs.quoting import quoted


class SafetensorsFile(MappedTensors):
    """An open safetensors file; `with SafetensorsFile.open(path) as file` closes it at the end."""

    def __init__(self, path: Path, descriptor: int, size: int, header: Header) -> None:
        super().__init__(path, descriptor, size, header.entries)
        self._metadata = header.metadata

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, shown_as: Path | None = None) -> SafetensorsFile:
        """Map the file and check its whole header; CheckpointError describes any fault.

        `shown_as` is the path to speak of where `path` is only where a link led to.
        """
        named = shown_as or Path(path)
        descriptor = open_regular(resolved(path, CheckpointError), CheckpointError)
        try:
            header, size = _read_header(descriptor, str(named))
            return cls(named, descriptor, size, header)
        except OSError as problem:
            raise CheckpointError(f"cannot read {quoted(str(named), 200)}: {problem}") from problem
        finally:
            os.close(descriptor)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings under `__metadata__`."""
        return MappingProxyType(self._metadata)


def _read_header(descriptor: int, file: str) -> tuple[Header, int]:
    """Return the checked header and the size of the file."""
    size = os.fstat(descriptor).st_size
    start = read_at(descriptor, FIRST_BYTES, 0)
    require_no_pointer(file, start, CheckpointError)
    prefix = start[:8]
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8:
        problem = f"has {size} bytes, a safetensors file starts with 8 bytes of header length"
    elif length > MAX_HEADER_BYTES:
        problem = f"declares a header of {length} bytes, the limit is {MAX_HEADER_BYTES}"
    elif length > size - 8:
        problem = f"declares a header of {length} bytes, but has only {size - 8} after its length"
    else:
        text = read_at(descriptor, length, 8)
        if len(text) == length:
            return parse_header(text, file, size - 8 - length), size
        problem = "became shorter while it was read"
    raise CheckpointError(f"{quoted(file, 200)} {problem}", hint=DAMAGED)


# Writing safetensors files tensor by tensor, in memory that does not grow with them.


_TAG_OF = {dtype: tag for tag, dtype in DTYPES.items()}
_ALIGNMENT = 8


def write_safetensors(
    file: BinaryIO, tensors: Sequence[OutgoingTensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file of these tensors, widest elements first, so that all are aligned.

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
