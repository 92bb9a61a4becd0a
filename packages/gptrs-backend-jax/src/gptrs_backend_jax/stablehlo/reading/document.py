"""A module as a JSON document and the bytes of its constants: what a child process sends back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final, cast

import numpy as np

from gptrs_backend_jax.stablehlo.reading.module import (
    Attribute,
    Block,
    ConstantArray,
    Operation,
    StableHlo,
    ValueType,
)

_ALIGNMENT: Final = 64
DOCUMENT: Final = "module.json"
CONSTANTS: Final = "constants.bin"
ERROR: Final = "error.json"
"""The files of a folder: a module, its constants, and instead of both what is wrong."""


def write_module(module: StableHlo, document: BinaryIO, constants: BinaryIO) -> None:
    """Write a module to two files."""
    writer = _Writer(constants)
    made = {
        "functions": {name: writer.block(each) for name, each in module.functions.items()},
        "inputs": module.inputs,
        "outputs": module.outputs,
        "sizes": [[place, axis, name] for (place, axis), name in module.sizes.items()],
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
    """Return the module that was written; its large constants are views of `constants`."""
    held = cast("dict[str, Any]", json.loads(document))
    reader = _Reader(constants)
    return StableHlo(
        {str(name): reader.block(each) for name, each in held["functions"].items()},
        tuple(map(str, held["inputs"])),
        tuple(map(str, held["outputs"])),
        {(int(place), int(axis)): str(name) for place, axis, name in held["sizes"]},
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
