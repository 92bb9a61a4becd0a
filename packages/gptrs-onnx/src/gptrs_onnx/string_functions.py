"""Functions of strings, computed before a program by the reference implementation of ONNX.

That is slow to import, so only graphs with such functions do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from gptrs.api import ModelError, UsageError
from gptrs.api.importers import DAMAGE
from gptrs_onnx.node import Known
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import shown


class Tokenizer(OpRun):
    """`com.microsoft.Tokenizer`, which skl2onnx writes: the tokens of each string, padded."""

    op_domain = "com.microsoft"

    def _run(
        self,
        x: Known,
        mark: int = 0,
        mincharnum: int = 1,
        pad_value: str = "#",
        separators: Sequence[str] | None = None,
        tokenexp: str | None = None,
    ) -> tuple[Known]:
        rows: list[list[str]] = []
        for text in x.flat:
            found = _tokens(str(text), separators, tokenexp)
            kept = [each for each in found if len(each) >= mincharnum]
            # ASCII's start and end of a text.
            rows.append(["\x02", *kept, "\x03"] if mark else kept)
        width = max(map(len, rows), default=0)
        made = np.empty((len(rows), width), object)
        for row, tokens in zip(made, rows, strict=True):
            row[:] = tokens + [pad_value] * (width - len(tokens))
        return (made.reshape(*x.shape, width),)


class StringNormalizer(OpRun):
    """The operator as ONNX Runtime computes it: whole elements are stop words, accents stay.

    The one of the reference sets the locale of the process, in which files are opened then.
    """

    def _run(
        self,
        x: Known,
        case_change_action: str = "NONE",
        is_case_sensitive: int = 0,
        locale: str | None = None,
        stopwords: Sequence[str] | None = None,
    ) -> tuple[Known]:
        del locale  # Python changes the case of all alphabets
        if x.ndim not in (1, _MATRIX) or (x.ndim == _MATRIX and x.shape[0] != 1):
            raise ValueError(f"StringNormalizer takes [C] or [1, C], got {list(x.shape)}")
        compared = str if is_case_sensitive else str.lower
        stops = {compared(word) for word in stopwords or ()}
        kept = [text for text in map(str, x.flat) if compared(text) not in stops]
        change = {"LOWER": str.lower, "UPPER": str.upper}.get(case_change_action, str)
        made = np.array([change(text) for text in kept] or [""], object)
        return (made.reshape(*x.shape[:-1], len(made)),)


_MATRIX = 2


def _tokens(text: str, separators: Sequence[str] | None, expression: str | None) -> list[str]:
    if expression:
        return [each.group() for each in re.finditer(expression, text)]
    if not separators or list(separators) == [""]:
        return list(text)
    parts = [text]
    for each in separators:
        parts = [piece for part in parts for piece in re.split(each, part)]
    return [each for each in parts if each]


class StringFunctions:
    """The part of a graph that computes with strings, cut off the graph that becomes a program."""

    def __init__(
        self, graph: ir.Graph, nodes: Sequence[ir.Node], opsets: Mapping[str, int]
    ) -> None:
        own = set(nodes)
        made = [value for node in nodes for value in node.outputs if _leaves(value, own)]
        read = dict.fromkeys(each for node in nodes for each in node.inputs if each is not None)
        stored = [each for each in read if each.const_value is not None and each.producer() is None]
        taken = [each for each in read if each.is_graph_input() and each not in stored]
        self.takes = [str(each.name) for each in taken]
        try:
            proto = onnx.helper.make_model(
                onnx.helper.make_graph(
                    [ir.serde.serialize_node(node) for node in nodes],
                    "strings",
                    [ir.serde.serialize_value(each) for each in taken],
                    [onnx.ValueInfoProto(name=str(each.name)) for each in made],
                    [_serialized(each) for each in stored],
                ),
                opset_imports=[onnx.helper.make_opsetid(*each) for each in opsets.items()],
            )
            inferred = onnx.shape_inference.infer_shapes(proto)
            evaluator: Any = ReferenceEvaluator(proto, new_ops=[StringNormalizer, Tokenizer])
        except (*DAMAGE, onnx.shape_inference.InferenceError) as error:
            raise ModelError(f"the functions of strings are damaged: {shown(error)}") from error
        self._run: Callable[[None, Mapping[str, Known]], Sequence[Known]] = evaluator.run
        types = {each.name: each.type for each in inferred.graph.output}
        self.gives = [_cut(graph, each, types[str(each.name)]) for each in made]
        graph.remove(nodes, safe=False)
        for each in taken:  # the rest of the graph may need none of them
            if not each.uses() and not each.is_graph_output():
                graph.inputs.remove(each)

    def __call__(self, given: Mapping[str, Known]) -> dict[str, Known]:
        """Return what the rest of the graph needs; UsageError where the strings do not fit."""
        taken = {name: given[name] for name in self.takes if name in given}
        try:
            found = self._run(None, taken)
        except DAMAGE as error:
            raise UsageError(f"strings do not fit the graph: {shown(error)}") from error
        names = [str(each.name) for each in self.gives]
        return {
            name: array.astype(object) if array.dtype.kind in "UOS" else array
            for name, array in zip(names, map(np.asarray, found), strict=True)
        }


def _leaves(value: ir.Value, own: set[ir.Node]) -> bool:
    """Return whether something outside of these nodes needs a value."""
    return value.is_graph_output() or any(user not in own for user, _ in value.uses())


def _serialized(value: ir.Value) -> onnx.TensorProto:
    tensor = ir.serde.serialize_tensor(cast("ir.TensorProtocol", value.const_value))
    tensor.name = str(value.name)
    return tensor


def _cut(graph: ir.Graph, value: ir.Value, held: onnx.TypeProto) -> ir.Value:
    """Put an input in place of a value, with the type that inference found; return it."""
    elements = held.tensor_type
    # Inference knows no operators of ONNX Runtime, whose tokens are strings.
    kind = ir.DataType(elements.elem_type or int(ir.DataType.STRING))
    shape: list[int | str] | None = None
    if elements.HasField("shape"):
        shape = [
            each.dim_value if each.HasField("dim_value") else each.dim_param or f"{value.name}_{i}"
            for i, each in enumerate(elements.shape.dim)
        ]
    made = ir.Value(
        name=value.name,
        shape=None if shape is None else ir.Shape(shape),
        type=ir.TensorType(kind),
    )
    for user, index in tuple(value.uses()):
        user.replace_input_with(index, made)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = made
    graph.inputs.append(made)
    return made
