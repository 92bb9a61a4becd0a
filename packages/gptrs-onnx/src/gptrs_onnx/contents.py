"""The description of an ONNX file, and the parts of it that are not converted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gptrs.api import ModelError, UnsupportedError
from gptrs.api.importers import DAMAGE, FileContents, FileValue
from gptrs_onnx import known_ops, ops
from gptrs_onnx.conversion import kind_of
from gptrs_onnx.element_types import DTYPES, is_read
from gptrs_onnx.inputs import default_inputs, required_inputs
from gptrs_onnx.node import converts, has_body
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.reading import read_any_model, require_read_version
from gptrs_onnx.search import shown
from gptrs_onnx.strings import string_nodes

assert ops  # its modules register the converters


def contents_of(path: Path) -> FileContents:
    """Return what is in an .onnx file; ModelError for a file that is not a valid model."""
    model = read_any_model(path)
    try:
        return _contents(model, path)
    except DAMAGE as error:
        raise ModelError(f"`{shown(path)}` is not a valid ONNX model: {shown(error)}") from error


def _contents(model: ir.Model, path: Path) -> FileContents:
    graph = model.graph
    values = [value for part in model.graphs() for value in part.initializers.values()]
    stored = [value.const_value for value in values if value.const_value is not None]
    taken, optional = required_inputs(model), default_inputs(model)
    defaults = [FileValue(each.name, f"{each.type}?") for each in map(_declared, optional)]
    return FileContents(
        inputs=(*map(_declared, taken), *defaults),
        outputs=tuple(map(_declared, graph.outputs)),
        ops=dict(Counter(_name(node) for node in _nodes(model)).most_common()),
        missing=dict(_missing(model, [*taken, *graph.outputs], stored, path)),
        weights=len(stored),
        weight_elements=sum(int(each.size) for each in stored),
        weight_bytes=sum(int(each.nbytes) for each in stored),
        facts=dict(_facts(model)),
    )


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _name(node: ir.Node) -> str:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return shown(f"{domain}.{node.op_type}" if domain else node.op_type)


def _declared(value: ir.Value) -> FileValue:
    return FileValue(str(value.name), _type_text(value.type, value.shape))


def _type_text(held: ir.TypeProtocol | None, shape: ir.Shape | None) -> str:
    """Return a type as PTIR writes it, `f32[batch, ?]`; others by their names in ONNX."""
    if held is None:
        return "?"
    if isinstance(held, ir.TensorType):
        dtype = DTYPES.get(held.dtype)
        sizes = "[..]" if shape is None else f"[{', '.join(map(_size_text, shape))}]"
        return f"{held.dtype.name.lower() if dtype is None else dtype}{sizes}"
    kind = type(held).__name__.removesuffix("Type").lower()
    inner = getattr(held, "elem_type", None)
    return f"{kind}({_type_text(inner, shape)})" if isinstance(inner, ir.TypeProtocol) else kind


def _size_text(size: int | ir.SymbolicDim) -> str:
    if isinstance(size, int):
        return str(size) if size >= 0 else "?"
    return shown(size.value or "?")


def _facts(model: ir.Model) -> Iterator[tuple[str, str]]:
    writer = " ".join(filter(None, (model.producer_name, model.producer_version)))
    if writer:
        yield "written by", shown(writer)
    used = {"", "ai.onnx", *(node.domain for node in _nodes(model))}
    versions = [
        f"{shown(domain) or 'ai.onnx'} {version}"
        for domain, version in model.opset_imports.items()
        if domain in used
    ]
    yield "operator sets", ", ".join(versions)
    if model.functions:
        yield "functions", str(len(model.functions))


def _missing(
    model: ir.Model,
    values: Iterable[ir.Value],
    stored: Iterable[ir.TensorProtocol],
    path: Path,
) -> Iterator[tuple[str, str]]:
    """Yield the parts that are not converted, and why."""
    try:
        require_read_version(model.opset_imports, str(path))
    except UnsupportedError as error:
        yield "operator sets", error.message
    before = {*string_nodes(model.graph)}
    reasons = {_name(node): _reason(node, model) for node in _nodes(model) if node not in before}
    yield from ((name, why) for name, why in reasons.items() if why is not None)
    for value in values:
        held = value.type
        if isinstance(held, ir.TensorType) and not is_read(held.dtype):
            yield shown(value.name), f"its element type is {held.dtype.name}, which PTIR lacks"
        elif not isinstance(held, (ir.TensorType, ir.OptionalType)) and held is not None:
            yield (
                shown(value.name),
                f"it is a {_type_text(held, None)}, and values are tensors",
            )
    for name in sorted({each.dtype.name for each in stored if not is_read(each.dtype)}):
        yield f"weights of {name}", "PTIR lacks the element type"


def _reason(node: ir.Node, model: ir.Model) -> str | None:
    """Return why an operator is not converted, None if it may be."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    name = f"{domain}.{node.op_type}" if domain else node.op_type
    if (node.domain, node.op_type, node.overload) in model.functions:
        return None
    if name in converts or known_ops.is_known(name):
        return None
    kind = kind_of(domain, node.op_type)
    if kind is not None:
        return f"it is about {kind}"
    version = _version(model.opset_imports, domain)
    return None if has_body(domain, node.op_type, version) else "no converter"


def _version(opsets: Mapping[str, int], domain: str) -> int:
    return opsets.get(domain, opsets.get("ai.onnx", 1) if not domain else 1)
