"""Export of programs and models to StableHLO: JAX exports the function of the backend."""

from __future__ import annotations

import copy
import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax import export as _export
from msgspec.structs import force_setattr, replace
from typing_extensions import override

from gptrs.api import ModelError, UnsupportedError
from gptrs.api.backends import BackendSettings, require_supported
from gptrs.api.importers import OutgoingModel, atomic_file
from gptrs.api.programs import (
    Function,
    Instruction,
    Op,
    Program,
    Region,
    SymbolicDim,
    TensorType,
    Value,
    specialize,
    symbols,
)
from gptrs_backend_jax.backend import JaxBackend
from gptrs_backend_jax.client import all_types, without_places
from gptrs_backend_jax.devices import chosen_device
from gptrs_backend_jax.stablehlo.reading.module import is_name
from gptrs_backend_jax.walk import ProgramWalk, entered, left

# Programs with JAX's symbolic sizes instead of symbols, for tracing only.


def sized(program: Program, sizes: Mapping[int, Any]) -> Program:
    """Return `program` with JAX's symbolic size `sizes[n]` for each `?n` in types and ops.

    Types are not verified again: JAX checks the shapes while it traces.
    """
    if not sizes:
        return program
    functions = tuple(Function(f.name, _region(f.body, sizes)) for f in program.functions)
    return Program(functions)


def _region(region: Region, sizes: Mapping[int, Any]) -> Region:
    values: dict[Value, Value] = {}

    def define(old: Sequence[Value]) -> tuple[Value, ...]:
        new = tuple(Value(_type(value.type, sizes), value.name) for value in old)
        values.update(zip(old, new, strict=True))
        return new

    params = define(region.params)
    steps: list[Instruction] = []
    for step in region.instructions:
        operands = tuple(values[operand] for operand in step.operands)
        regions = tuple(_region(each, sizes) for each in step.regions)
        steps.append(Instruction(_op(step.op, sizes), operands, define(step.results), regions))
    return Region(params, tuple(steps), tuple(values[value] for value in region.results))


def _type(type_: TensorType, sizes: Mapping[int, Any]) -> TensorType:
    if type_.is_static:
        return type_
    # Bypasses the constructor: it compares the size of the tensor, which JAX's sizes cannot do.
    made = copy.copy(type_)
    force_setattr(made, "shape", tuple(_size(dim, sizes) for dim in type_.shape))
    return made


def _op(op: Op, sizes: Mapping[int, Any]) -> Op:
    changed: dict[str, Any] = {}
    for name in op.attribute_types:
        held: object = getattr(op, name)
        made = _attribute(held, sizes)
        if made is not held:
            changed[name] = made
    return replace(cast("Any", op), **changed) if changed else op


def _attribute(held: object, sizes: Mapping[int, Any]) -> object:
    if isinstance(held, SymbolicDim):
        return _size(cast("int", held), sizes)
    if isinstance(held, TensorType):
        return _type(held, sizes)
    if isinstance(held, tuple):
        parts = cast("tuple[object, ...]", held)
        made = tuple(_attribute(part, sizes) for part in parts)
        return made if any(a is not b for a, b in zip(made, parts, strict=True)) else parts
    return held


def _size(dim: int, sizes: Mapping[int, Any]) -> Any:
    return dim.substitute(sizes) if isinstance(dim, SymbolicDim) else dim


_jax = cast("Any", jax)
_exports = cast("Any", _export)
_LOG = logging.getLogger("gptrs")
PLATFORMS: Final = ("cpu",)
"""Platforms of an artifact; StableHLO itself is the same for all of them."""
_MAX_BYTES: Final = 2**31 - 1
_EXAMPLE: Final = 3
"""A stand-in for free sizes, to check that each op has a lowering."""


def export(model: OutgoingModel, path: Path) -> list[Path]:
    """Write a program as one StableHLO module with its weights; return the file.

    `.mlir` is text, `.jaxexport` an artifact of `jax.export`, anything else portable bytecode.
    Raises UnsupportedError, before anything is written, for programs that JAX cannot express;
    ModelError if the file cannot be written.
    """
    exported = to_exported(model)
    data = _data(exported, path.suffix.lower())
    with atomic_file(path, ModelError) as file:
        file.write(data)
    return [path]


def _data(exported: Any, suffix: str) -> bytes:
    if suffix == ".mlir":
        return str(exported.mlir_module()).encode()
    if suffix != ".jaxexport":
        return bytes(exported.mlir_module_serialized)
    try:
        return bytes(exported.serialize())
    except ImportError as error:
        raise UnsupportedError(
            "jax.export writes its files with `flatbuffers`, which is not installed",
            hint="pip install flatbuffers, or write a `.stablehlo` file",
        ) from error


def to_exported(model: OutgoingModel) -> Any:
    """Return a program as a `jax.export.Exported`: inputs, and results by name, both in order.

    Free sizes of the inputs stay free, if JAX can trace the program with them.
    """
    program = model.program
    numbers = symbols(program)
    example = specialize(program, dict.fromkeys(numbers, _EXAMPLE), check=False)
    device = chosen_device(BackendSettings(device="cpu"))
    require_supported(JaxBackend(device), example)
    weight_bytes = sum(each.type.nbytes for each in model.weights)
    if weight_bytes > _MAX_BYTES:
        raise UnsupportedError(
            f"the weights take {weight_bytes} bytes, a StableHLO module has at most {_MAX_BYTES}"
        )
    with all_types(device), without_places():
        sizes = _symbolic_sizes(model, numbers)
        structures = [
            _jax.ShapeDtypeStruct(
                tuple(sizes.get(_size_name(dim), dim) for dim in param.type.shape),
                param.type.dtype.numpy,
            )
            for param in program.main.body.params[: len(model.inputs)]
        ]
        special = sized(program, {number: sizes[f"?{number}"] for number in numbers})
        function = _recorded(model, special)
        try:
            jitted = _jax.jit(function, keep_unused=True)
            return _exports.export(jitted, platforms=PLATFORMS)(*structures)
        except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
            if not numbers:
                raise
            reason = ascii(str(error).split("\n", maxsplit=1)[0])[1:-1][:160]
            raise UnsupportedError(
                f"JAX cannot trace the program with free sizes: {reason}",
                hint="give its sizes numbers: `gptrs.api.programs.specialize`,"
                " or `--symbol` for a model",
            ) from error


def _size_name(dim: int) -> str:
    return str(dim)


def _symbolic_sizes(model: OutgoingModel, numbers: list[int]) -> dict[str, Any]:
    """Return a symbolic size of JAX for each symbol `?n`, named as in the inputs."""
    names: dict[str, str] = {}
    params = model.program.main.body.params
    for slot, param in zip(model.inputs, params, strict=False):
        for name, dim in zip(slot.shape or (), param.type.shape, strict=True):
            if isinstance(name, str) and str(dim) in {f"?{number}" for number in numbers}:
                names.setdefault(str(dim), name if name.isidentifier() else f"d{len(names)}")
    missing = [f"?{number}" for number in numbers if f"?{number}" not in names]
    if missing:
        raise UnsupportedError(f"no input has a dim that is just the size {missing[0]}")
    if not names:
        return {}
    return dict(zip(names, _exports.symbolic_shape(", ".join(names.values())), strict=True))


class _AnyName(str):
    """A name that a parameter may have: JAX writes those of a signature, which are identifiers."""

    __slots__ = ()

    @override
    def isidentifier(self) -> bool:
        """Return True."""
        return True


def _recorded(model: OutgoingModel, program: Program) -> Callable[..., dict[str, Array]]:
    """Return the function that JAX traces: the walk over the program, with weights as constants."""
    body = program.main.body
    count = len(model.inputs)

    def function(*inputs: Array) -> dict[str, Array]:
        arrays = [*inputs, *(cast("Any", jnp).asarray(each.whole()) for each in model.weights)]
        given = [entered(value, x) for value, x in zip(body.params, arrays, strict=True)]
        results = ProgramWalk(program).region(body, given)
        made = [left(value, x) for value, x in zip(body.results, results, strict=True)]
        # A plain dict would be sorted by its keys: the results would come in another order.
        return OrderedDict(zip(model.outputs, made, strict=True))

    function.__name__ = "program"
    names = [each.name for each in model.inputs]
    if len(set(names)) != count or not all(map(is_name, names)):
        _LOG.warning(
            "the inputs have names that StableHLO files cannot have: they are called `arg0`, ..."
        )
        names = [f"arg{number}" for number in range(count)]
    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(_AnyName(name), kind) for name in names]
    named = cast("Any", function)
    named.__signature__ = inspect.Signature(parameters)
    return named
