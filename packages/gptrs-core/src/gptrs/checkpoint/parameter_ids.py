"""Stable 128-bit ids of parameters: by name, and by name within one loaded model."""

from __future__ import annotations

import itertools
import threading

from blake3 import blake3

from gptrs.errors import CheckpointError, UsageError
from gptrs.quoting import quoted

_KEY_DOMAIN = b"gpt-rs:param-key:v1"
_namespaces = itertools.count(1)
_namespaces_lock = threading.Lock()


def base_param_id(name: str) -> int:
    """The id of a dotted name: the first 16 bytes, little-endian, of BLAKE3 of its ASCII bytes."""
    if not name.isascii():
        raise CheckpointError(
            f"the tensor name {quoted(name)} is not ASCII", hint="rename the tensor in the file"
        )
    return _first_128_bits(name.encode("ascii"))


def param_key(namespace: int, base_id: int) -> int:
    """The id of a parameter of one loaded model, under which backends keep what they derive.

    The first 16 bytes, little-endian, of BLAKE3 of a domain tag, the namespace and the base id,
    both as 16 bytes little-endian. UsageError for a number that is not in [0, 2^128).
    """
    for number in (namespace, base_id):
        if not 0 <= number < 1 << 128:
            raise UsageError(f"a parameter id must be in [0, 2^128), got {number:#x}")
    parts = (namespace.to_bytes(16, "little"), base_id.to_bytes(16, "little"))
    return _first_128_bits(_KEY_DOMAIN + b"".join(parts))


def new_namespace() -> int:
    """A namespace that no other call in this process returns."""
    with _namespaces_lock:
        return next(_namespaces)


def _first_128_bits(data: bytes) -> int:
    return int.from_bytes(blake3(data).digest(length=16), "little")
