"""Dumps of ptir.v0.4 programs, rewritten as the JSON form with the names of that version.

A dump has `spec_version`, `entry`, `functions` and `regions`. It writes a choice as an object with
one key, `{"Tensor": ...}`, or as a word, values as numbers, and the bytes of a literal as a list.
It does not record the parameters and results of regions, so control flow cannot be read from it.
"""

from __future__ import annotations

from gptrs.ir.program import VERSION_04, unknown_version
from gptrs.ir.v04.dump_parts import Dims, camel_to_snake, literal, scalar, variant
from gptrs.ir.v04.upgrade import DTYPE_NAMES_04
from gptrs.ir.value_tree import JsonNode

Json = dict[str, object]

_FUNCTION = ("name", "parameters", "parameter_ids", "results", "body", "result_ids")
_DTYPE_FIELDS = ("dtype", "accum_dtype", "out_dtype", "output_dtype", "indices_dtype")
_WORD_FIELDS = ("kind", "reduce", "op")
_SHAPE_FIELDS = ("shape", "result_shape", "new_shape")
_CONTROL_FLOW = ("Cond", "While", "Scan")


def is_dump(value: dict[str, object]) -> bool:
    """Return whether this JSON object is a dump rather than the JSON form."""
    return "version" not in value and ("spec_version" in value or "entry" in value)


def translate_dump(node: JsonNode) -> Json:
    """Return the JSON form of the program in a dump, whose `entry` names the main function."""
    fields = node.fields(("entry", "functions"), ("spec_version", "regions"))
    if "spec_version" in fields:
        version = fields["spec_version"].string("a version")
        if version not in ("", VERSION_04):
            raise fields["spec_version"].error(unknown_version(version))
    node.allowance.dtype_names = DTYPE_NAMES_04
    entry = fields["entry"].string("the name of the main function")
    dims = Dims()
    functions = [_Function(dims, each).translated(entry) for each in fields["functions"].items()]
    return {"version": VERSION_04, "functions": functions}


class _Function:
    """Rewrites one function; `_tuples` holds how many elements a value that is a tuple has."""

    def __init__(self, dims: Dims, node: JsonNode) -> None:
        self._dims = dims
        self._tuples: dict[int, int] = {}
        # Hints only repeat instructions of the body for backends that fuse them.
        self._fields = node.fields(_FUNCTION, ("hints",))

    def translated(self, entry: str) -> Json:
        """Return the function in the JSON form, called `main` if it is `entry`."""
        fields = self._fields
        name = fields["name"].string("the name of a function")
        if name == "main" and entry != "main":
            raise fields["name"].error(f"the entry is another function, `{entry}`")
        ids, types = list(fields["parameter_ids"].items()), list(fields["parameters"].items())
        if len(ids) != len(types):
            what = f"{len(types)} parameters with {len(ids)} ids"
            raise fields["parameter_ids"].error(what)
        params: list[Json] = []
        for id_, type_ in zip(ids, types, strict=True):
            params.extend(self._typed(id_, type_))
        instructions = [self._instruction(each) for each in fields["body"].items()]
        results = [name for each in fields["result_ids"].items() for name in self._names(each)]
        return {
            "name": "main" if name == entry else name,
            "params": params,
            "instructions": instructions,
            "results": results,
        }

    def _instruction(self, node: JsonNode) -> Json:
        fields = node.fields(("id", "op", "operands", "output"))
        operands = [self._operand(each) for each in fields["operands"].items()]
        results = self._typed(fields["id"], fields["output"])
        types = [str(result["type"]) for result in results]
        name, attributes = self._op(fields["op"], types)
        return {"op": name, "operands": operands, "attributes": attributes, "results": results}

    def _op(self, node: JsonNode, types: list[str]) -> tuple[str, Json]:
        """Return the name of the op and its attributes, for results of these types."""
        tag, value = variant(node)
        if tag in _CONTROL_FLOW:
            what = f"a dump does not say which values the regions of `{tag}` take and give"
            raise node.error(f"{what}; write the program as text")
        if tag in ("ElementwiseUnary", "ElementwiseBinary") and value is not None:
            return camel_to_snake(value.string("the name of an op")), {}
        if tag == "Constant" and value is not None:
            return "constant", {"value": literal(value, self._dims)}
        name = {"ArgMax": "argmax"}.get(tag, camel_to_snake(tag))
        if value is None:
            return name, {}
        if tag == "CustomCall":
            return name, self._custom_call(value, types)
        dtype = types[0].partition("[")[0] if types else ""
        return name, {
            key: self._attribute(key, each, dtype) for key, each in value.entries().items()
        }

    def _attribute(self, name: str, node: JsonNode, dtype: str) -> object:
        """Return an attribute of an op whose first result has elements of `dtype`."""
        if node.value is None:
            return None
        if name in _DTYPE_FIELDS or name in _WORD_FIELDS:
            return camel_to_snake(node.string("a word"))
        if name in _SHAPE_FIELDS:
            return self._dims.attribute(node)
        if name == "padding":
            return [each.value for pair in node.items() for each in pair.items()]
        if name == "pad_value":
            return scalar(node, dtype)
        return node.value

    def _custom_call(self, node: JsonNode, types: list[str]) -> Json:
        fields = node.fields(("target",), ("attrs",))
        attrs: Json = {}
        if "attrs" in fields:
            for name, each in fields["attrs"].entries().items():
                parts = each.fields(("kind", "value"))
                kind = parts["kind"].string("the kind of an attribute")
                if kind not in ("I64", "F64", "Bool", "String", "I64Array"):
                    what = f"an attribute of the kind `{kind}` has no counterpart"
                    raise each.error(f"{what}; integers may be a list, nothing else")
                value = parts["value"].value
                attrs[name] = {"float": value} if kind == "F64" else value
        return {"target": fields["target"].value, "results": types, "attrs": attrs}

    def _typed(self, id_: JsonNode, type_: JsonNode) -> list[Json]:
        """Return the id and type of a value, of each element where it is a tuple."""
        number = _number(id_)
        tag, value = variant(type_)
        if tag == "Tensor" and value is not None:
            return [{"id": str(number), "type": self._dims.type(value)}]
        if tag != "Tuple" or value is None:
            raise type_.expected('`{"Tensor": ...}` or `{"Tuple": [...]}`')
        elements: list[Json] = []
        for index, each in enumerate(value.items()):
            inner, spec = variant(each)
            if inner != "Tensor" or spec is None:
                raise each.error("a tuple of tuples has no counterpart in this version")
            elements.append({"id": _element(number, index), "type": self._dims.type(spec)})
        self._tuples[number] = len(elements)
        return elements

    def _operand(self, node: JsonNode) -> object:
        tag, value = variant(node)
        if tag == "Literal" and value is not None:
            return literal(value, self._dims)
        if tag == "TupleElement" and value is not None:
            fields = value.fields(("tuple", "index"))
            return _element(_number(fields["tuple"]), _number(fields["index"]))
        if tag != "Value" or value is None:
            raise node.expected("`Value`, `TupleElement` or `Literal`")
        names = self._names(value)
        if len(names) != 1:
            raise node.error("a tuple is not an operand in this version; name its element")
        return names[0]

    def _names(self, node: JsonNode) -> list[str]:
        number = _number(node)
        if number not in self._tuples:
            return [str(number)]
        return [_element(number, index) for index in range(self._tuples[number])]


def _number(node: JsonNode) -> int:
    if type(node.value) is not int or not 0 <= node.value < 2**32:
        raise node.expected("the number of a value")
    return node.value


def _element(number: int, index: int) -> str:
    return f"tuple{number}.{index}"
