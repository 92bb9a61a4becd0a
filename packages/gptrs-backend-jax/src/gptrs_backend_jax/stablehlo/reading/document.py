"""Modules as a JSON document and the bytes of constants, for exchange between processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
from jax import export as _export

from gptrs.api import ModelError, UnsupportedError
from gptrs_backend_jax.stablehlo.reading.mlir_module import parsed
from gptrs_backend_jax.stablehlo.reading.module import (
    Attribute,
    Block,
    ConstantArray,
    Operation,
    StableHlo,
    ValueType,
    shown,
)

_ALIGNMENT: Final = 64
DOCUMENT: Final = "module.json"
CONSTANTS: Final = "constants.bin"
ERROR: Final = "error.json"
"""The files in a folder: a module and its constants, or an error."""


def write_module(module: StableHlo, document: BinaryIO, constants: BinaryIO) -> None:
    """Write a module to two files."""
    writer = _Writer(constants)
    made = {
        "functions": {name: writer.block(each) for name, each in module.functions.items()},
        "inputs": module.inputs,
        "outputs": module.outputs,
        "sizes": [[number, axis, name] for (number, axis), name in module.sizes.items()],
    }
    document.write(json.dumps(made).encode())


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._end = 0

    def block(self, block: Block) -> dict[str, object]:
        return {
            "params": block.params,
            "types": [_type(each) for each in block.types],
            "operations": [self.operation(each) for each in block.operations],
            "results": block.results,
        }

    def operation(self, operation: Operation) -> dict[str, object]:
        return {
            "name": operation.name,
            "operands": operation.operands,
            "results": operation.results,
            "types": [_type(each) for each in operation.types],
            "attributes": {k: self.attribute(v) for k, v in operation.attributes.items()},
            "regions": [self.block(each) for each in operation.regions],
        }

    def attribute(self, held: Attribute) -> object:
        if isinstance(held, ConstantArray):
            self._file.write(bytes(-self._end % _ALIGNMENT))
            start = self._end + -self._end % _ALIGNMENT
            data = np.ascontiguousarray(held.array).tobytes()
            self._file.write(data)
            self._end = start + len(data)
            return {"constant": [_type(held.type), start, len(data), held.array.ndim == 0]}
        if isinstance(held, dict):
            return {"dictionary": {key: self.attribute(each) for key, each in held.items()}}
        return [self.attribute(each) for each in held] if isinstance(held, list) else held


def _type(type_: ValueType) -> list[object]:
    return [type_.element, type_.shape]


def read_module(document: bytes, constants: np.ndarray) -> StableHlo:
    """Read a module back; its large constants are views of `constants`."""
    held = cast("dict[str, Any]", json.loads(document))
    reader = _Reader(constants)
    return StableHlo(
        {str(name): reader.block(each) for name, each in held["functions"].items()},
        tuple(map(str, held["inputs"])),
        tuple(map(str, held["outputs"])),
        {(int(number), int(axis)): str(name) for number, axis, name in held["sizes"]},
    )


class _Reader:
    def __init__(self, constants: np.ndarray) -> None:
        self._constants = constants

    def block(self, held: Mapping[str, Any]) -> Block:
        return Block(
            _numbers(held["params"]),
            tuple(map(_typed, held["types"])),
            tuple(self.operation(each) for each in held["operations"]),
            _numbers(held["results"]),
        )

    def operation(self, held: Mapping[str, Any]) -> Operation:
        return Operation(
            str(held["name"]),
            _numbers(held["operands"]),
            _numbers(held["results"]),
            tuple(map(_typed, held["types"])),
            {str(key): self.attribute(each) for key, each in held["attributes"].items()},
            tuple(self.block(each) for each in held["regions"]),
        )

    def attribute(self, held: Any) -> Attribute:
        if isinstance(held, list):
            return [self.attribute(each) for each in cast("list[Any]", held)]
        if not isinstance(held, dict):
            return cast("Attribute", held)
        if "dictionary" in held:
            entries = cast("dict[str, Any]", held["dictionary"])
            return {key: self.attribute(each) for key, each in entries.items()}
        type_, start, length, is_splat = cast("list[Any]", held["constant"])
        made = _typed(type_)
        data = self._constants[int(start) : int(start) + int(length)]
        shape = () if is_splat else tuple(dim or 0 for dim in made.shape or ())
        return ConstantArray(made, data.view(made.dtype.numpy).reshape(shape))


def _numbers(held: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(each) for each in held)


def _typed(held: Sequence[Any]) -> ValueType:
    element, shape = held
    dims = None if shape is None else tuple(None if x is None else int(x) for x in shape)
    return ValueType(str(element), dims)


# StableHLO files are read by a separate process, which contains crashes of the parser.


MAX_BYTES: Final = 2**31
"""Most bytes of a file that MLIR accepts."""
_SECONDS: Final = 300
_MODULE: Final = "gptrs_backend_jax.stablehlo.reading.child"


def read_file(path: str | os.PathLike[str]) -> StableHlo:
    """Return the module in a file: text or bytecode of MLIR, or an artifact of `jax.export`.

    Raises ModelError for files that are missing, too large, damaged, or none of these;
    UnsupportedError for modules that cannot be converted.
    """
    source, name = Path(path), shown(os.path.basename(path))
    if not source.is_file():
        raise ModelError(f"{os.fspath(path)!a} is not a file")
    size = source.stat().st_size
    if not 0 < size <= MAX_BYTES:
        raise ModelError(f"`{name}` has {size} bytes, 1 to {MAX_BYTES} are read")
    with tempfile.TemporaryDirectory() as folder:
        code = _run(source, folder)
        where = Path(folder)
        if (where / ERROR).exists():
            raise _error(name, where / ERROR)
        if code != 0:
            raise ModelError(f"`{name}` is damaged: MLIR's reader ended by {_end(code)}")
        constants = np.fromfile(where / CONSTANTS, np.uint8)
        constants.flags.writeable = False
        return read_module((where / DOCUMENT).read_bytes(), constants)


def _run(source: Path, folder: str) -> int | None:
    """Return the exit code of the process that reads a file; None if it took too long."""
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    try:
        return subprocess.run(
            [sys.executable, "-m", _MODULE, os.path.abspath(source), folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def _error(name: str, path: Path) -> ModelError | UnsupportedError:
    held = cast("dict[str, str | None]", json.loads(path.read_text()))
    kind = UnsupportedError if held["kind"] == "unsupported" else ModelError
    return kind(f"`{name}` is not read: {held['message']}", hint=held["hint"])


def _end(code: int | None) -> str:
    if code is None:
        return f"the limit of {_SECONDS} s"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# The module in the bytes of a file: StableHLO or an artifact of `jax.export`.


_BYTECODE: Final = b"ML\xefR"
_TEXT: Final = (b"module", b"#", b"//", b"func.func", b'"builtin.module"', b"{")


def read_artifact(data: bytes) -> StableHlo:
    """Return the module in bytecode, text, or an artifact of `jax.export`, by the first bytes.

    Raises ModelError if it is damaged or none of them; UnsupportedError if it cannot be converted.
    """
    if data.startswith(_BYTECODE) or data.lstrip()[:20].startswith(_TEXT):
        return parsed(data)
    exported = _exported(data)
    if exported.nr_devices != 1:
        raise UnsupportedError(f"it is for {exported.nr_devices} devices; only one is supported")
    module = parsed(exported.mlir_module_serialized, free_sizes(exported))
    if len(module.inputs) != len(exported.module_kept_var_idx):
        raise UnsupportedError("it is for several platforms", hint="export it for one of them")
    return module


def _exported(data: bytes) -> Any:
    try:
        return cast("Any", _export).deserialize(bytearray(data))
    except ImportError as error:
        raise UnsupportedError(
            "it is not MLIR text or bytecode; files of jax.export need `flatbuffers`",
            hint="pip install flatbuffers",
        ) from error
    except Exception as error:
        raise ModelError(
            "it is neither a StableHLO module nor a file of jax.export:"
            f" {shown(error) or 'damaged'}"
        ) from error


def free_sizes(exported: Any) -> dict[tuple[int, int], str]:
    """Return the names of free sizes by (input of the module, axis)."""
    found: dict[tuple[int, int], str] = {}
    for position, number in enumerate(exported.module_kept_var_idx):
        for axis, dim in enumerate(exported.in_avals[number].shape):
            if not isinstance(dim, int):
                found[position, axis] = str(dim)
    return found
