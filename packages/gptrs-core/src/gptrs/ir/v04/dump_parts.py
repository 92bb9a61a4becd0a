"""The small parts of a dump of a ptir.v0.4 program: choices, dims, types and literals."""

from __future__ import annotations

import re
from typing import cast

import numpy as np

from gptrs.errors import ProgramError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Literal, literal_to_json
from gptrs.ir.v04.upgrade import DTYPE_NAMES_04
from gptrs.ir.value_tree import JsonNode

_DTYPES = {
    **{dtype.name: dtype for dtype in dtypes.ALL},
    **{old: dtypes.by_name(today) for old, today in DTYPE_NAMES_04.items()},
}
_SPELLED = {"Fp8E4M3": "fp8_e4m3", "Fp8E5M2": "fp8_e5m2"}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def camel_to_snake(word: str) -> str:
    """Return the text form of a word in a dump: `dot_general` for `DotGeneral`."""
    return _SPELLED.get(word, _HUMP.sub("_", word).lower())


def variant(node: JsonNode) -> tuple[str, JsonNode | None]:
    """Return a choice and its content: a word alone, or the only key of an object and its value."""
    if isinstance(node.value, str):
        return node.string(), None
    entries = node.entries()
    if len(entries) != 1:
        raise node.expected("a word or an object with one key")
    return next(iter(entries.items()))


class Dims:
    """Dims in dumps; named dims are numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def type(self, node: JsonNode) -> str:
        """Return a tensor type as in the text form."""
        fields = node.fields(("dtype", "shape"))
        name = camel_to_snake(fields["dtype"].string("a dtype"))
        return f"{name}[{', '.join(map(str, self.attribute(fields['shape'])))}]"

    def attribute(self, node: JsonNode) -> list[object]:
        """Return the dims of `{"dims": [...]}`, or of a list in which one may be `"Infer"`, -1."""
        entries = node.fields(("dims",))["dims"] if isinstance(node.value, dict) else node
        return [self._dim(each) for each in entries.items()]

    def _dim(self, node: JsonNode) -> object:
        tag, value = variant(node)
        if tag == "Explicit" and value is not None:
            tag, value = variant(value)
        if tag == "Infer" and value is None:
            return -1
        if tag == "Static" and value is not None:
            if type(value.value) is not int or not 0 <= value.value < 2**63:
                raise value.expected("a dim")
            return value.value
        if tag == "Dynamic" and value is not None:
            name = value.string("the name of a dim")
            return f"?{self._numbers.setdefault(name, len(self._numbers))}"
        raise node.expected("`Static` or `Dynamic`")


def literal(node: JsonNode, dims: Dims) -> dict[str, object]:
    """Return the literal with a type and a list of bytes, in the JSON form."""
    fields = node.fields(("spec", "bytes"))
    written = dims.type(fields["spec"])
    dtype = _DTYPES.get(written.partition("[")[0])
    if dtype is not None and dtype.bits == 4:
        what = f"v0.4 does not say how the elements of a literal of {dtype} are stored"
        raise node.error(f"{what}; make it of `si8` and `cast`")
    items = fields["bytes"].list()
    if any(type(item) is not int or not 0 <= item < 256 for item in items):
        raise fields["bytes"].error("expected a list of integers from 0 to 255")
    data = bytes(cast("list[int]", items))
    type_ = JsonNode(written, fields["spec"].path, node.allowance).type()
    try:
        return literal_to_json(Literal(type_, data))
    except ProgramError as error:
        raise fields["bytes"].error(str(error)) from None


def scalar(node: JsonNode, dtype_name: str) -> dict[str, object]:
    """Return the literal of rank 0 that a number such as `{"Float": 0.0}` is as `dtype_name`."""
    tag, value = variant(node)
    dtype = _DTYPES.get(dtype_name)
    if dtype is None or value is None:
        raise node.expected(f"an element of {dtype_name}")
    return literal_to_json(Literal.of(_element(tag, value, dtype)))


def _element(tag: str, node: JsonNode, dtype: DType) -> np.ndarray:
    """Return the number of a choice as an array of rank 0; a dump has no infinity and no NaN."""
    number = node.value
    if tag == "Float" and dtype.is_float:
        return _float(node, dtype)
    if tag == "Complex" and dtype.is_complex:
        parts = node.fields(("re", "im"))
        pair = [_float(parts[name], dtypes.f64) for name in ("re", "im")]
        return np.asarray(complex(float(pair[0]), float(pair[1]))).astype(dtype.numpy)
    if tag == "I1" and dtype.is_bool and type(number) is bool:
        return np.asarray(number)
    if tag in ("Signed", "Unsigned") and dtype.is_integer and type(number) is int:
        low = -(1 << dtype.bits - 1) if dtype.kind == "signed" else 0
        if low <= number < low + (1 << dtype.bits):
            return np.asarray(number, dtype=dtype.numpy)
    raise node.expected(f"an element of {dtype}")


def _float(node: JsonNode, dtype: DType) -> np.ndarray:
    number = node.value
    if number is None:
        raise node.error("a number that is not finite was written as `null`; give it as text")
    if not isinstance(number, float) and (type(number) is not int or abs(number) > 2**53):
        raise node.expected("a number")
    with np.errstate(all="ignore"):
        return np.asarray(float(number)).astype(dtype.numpy)
