"""Stable 128-bit ids of parameters: of a name, and of a name within one loaded model."""

from __future__ import annotations

import itertools
import threading

from blake3 import blake3

from gptrs.errors import UsageError

_KEY_DOMAIN = b"gpt-rs:param-key:v1"
_namespaces = itertools.count(1)
_namespaces_lock = threading.Lock()


def base_param_id(name: str) -> int:
    """Return the first 16 bytes, little-endian, of BLAKE3 of the name in UTF-8."""
    return _first_128_bits(name.encode("utf-8", "surrogatepass"))


def param_key(namespace: int, base_id: int) -> int:
    """Return the cache key of a parameter, under which backends keep derived data.

    The first 16 bytes, little-endian, of BLAKE3 of a domain tag, the namespace of the loaded model
    and the base id, both as 16 bytes little-endian. UsageError for a number outside [0, 2^128).
    """
    for number in (namespace, base_id):
        if not 0 <= number < 1 << 128:
            raise UsageError(f"a parameter id must be in [0, 2^128), got {number:#x}")
    parts = (namespace.to_bytes(16, "little"), base_id.to_bytes(16, "little"))
    return _first_128_bits(_KEY_DOMAIN + b"".join(parts))


def new_namespace() -> int:
    """Return a number that no other call in this process returns."""
    with _namespaces_lock:
        return next(_namespaces)


def _first_128_bits(data: bytes) -> int:
    return int.from_bytes(blake3(data).digest(length=16), "little")
