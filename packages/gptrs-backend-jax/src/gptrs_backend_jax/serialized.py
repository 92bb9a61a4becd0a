"""Compiled programs as bytes: what XLA made, the errors of the program, and whom they are for."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import jax

from gptrs.api.backends import InputRole
from gptrs.api.programs import Program, print_program
from gptrs_backend_jax.client import Device, platform_version
from gptrs_backend_jax.devices import parallelism
from gptrs_backend_jax.walk import Message

_FORMAT = "gptrs-jax 1"
_DIGEST_BYTES = hashlib.sha256().digest_size
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class SerializedProgram:
    """The executable of XLA as JAX writes it, and the errors that the program may fail with."""

    code: bytes
    messages: Sequence[Message]

    def sealed(self, key: str) -> bytes:
        """Return it as bytes that hold under `key` only."""
        errors = [[message.text, message.is_unsigned] for message in self.messages]
        head = json.dumps(errors).encode()
        content = len(head).to_bytes(_LENGTH_BYTES, "little") + head + self.code
        return _seal(key, content) + content


def unsealed(data: bytes, key: str) -> SerializedProgram | None:
    """Return what was `sealed` under `key`, None for what is damaged or was under another one."""
    content = data[_DIGEST_BYTES:]
    if data[:_DIGEST_BYTES] != _seal(key, content):
        return None
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    errors = json.loads(content[_LENGTH_BYTES:start])
    return SerializedProgram(content[start:], [Message(*each) for each in errors])


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(f"{_FORMAT}\n{key}\n".encode() + content).digest()


def program_key(
    program: Program,
    roles: Sequence[InputRole],
    device: Device,
    options: Mapping[str, bool | str],
) -> str:
    """Return a digest of all that decides what XLA makes of a program, and where that runs."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("XLA_")}
    parts = (
        *(_FORMAT, jax.__version__, version("jaxlib"), _our_sources()),
        *(str(device), device.device_kind, platform_version(device)),
        *(_processor(), parallelism(device)),
        json.dumps([sorted(options.items()), sorted(settings.items())]),
        ",".join(role.value for role in roles),
        print_program(program),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def _our_sources() -> str:
    """Return a digest of the code of this package: a lowering may have changed."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _processor() -> str:
    """Return what the processor can do: code for one of a network may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
