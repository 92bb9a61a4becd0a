"""Writing safetensors files byte by byte, so that tests can write those no library would."""

from __future__ import annotations

import json
from pathlib import Path

F32_PAIR = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "I32", "shape": [1, 3], "data_offsets": [8, 20]},
}
"""A sound header over 20 bytes of data."""


def raw_bytes(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header (bytes as they are, anything else as JSON), not padded."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    declared = len(text) if length is None else length
    return declared.to_bytes(8, "little") + text + data


def write_raw(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """`raw_bytes` in a file."""
    path.write_bytes(raw_bytes(header, data, length))
    return path
