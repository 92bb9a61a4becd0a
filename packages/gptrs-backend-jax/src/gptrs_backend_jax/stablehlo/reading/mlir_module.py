"""Conversion of MLIR's bindings to plain data: the only module that handles MLIR objects."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, cast

import numpy as np
from jax.extend import mlir as _mlir_extension
from jax.extend.mlir import ir as _ir
from jax.extend.mlir.dialects import stablehlo as _stablehlo
from jax.interpreters import mlir as _mlir

from gptrs.api import ModelError, UnsupportedError
from gptrs.api.programs import DType, dtypes
from gptrs_backend_jax.stablehlo.reading.module import (
    MAX_NESTING,
    MAX_OPERATIONS,
    Attribute,
    Block,
    ConstantArray,
    Operation,
    StableHlo,
    ValueType,
    is_name,
    shown,
)

# Elements of MLIR constants, including types that its bindings expose by no buffer.


_ESCAPED: Final = r"\\(?:\\|[0-9A-F]{2})"
"""A byte in a string of MLIR's text."""
_LITERAL: Final = re.compile(r"dense<(.*)> : tensor<.*>", re.DOTALL)
_DENSE: Final = re.compile(r"dense<[^>]*> : tensor<(?:[^<>]|<[^<>]*>)*>")
_WORD: Final = re.compile(r"[^\s\[\],()]+")
_BITS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def elements(held: Any, type_: ValueType, shape: tuple[int, ...]) -> np.ndarray:
    """Return the elements of a dense attribute in the NumPy type of PTIR.

    The rank is 0 for a splat. Raises UnsupportedError for element types that PTIR lacks, ModelError
    for missing elements.
    """
    dtype = type_.dtype
    try:
        found = np.asarray(held)
    except (TypeError, ValueError, BufferError):
        found = _written(str(held), dtype)
    if shape == () and found.size:
        found = found.reshape(-1)[:1]
    if found.dtype != dtype.numpy:
        found = found.view(dtype.numpy) if _same_bits(found, dtype) else found.astype(dtype.numpy)
    if found.size != int(np.prod(shape, dtype=np.int64)):
        raise ModelError(f"a constant of `{shown(type_)}` has {found.size} elements")
    return np.array(found.reshape(shape))


def written_elements(text: str, type_: ValueType) -> np.ndarray:
    """Return the elements of the first dense attribute in a text; of rank 0 for a splat."""
    found = _DENSE.search(text)
    if found is None:
        raise ModelError(f"an attribute of `{shown(type_)}` is not read")
    made = _written(found[0], type_.dtype)
    shape = tuple(dim or 0 for dim in type_.shape or ())
    count = int(np.prod(shape, dtype=np.int64))
    if made.size not in (1, count):
        raise ModelError(f"a constant of `{shown(type_)}` has {made.size} elements")
    return made.reshape(shape if made.size == count else ())


def _same_bits(found: np.ndarray, dtype: DType) -> bool:
    return found.dtype.itemsize == dtype.itemsize and found.dtype.kind in "iu" and dtype.is_float


def _written(text: str, dtype: DType) -> np.ndarray:
    """Parse elements as MLIR prints them: numbers, hexadecimal bits, or bytes of all."""
    found = _LITERAL.fullmatch(text)
    if found is None:
        raise ModelError(f"a constant is written as `{shown(text)}`, which is not read")
    body = found[1]
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), dtype.numpy)
    words = _WORD.findall(body)
    if dtype.is_complex:
        part = dtypes.f32 if dtype is dtypes.cf32 else dtypes.f64
        return np.array([_number(word, part) for word in words], part.numpy).view(dtype.numpy)
    return np.array([_number(word, dtype) for word in words], dtype.numpy)


def _number(word: str, dtype: DType) -> Any:
    if word.startswith("0x"):
        return np.array(int(word, 16), _BITS[dtype.itemsize]).view(dtype.numpy)[()]
    if word in ("true", "false"):
        return word == "true"
    return float(word) if dtype.is_float else int(word)


ir = cast("Any", _ir)
_extend = cast("Any", _mlir_extension)
_jax_mlir = cast("Any", _mlir)
stablehlo = cast("Any", _stablehlo)

_BYTECODE: Final = b"ML\xefR"
_ENUM: Final = re.compile(r"#(?:stablehlo|chlo)<[a-z_]+ (\w+)>")
_MESH: Final = "sdy.mesh"
"""A line that declares meshes of devices, which change no value."""
_WRAPPED: Final = "_wrapped_jax_export_main"
_RETURNS: Final = ("stablehlo.return", "func.return")
_GATHER: Final = (
    "offset_dims", "collapsed_slice_dims", "operand_batching_dims",
    "start_indices_batching_dims", "start_index_map", "index_vector_dim",
)  # fmt: skip
_SCATTER: Final = (
    "update_window_dims", "inserted_window_dims", "input_batching_dims",
    "scatter_indices_batching_dims", "scattered_dims_to_operand_dims", "index_vector_dim",
)  # fmt: skip
_DOT: Final = (
    "lhs_batching_dimensions", "rhs_batching_dimensions",
    "lhs_contracting_dimensions", "rhs_contracting_dimensions",
)  # fmt: skip
_CONVOLUTION: Final = (
    "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions",
    "kernel_input_feature_dimension", "kernel_output_feature_dimension",
    "kernel_spatial_dimensions", "output_batch_dimension", "output_feature_dimension",
    "output_spatial_dimensions",
)  # fmt: skip
_DIMENSION_NUMBERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "#stablehlo.gather<": ("GatherDimensionNumbers", _GATHER),
    "#stablehlo.scatter<": ("ScatterDimensionNumbers", _SCATTER),
    "#stablehlo.dot<": ("DotDimensionNumbers", _DOT),
    "#stablehlo.conv<": ("ConvDimensionNumbers", _CONVOLUTION),
}


def parsed(data: bytes, sizes: Mapping[tuple[int, int], str] | None = None) -> StableHlo:
    """Return the module in `data`: a portable artifact or other bytecode of MLIR, or its text.

    Raises ModelError if MLIR refuses it or it has no `main`; UnsupportedError for dialects other
    than StableHLO.
    """
    with _jax_mlir.make_ir_context() as context, ir.Location.unknown():
        context.allow_unregistered_dialects = True  # they are refused by name when they are used
        context.attach_diagnostic_handler(_taken)
        try:
            module = _module(context, data)
        except (ir.MLIRError, ValueError, UnicodeDecodeError) as error:
            raise ModelError(f"MLIR refuses it: {_line(error)}") from error
        return _Reading().module(module, sizes or {})


def _taken(message: Any) -> bool:
    """Keep MLIR's messages off standard error: exceptions repeat them."""
    del message
    return True


def _module(context: Any, data: bytes) -> Any:
    if data.startswith(_BYTECODE):
        with suppress(ir.MLIRError, ValueError):
            return stablehlo.deserialize_portable_artifact(context, data)
        return ir.Module.parse(data)
    text = data.decode()
    if "chlo." not in text:
        return ir.Module.parse(text)
    # Text from JAX has ops of CHLO; in portable artifacts, they are composites.
    artifact = _extend.serialize_portable_artifact(text, stablehlo.get_current_version())
    return stablehlo.deserialize_portable_artifact(context, artifact)


def _line(error: BaseException) -> str:
    """Return the first line of MLIR's message with content."""
    lines = [line.strip(" :") for line in str(error).splitlines()]
    wanted = [line for line in lines if "error:" in line] or [line for line in lines if line]
    return shown(" ".join((wanted or ["it gives no reason"])[0].split())[:200])


class _Reading:
    """A walk over a module that numbers its values."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._count = 0

    def module(self, module: Any, sizes: Mapping[tuple[int, int], str]) -> StableHlo:
        functions: dict[str, Block] = {}
        main: Any = None
        bodies: dict[str, list[Any]] = {}
        for each in module.body.operations:
            operation = each.operation
            if operation.name == _MESH:
                continue
            if operation.name != "func.func":
                raise UnsupportedError(f"the module has `{shown(operation.name)}`: not converted")
            name = str(operation.attributes["sym_name"].value)
            blocks = list(operation.regions[0].blocks)
            if len(blocks) != 1:  # a declaration has no body
                continue
            functions[name] = self.block(blocks[0], 0)
            if name == "main":
                main = operation
            if name in ("main", _WRAPPED):
                bodies[name] = list(blocks[0].arguments)
        if "main" not in functions:
            raise ModelError("it has no function `@main`")
        # With free sizes, JAX wraps the function: the inner one takes the sizes first, and has the
        # names.
        inner, named = bodies.get(_WRAPPED, []), bodies["main"]
        named = inner[len(inner) - len(named) :] if len(inner) >= len(named) else named
        inputs = _distinct(_argument_name(each, n) for n, each in enumerate(named))
        outputs = _distinct(_result_names(main, len(functions["main"].results)))
        return StableHlo(functions, inputs, outputs, sizes)

    def block(self, block: Any, depth: int) -> Block:
        if depth > MAX_NESTING:
            raise UnsupportedError(f"regions are nested deeper than {MAX_NESTING}")
        params = tuple(self.number(each) for each in block.arguments)
        types = tuple(value_type(each.type) for each in block.arguments)
        operations: list[Operation] = []
        for each in block.operations:
            operation = each.operation
            if operation.name in _RETURNS:
                results = tuple(self.number(value) for value in operation.operands)
                return Block(params, types, tuple(operations), results)
            operations.append(self.operation(operation, depth))
        raise ModelError("a region ends without a `return`")

    def operation(self, operation: Any, depth: int) -> Operation:
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise UnsupportedError(f"the module has more than {MAX_OPERATIONS} operations")
        regions: list[Block] = []
        for region in operation.regions:
            blocks = list(region.blocks)
            if len(blocks) != 1:
                raise UnsupportedError(
                    f"`{shown(operation.name)}` has a region of {len(blocks)} blocks; only one is "
                    f"supported"
                )
            regions.append(self.block(blocks[0], depth + 1))
        operands = tuple(self.number(each) for each in operation.operands)
        attributes = dict(_attributes(operation))
        results = tuple(self.number(each) for each in operation.results)
        types = tuple(value_type(each.type) for each in operation.results)
        return Operation(operation.name, operands, results, types, attributes, tuple(regions))

    def number(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


def _attributes(operation: Any) -> Iterator[tuple[str, Attribute]]:
    for name in operation.attributes:
        try:
            yield name, attribute(operation.attributes[name])
        except TypeError:  # the bindings have no class for dense complex numbers
            type_ = value_type(operation.results[0].type)
            text = operation.get_asm(print_generic_op_form=True, large_elements_limit=None)
            yield name, ConstantArray(type_, written_elements(text, type_))


def _argument_name(argument: Any, number: int) -> str:
    """Return the Python name of an argument, which JAX stores as its location."""
    found = re.fullmatch(rf'loc\("((?:[^"\\]|{_ESCAPED})+)"\)', str(argument.location))
    name = "" if found is None else _unescaped(found[1])
    return name if is_name(name) else f"arg{number}"


def _unescaped(text: str) -> str:
    """Return a string of MLIR's text as it is: bytes of UTF-8 other than plain ASCII are `\\C3`."""
    raw = re.sub(
        _ESCAPED.encode(),
        lambda found: b"\\" if found[0] == b"\\\\" else bytes.fromhex(found[0][1:].decode()),
        text.encode(),
    )
    return raw.decode(errors="replace")


def _result_names(main: Any, count: int) -> Iterator[str]:
    infos: list[Any] = []
    if "res_attrs" in main.attributes:
        infos = list(main.attributes["res_attrs"])
    for number in range(count):
        info: Any = infos[number] if number < len(infos) else ()
        held = str(info["jax.result_info"].value) if "jax.result_info" in info else ""
        if (key := _only_key(held)) is not None:
            yield key
            continue
        words = re.findall(r"\w+", held)[:8] or ["result", str(number)]
        if words[0] == "result" and len(words) > 1:
            words = ["result" + words[1], *words[2:]] if words[1].isdigit() else words[1:]
        yield "_".join(words)


def _only_key(held: str) -> str | None:
    """Return the name of a result in a dict, `result['NAME']`; None for other results."""
    found = re.fullmatch(r"result\[(?P<quote>['\"]).{1,800}(?P=quote)\]", held)
    if found is None:
        return None
    try:
        key: object = ast.literal_eval(held.removeprefix("result[").removesuffix("]"))
    except (ValueError, SyntaxError):
        return None
    return key if isinstance(key, str) and is_name(key) else None


def _distinct(names: Iterator[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for name in names:
        unique = name
        while unique in found:
            unique += "_"
        found[unique] = None
    return tuple(found)


def value_type(type_: Any) -> ValueType:
    """Return a type of MLIR as data."""
    if not isinstance(type_, ir.RankedTensorType):
        return ValueType(str(type_), None)
    ranked: Any = type_
    dims = tuple(
        None if ranked.is_dynamic_dim(axis) else int(ranked.get_dim_size(axis))
        for axis in range(ranked.rank)
    )
    return ValueType(str(ranked.element_type), dims)


def attribute(held: Any) -> Attribute:
    """Return an attribute of MLIR as data; an unknown one as its text."""
    for kind, convert in _CONVERTERS:
        if isinstance(held, kind):
            return convert(held)
    text = str(held)
    for prefix, (name, fields) in _DIMENSION_NUMBERS.items():
        if text.startswith(prefix):
            numbers = getattr(stablehlo, name)(held)
            return {field: _plain(getattr(numbers, field)) for field in fields}
    found = _ENUM.fullmatch(text)
    return found[1] if found else text


def _plain(value: Any) -> Attribute:
    return int(value) if isinstance(value, int) else [int(each) for each in value]


def _constant(held: Any) -> Attribute:
    type_ = value_type(held.type)
    shape = tuple(dim or 0 for dim in type_.shape or ())
    if type_.element == "index":
        return [int(each) for each in np.asarray(held).reshape(-1)]
    is_splat = bool(getattr(held, "is_splat", False))
    return ConstantArray(type_, elements(held, type_, () if is_splat else shape))


_CONVERTERS: Final[tuple[tuple[Any, Callable[[Any], Attribute]], ...]] = (
    (ir.BoolAttr, lambda held: bool(held.value)),
    (ir.IntegerAttr, lambda held: int(held.value)),
    (ir.FloatAttr, lambda held: float(held.value)),
    (ir.StringAttr, lambda held: str(held.value)),
    (ir.FlatSymbolRefAttr, lambda held: str(held.value)),
    (ir.DenseI64ArrayAttr, lambda held: [int(each) for each in held]),
    (ir.DenseI32ArrayAttr, lambda held: [int(each) for each in held]),
    (ir.DenseBoolArrayAttr, lambda held: [bool(each) for each in held]),
    (ir.DenseElementsAttr, _constant),
    (ir.DenseResourceElementsAttr, _constant),
    (ir.DictAttr, lambda held: {each.name: attribute(each.attr) for each in held}),
    (ir.ArrayAttr, lambda held: [attribute(each) for each in held]),
)
