"""Strings at the border of programs: codes of one table inside, functions of strings before them.

Programs compute with numbers. A string of a file is its number in a table of all strings of that
file, so equal strings have equal codes wherever they come from. Strings of a call that the file
lacks get the numbers after those, for that call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from gptrs.api import ModelError
from gptrs.api.importers import DAMAGE
from gptrs.lazy_module import lazy_module
from gptrs_onnx.node import MOVES, Known
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import shown

if TYPE_CHECKING:
    from gptrs_onnx import string_functions
else:
    string_functions = lazy_module("gptrs_onnx.string_functions")

_IMPLIED: Final = ("", "_Unused")
"""Strings that files leave out: what padding consists of, and the default of encoders."""


class Words:
    """The strings of a model by their codes."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @cached_property
    def _words(self) -> list[str]:
        return list(dict.fromkeys((*_IMPLIED, *_strings_in(self._model))))

    @cached_property
    def _codes(self) -> Mapping[str, int]:
        return {each: code for code, each in enumerate(self._words)}

    def codes(self, texts: Iterable[str]) -> Known:
        """Return the codes of strings that the file contains [count]."""
        return np.array([self._codes[each] for each in texts], np.int64)

    def coded(self, arrays: Mapping[str, Known]) -> tuple[dict[str, Known], list[str]]:
        """Return arrays with codes in place of strings, and the strings that the file lacks."""
        others: dict[str, int] = {}
        known, first = self._codes, len(self._words)

        def code(text: str) -> int:
            found = known.get(text)
            return others.setdefault(text, first + len(others)) if found is None else found

        made = {
            name: np.fromiter(map(code, array.flat), np.int64, array.size).reshape(array.shape)
            if array.dtype == object
            else array
            for name, array in arrays.items()
        }
        return made, list(others)

    def decoded(self, codes: Known, others: Sequence[str]) -> Known:
        """Return the strings of codes, as an array of Python's."""
        first = len(self._words)
        made = np.empty(codes.shape, object)
        made.reshape(-1)[:] = [
            self._words[code] if code < first else others[code - first] for code in codes.flat
        ]
        return made


def texts_of(stored: ir.TensorProtocol) -> list[str]:
    """Return the elements of a tensor of strings; ModelError for bytes that are not UTF-8."""
    try:
        found = cast("Iterable[bytes | str]", stored.numpy().reshape(-1).tolist())
        return [each.decode() if isinstance(each, bytes) else each for each in found]
    except DAMAGE as error:
        raise ModelError(f"a tensor of strings cannot be read: {shown(error)}") from error


def _strings_in(model: ir.Model) -> Iterator[str]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype == ir.DataType.STRING:
                yield from texts_of(value.const_value)
    for part in (model.graph, *model.functions.values()):
        for node in part.all_nodes():
            for each in node.attributes.values():
                yield from () if each.is_ref() else _strings_of(each)


def _strings_of(attribute: ir.Attr) -> Iterator[str]:
    if attribute.type == ir.AttributeType.STRING:
        yield str(attribute.value)
    elif attribute.type == ir.AttributeType.STRINGS:
        yield from map(str, cast("Sequence[object]", attribute.value))
    elif attribute.type == ir.AttributeType.TENSOR:
        tensor = cast("ir.TensorProtocol", attribute.value)
        if tensor.dtype == ir.DataType.STRING:
            yield from texts_of(tensor)


# Functions of strings: which nodes compute them before the program.


FUNCTIONS: Final = frozenset(
    (
        *("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"),
        "com.microsoft.Tokenizer",
    )
)
"""Operators that are computed before the program, from inputs alone."""
_BESIDE: Final = MOVES | {"Cast", "Constant", "Identity"}
"""Other operators that may run before the program, on the way to a function of strings."""


def cut_off(model: ir.Model) -> string_functions.StringFunctions | None:
    """Take the functions of strings out of a graph, with all that leads to them; None if none."""
    nodes = string_nodes(model.graph)
    return (
        string_functions.StringFunctions(model.graph, nodes, dict(model.opset_imports))
        if nodes
        else None
    )


def string_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the functions of strings in a graph, with all that leads to them, in order.

    None of them if one depends on what only a program computes: the conversion then refuses it.
    """
    waiting = [node for node in graph if _name(node) in FUNCTIONS or _reads_strings(node)]
    found: set[ir.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        if _name(node) not in FUNCTIONS | _BESIDE or _writes_strings(node):
            return []
        found.add(node)
        producers = [each.producer() for each in node.inputs if each is not None]
        waiting += [each for each in producers if each is not None]
    return [node for node in graph if node in found]


def _name(node: ir.Node) -> str:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return f"{domain}.{node.op_type}" if domain else node.op_type


def _reads_strings(node: ir.Node) -> bool:
    """Return whether a node reads numbers written as strings."""
    return _name(node) == "Cast" and any(map(_is_of_strings, node.inputs))


def _writes_strings(node: ir.Node) -> bool:
    """Return whether a node writes numbers as strings, where each runtime has its own digits."""
    to = node.attributes.get("to")
    return _name(node) == "Cast" and to is not None and to.value == int(ir.DataType.STRING)


def _is_of_strings(value: ir.Value | None) -> bool:
    """Return whether the file, or the input of what moves a value, says that it is strings."""
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each is None or each in seen:
            continue
        seen.add(each)
        if each.dtype == ir.DataType.STRING:
            return True
        source = each.producer()
        if each.dtype is None and source is not None and _name(source) in MOVES | {"Identity"}:
            waiting += source.inputs
    return False
