"""Parameter ids: the formulas, recomputed here, and namespaces that never repeat."""

from __future__ import annotations

import threading

import pytest
from blake3 import blake3

from gptrs.checkpoint.parameter_ids import base_param_id, new_namespace, param_key
from gptrs.errors import UsageError


@pytest.mark.parametrize("name", ["", "wte.weight", "größe", "h.11.attn.c_attn.bias", "x" * 5000])
def test_base_ids(name: str) -> None:
    expected = int.from_bytes(blake3(name.encode()).digest()[:16], "little")
    assert base_param_id(name) == expected


def test_a_known_base_id() -> None:
    # BLAKE3 of no bytes, from the published test vectors of the hash.
    published = bytes.fromhex("af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262")
    assert base_param_id("") == int.from_bytes(published[:16], "little")


@pytest.mark.parametrize("namespace", [0, 1, 2**64, 2**128 - 1])
@pytest.mark.parametrize("base_id", [0, 255, 2**127 + 3])
def test_keys(namespace: int, base_id: int) -> None:
    hasher = blake3()
    hasher.update(b"gpt-rs:param-key:v1")
    hasher.update(namespace.to_bytes(16, "little"))
    hasher.update(base_id.to_bytes(16, "little"))
    assert param_key(namespace, base_id) == int.from_bytes(hasher.digest()[:16], "little")


@pytest.mark.parametrize("number", [-1, 2**128])
def test_keys_of_numbers_out_of_range(number: int) -> None:
    with pytest.raises(UsageError, match=r"in \[0, 2\^128\)"):
        param_key(number, 0)
    with pytest.raises(UsageError):
        param_key(0, number)


def test_namespaces_differ_across_threads() -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.extend(new_namespace() for _ in range(500)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2000
