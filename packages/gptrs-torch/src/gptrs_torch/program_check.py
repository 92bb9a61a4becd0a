"""Checks that the description of a program in a `.pt2` file is harmless, before torch reads it.

torch generates Python source from a program and runs it, with the names of inputs, nodes, weights
and arguments pasted in. It also evaluates sizes, and imports the types of nested arguments. Here
sizes must be plain arithmetic, nestings plain types, and names identifiers.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, TypeAlias, cast

import sympy
import torch
from torch.export import ExportedProgram

from gptrs.api import ModelError, UnsupportedError, UsageError, importers
from gptrs.api.importers import ModelInput, is_symbol, size_tensor
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes

MAX_TEXT: Final = 2_000
"""Most characters of the expression of a size."""
_TARGET: Final = re.compile(
    r"torch\.ops\.(?P<space>aten|quantized_decomposed)\.(?P<name>[A-Za-z_]\w*)\.(?P<overload>\w+)"
    r"|torch\.ops\.higher_order"
    r"\.(cond|while_loop|scan|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|getitem|ge|gt|le|lt|eq|ne|and_|or_)"
    r"|math\.(floor|ceil|trunc)|torch\.sym_(max|min|not|float|int|ite|sqrt)"
)
_INNER: Final = re.compile(
    r"(?:(?:true|false)_graph|while_loop_(?:cond|body)_graph|scan_combine_graph|submod)_\d{1,9}"
)
"""Names of graphs inside: branches, loops, blocks of `torch.no_grad` and autocast."""
_BRANCHES_ONLY: Final = "of torch's control flow, `cond`, `while_loop` and `scan` are converted"
_DECOMPOSED: Final = (
    "`torch.export.save(program.run_decompositions(), FILE)` writes `vmap`, torchao's operators and"
    " others as those of ATen; an operator of your own is to be written with those of torch"
)
_OF_FILES: Final = frozenset({"from_file"})
"""ATen operators that open files."""
_TOKEN: Final = re.compile(
    r"\s*(?:Float\('-?\d{1,20}(?:\.\d{1,25})?(?:e[-+]?\d\d)?', precision=53\)"
    r"|(?P<name>[A-Za-z_]\w*)|'(?P<symbol>[A-Za-z]\w{0,30})'|-?\d{1,18}(?!\w)|[(),=]|[-+*/](?!\*))"
)
_FUNCTIONS: Final = frozenset(
    {"Symbol", "Integer", "Add", "Mul", "Max", "Min", "FloorDiv", "CleanDiv", "CeilDiv", "Mod"}
    | {"Pow", "PowByNatural", "PythonMod", "positive", "integer", "nonnegative", "True", "False"}
    | {"ToFloat", "IntTrueDiv", "FloatTrueDiv", "FloatPow", "OpaqueUnaryFn_sqrt"}
    | {"TruncToInt", "FloorToInt", "CeilToInt", "Equality", "Unequality", "StrictGreaterThan"}
    | {"StrictLessThan", "GreaterThan", "LessThan", "And", "Or", "Not"}
)
_CALL: Final = re.compile(r"(\w*)\(|\)")
_POWERS: Final = ("Pow", "PowByNatural")
_SMALL_POWER: Final = re.compile(r",\s*(?:Integer\([2-4]\)|[2-4])$")
_MOST_POWERS: Final = 4
"""Powers in one expression: nested ones multiply, and files are untrusted."""
_SYMBOL: Final = re.compile(r"[a-z]{1,4}\d{1,9}")
_EXACT: Final = 2**20
"""Numerators and denominators of factors whose products with sizes floats hold exactly."""
_PLAIN_TREES: Final = frozenset(
    ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None)
)
_CHECKED_APART: Final = frozenset({"expr_str", "target", "in_spec", "out_spec", "torch_version"})
_QUOTED: Final = frozenset({"as_string", "as_strings"})
"""String arguments of operators, which torch quotes."""
_LEAST: Final = "-Infinity"
"""Spellings of floats that JSON lacks."""
_RANDOM: Final = "from"
"""The only Python keyword among the names of ATen's arguments."""
_PATHS: Final = frozenset(
    {"fqn", "parameter_name", "buffer_name", "tensor_constant_name", "custom_obj_name"}
)
"""Names of modules and of tensors in them. torch quotes parts that are no identifiers."""

FIXED_SIZES: Final = (
    "keep all elements, and mark those that count by a mask (`torch.where`), or leave this part to"
    " torch"
)
"""A hint for sizes that depend on data."""


def checked_program(program: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description without its Python code and its provenance.

    Raises UnsupportedError, ModelError, KeyError or TypeError for forbidden contents.
    """
    module: dict[str, Any] = {
        **program["graph_module"],
        "metadata": {},
        "treespec_namedtuple_fields": {},
    }
    for each in _tree_nodes(module["graph"]):
        if isinstance(each.get("target"), str) and "metadata" in each:
            each["metadata"] = {}  # of a node, also in a branch
    _require_distinct(_input_names(module))
    for call in module["module_call_graph"]:
        if signature := call.get("signature"):
            _require_distinct(signature.get("forward_arg_names") or [])
            _make_plain(signature)
    # torch fails on ranges of expressions such as `2*s0`; they follow from those of symbols.
    ranges: dict[str, object] = program["range_constraints"]
    kept = {size: ranges[size] for size in ranges if _SYMBOL.fullmatch(size)}
    guards: list[str] = []  # `SizeConditions` reads them
    changed = {"graph_module": module, "range_constraints": kept, "guards_code": guards}
    found: dict[str, Any] = {**program, **changed}
    for key, value in _pairs(found):
        _check_pair(key, value)
    return found


def shown_name(name: object) -> str:
    """Return a name from a file, escaped and shortened for messages."""
    return ascii(str(name))[1:-1][:60]


def require_path(name: str) -> str:
    """Return the name of a tensor in modules; ModelError if it could break out of quotes."""
    if not name.isprintable() or set(name) & set("\"'\\"):
        raise ModelError(f"`{shown_name(name)}` is not a name of a tensor or module")
    return name


def _check_pair(key: str, value: object) -> None:
    """Refuse a key and value that may not be in a program."""
    _require_name(key)
    if key == "expr_str":
        _require_expression(str(value))
    elif key == "target" and isinstance(value, str):
        _require_operator(value)
    elif key == "as_graph" and value is not None:
        _require_inner(cast("dict[str, Any]", value))
    elif key in ("as_custom_obj", "token", "custom_obj", "opaque"):
        raise UnsupportedError(f"the program has a `{key}`, which is not converted")
    elif isinstance(value, str) and key not in _CHECKED_APART | _QUOTED:
        (require_path if key in _PATHS else _require_name)(value)


def _require_inner(value: Mapping[str, Any]) -> None:
    """Refuse a graph inside another one unless it has a name that torch gives it."""
    if _INNER.fullmatch(value["name"]) is None:
        raise UnsupportedError(
            f"the program has a graph `{shown_name(value['name'])}` inside, which is not converted",
            hint=_BRANCHES_ONLY,
        )
    inputs: list[dict[str, Any]] = value["graph"]["inputs"]
    _require_distinct([slot["name"] for each in inputs for slot in each.values()])


def _require_name(name: str) -> None:
    """Raise ModelError unless the text is empty or an identifier in Python."""
    is_one = name.isidentifier() and (name == _RANDOM or not keyword.iskeyword(name))
    if name and not is_one and name != _LEAST:
        raise ModelError(f"`{shown_name(name)}` is not a name of an input, a node or an argument")


def _input_names(module: Mapping[str, Any]) -> list[object]:
    """Return the names of the inputs of a program, including constants."""
    specs: list[dict[str, Any]] = module["signature"]["input_specs"]
    names: list[object] = []
    for position, slot in enumerate(module["graph"]["inputs"]):
        for value in slot.values():
            if isinstance(value, dict):  # in a signature, the name of a tensor is one level down
                named = cast("dict[str, object]", value)
                names.append(named.get("name", named.get("as_name")))
            else:
                constant: dict[str, object] = specs[position].get("constant_input") or {}
                names.append(constant.get("name") or f"arg{position}")  # torch's name for it
    return names


def _require_distinct(names: list[object]) -> None:
    """Refuse duplicate names of parameters."""
    texts = [name for name in names if isinstance(name, str)]
    if len(set(texts)) < len(texts) or "self" in texts:
        raise ModelError(f"two inputs have the same name: {shown_name(', '.join(texts))}")


def _require_operator(target: str) -> None:
    """Refuse targets other than ATen operators and arithmetic of sizes, since torch calls them."""
    found = _TARGET.fullmatch(target)
    if found is None or (found["name"] and not _is_known_operator(found)):
        raise UnsupportedError(
            f"the operator `{shown_name(target)}` is not from ATen, and is not converted",
            hint=_BRANCHES_ONLY if ".higher_order." in target else _DECOMPOSED,
        )


def _is_known_operator(target: re.Match[str]) -> bool:
    packet: object = getattr(getattr(torch.ops, target["space"]), target["name"], None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):  # pyright: ignore[reportPrivateUsage]
        return False
    return target["overload"] in packet.overloads() and target["name"] not in _OF_FILES


def _make_plain(signature: dict[str, Any]) -> None:
    """Make the nesting of arguments and results plain; refuse types that torch would import."""
    for key in ("in_spec", "out_spec"):
        if isinstance(signature.get(key), str):
            tree = json.loads(signature[key])
            if key == "out_spec":
                _make_fields_dicts(tree)
            for node in _tree_nodes(tree):
                _make_node_plain(node)
            if key == "in_spec":
                _require_argument_names(tree)
            signature[key] = json.dumps(tree)


def _require_argument_names(tree: Any) -> None:
    """Refuse keyword arguments that cannot be parameters of a function."""
    children = tree[1]["children_spec"]  # the root, args and kwargs
    if len(children) == 2 and children[1]["context"] is not None:
        for name in json.loads(children[1]["context"]) or ():
            _require_name(str(name))


def _tree_nodes(tree: object) -> Iterator[dict[str, Any]]:
    """Yield all objects of a nesting, without recursion, since files are untrusted."""
    pending = [tree]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending.extend(cast("list[object]", each))
        elif isinstance(each, dict):
            node = cast("dict[str, Any]", each)
            yield node
            pending.extend(node.values())


def _make_fields_dicts(tree: object) -> None:
    """Replace classes with named fields, such as the outputs of transformers, by dicts."""
    for node in _tree_nodes(tree):
        children = node.get("children_spec")
        if node.get("type") not in _PLAIN_TREES and _are_fields(node.get("context"), children):
            node["type"] = "builtins.dict"


def _are_fields(context: object, children: object) -> bool:
    """Return whether `context` is the JSON list of the names of `children`."""
    if not isinstance(context, str) or not isinstance(children, list):
        return False
    names = json.loads(context)
    if not isinstance(names, list):
        return False
    known = {name for name in cast("list[object]", names) if isinstance(name, str)}
    return len(known) == len(cast("list[object]", names)) == len(cast("list[object]", children))


def _make_node_plain(node: dict[str, Any]) -> None:
    """Refuse a nested node of a type that torch would import; make its context plain keys."""
    kind = node.get("type")
    if kind not in _PLAIN_TREES:
        raise UnsupportedError(
            f"the program takes or returns a `{shown_name(kind)}`; only tuples, lists and dicts "
            f"are read",
            hint="export a module that returns a tuple or dict",
        )
    if node.get("context") is None:
        return
    found: object = json.loads(node["context"])
    keys = [] if found is None else cast("list[object]", found)
    if not isinstance(found, list | None) or any(isinstance(key, list | dict) for key in keys):
        raise UnsupportedError(
            "the program takes or returns a dict with keys that are not plain values"
        )
    node["context"] = json.dumps(found)


def _pairs(value: object) -> Iterator[tuple[str, object]]:
    """Yield all pairs of all objects of a JSON value, without recursion.

    The elements of a list have the key of the list.
    """
    pending = [("", value)]
    while pending:
        key, each = pending.pop()
        if isinstance(each, list):
            pending.extend((key, element) for element in cast("list[object]", each))
        elif isinstance(each, dict):
            pairs = cast("dict[str, object]", each).items()
            yield from pairs
            pending.extend(pairs)
        elif isinstance(each, str):
            yield key, each


def _require_expression(text: str) -> None:
    """Refuse all but plain arithmetic, comparisons and small powers: torch evaluates the text."""
    start = 0
    while start < len(text) <= MAX_TEXT:
        found = _TOKEN.match(text, start)
        if found is None or not _is_known(found):
            break
        start = found.end()
    if start != len(text) or not _has_small_powers(text):
        of_data = re.search(r"Symbol\('u\d", text) is not None
        why = "depends on data" if of_data else "is not a supported expression"
        hint = f"`nonzero`, `unique` and `x[mask]` give such sizes: {FIXED_SIZES}"
        raise UnsupportedError(
            f"the size `{shown_name(text)}` {why}", hint=hint if of_data else None
        )


def _has_small_powers(text: str) -> bool:
    """Return whether all powers in an expression, such as the size of a mask, are small."""
    opened: list[str] = []
    for found in _CALL.finditer(text):
        if found[0] != ")":
            opened.append(found[1])
        elif opened and opened.pop() in _POWERS and not _SMALL_POWER.search(text, 0, found.start()):
            return False
    return text.count("Pow") <= _MOST_POWERS


def _is_known(token: re.Match[str]) -> bool:
    if token["symbol"]:
        return _SYMBOL.fullmatch(token["symbol"]) is not None
    name = token["name"]
    return name is None or name in _FUNCTIONS or _SYMBOL.fullmatch(name) is not None


# Free sizes, as expressions over torch's symbols.


def expression_of(size: object) -> sympy.Expr | None:
    """Return the expression of a free size; None for numbers and anything else."""
    if not isinstance(size, torch.SymInt):
        return None
    found = cast("sympy.Expr", cast("Any", size).node.expr)
    return None if found.is_number else found


def evaluated(expression: sympy.Expr, sizes: Mapping[sympy.Expr, int]) -> int | None:
    """Return the value of an expression; None for an operation that PTIR's sizes lack.

    `sizes` may hold symbols of a program, which only the type checker takes for integers.
    """
    if expression in sizes:
        return sizes[expression]
    if expression.is_Integer:
        return int(cast("Any", expression))
    name = type(expression).__name__
    if name in ("TruncToInt", "FloorToInt"):
        return _scaled(cast("sympy.Expr", expression.args[0]), sizes)
    parts = [evaluated(cast("sympy.Expr", part), sizes) for part in expression.args]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if expression.is_Add:
        return sum(known[1:], known[0])
    if expression.is_Mul:
        return math.prod(known[1:], start=known[0])
    if expression.is_Pow and type(known[1]) is int and 0 < known[1] < 5:
        return math.prod([known[0]] * known[1])
    if name in ("FloorDiv", "CleanDiv"):
        return known[0] // known[1]
    if name in ("Max", "Min"):
        return (max if name == "Max" else min)(known)
    return known[0] % known[1] if name in ("Mod", "PythonMod") else None


def _scaled(product: sympy.Expr, sizes: Mapping[sympy.Expr, int]) -> int | None:
    """Return a size times a positive factor, rounded down; None unless floats are exact there."""
    factor, size = product.args if product.is_Mul and len(product.args) == 2 else (None, None)
    if not isinstance(factor, sympy.Float) or type(size).__name__ != "ToFloat":
        return None
    part = Fraction(float(cast("Any", factor)))
    if part <= 0 or max(part.numerator, part.denominator) > _EXACT:
        return None
    found = evaluated(cast("Any", size).args[0], sizes)
    return None if found is None else found * part.numerator // part.denominator


# The free sizes of an export: ranges, and dependencies among them.


MOST: Final = 2**60
"""A range with an end above this is unbounded."""


class ExportedSizes:
    """Constraints on the input sizes of an exported program.

    Sizes of a single symbol are read from the inputs; each expression of symbols must then have the
    value, and lie in the range, that torch found during the export.
    """

    def __init__(self, exported: ExportedProgram) -> None:
        self._axes: list[tuple[str, int, sympy.Expr]] = []
        for node in exported.graph.nodes:
            held = node.meta.get("val")
            if node.op == "placeholder" and isinstance(held, torch.Tensor):
                sizes = enumerate(map(expression_of, held.shape))
                self._axes += [(node.name, axis, size) for axis, size in sizes if size is not None]
        self._axes.sort(key=lambda each: not each[2].is_Symbol)  # symbols first
        ranges = cast("Mapping[sympy.Expr, Any]", exported.range_constraints)
        self._ranges = {size: (each.lower, each.upper) for size, each in ranges.items()}

    def check(self, inputs: Mapping[str, ModelInput], given: Mapping[str, torch.Tensor]) -> None:
        """Check input sizes; UsageError names the first one that the export does not allow."""
        known: dict[sympy.Expr, tuple[int, str]] = {}
        for name, axis, size in self._axes:
            if name not in given:
                continue
            found = given[name].shape[axis]
            slot = inputs[name]
            wanted = self._value(size, known)
            if wanted is not None and wanted != found:
                source = ", ".join(sorted({known[each][1] for each in _symbols(size)}))
                raise UsageError(
                    f"the input {slot} has {found} elements along axis {axis}, not {wanted}",
                    hint=f"that size follows from the one of {source}",
                )
            if wanted is None and size.is_Symbol:
                known[size] = found, f"`{name}`"
            self._check_range(slot, axis, size, found)

    def _value(self, size: sympy.Expr, known: Mapping[sympy.Expr, tuple[int, str]]) -> int | None:
        """Return the value of an expression; None if one of its symbols has none yet."""
        if any(each not in known for each in _symbols(size)):
            return None
        return int(cast("Any", size).subs({each: known[each][0] for each in _symbols(size)}))

    def _check_range(self, slot: ModelInput, axis: int, size: sympy.Expr, found: int) -> None:
        low, high = self._ranges.get(size, (found, found))
        if not (low <= found <= high):
            to = f"{low} to {high}" if high < MOST else f"at least {low}"
            raise UsageError(
                f"the input {slot} has {found} elements along axis {axis}, the export allows {to}",
                hint="export the program with a wider `torch.export.Dim`, such as `Dim('n', min=1)`"
                " in place of `Dim.AUTO`, which begins at 2",
            )


def _symbols(size: sympy.Expr) -> set[sympy.Expr]:
    return cast("set[sympy.Expr]", size.free_symbols)


# The values of a torch graph during conversion: tensors, numbers, and lists of them.


Number: TypeAlias = "bool | int | float"
Operand: TypeAlias = "Tensor | Number"
"""A tensor or a number; the number may be a symbolic size."""


def operand(value: object, dtype: DType) -> Tensor:
    """Return a tensor or number as a tensor of `dtype`; numbers get rank 0."""
    if isinstance(value, Tensor):
        return converted(value, dtype)
    return scalar(cast("Number", value), dtype)


_LARGEST_F8: Final = 448.0


def converted(x: Tensor, dtype: DType) -> Tensor:
    """Return x in another element type as torch converts: floats to i1 by `x != 0`, integers by
    their low bits.
    """
    if x.dtype.is_integer and dtype.is_integer:
        return importers.wrapped(x, dtype)
    if dtype == dtypes.f8e4m3 and x.dtype.is_float and x.dtype != dtype:
        x = F.clamp(x, -_LARGEST_F8, _LARGEST_F8)  # torch saturates this type, and no other one
    return x if x.dtype == dtype else F.cast(x, dtype)


def scalar(value: Number, dtype: DType) -> Tensor:
    """Return a number or size as a scalar of `dtype`, rounded to it; integers wrap."""
    if is_symbol(value):
        return converted(size_tensor(cast("int", value)), dtype)
    is_lost = dtype.is_integer and not isinstance(value, int) and not math.isfinite(value)
    return importers.scalar(0 if is_lost else value, dtype)


def axis_of(axis: int, x: Tensor) -> int:
    """Return an axis counted from the front; in torch, a scalar has one axis."""
    return axis % max(x.rank, 1)


def axes_of(axes: int | list[int] | tuple[int, ...] | None, x: Tensor) -> list[int]:
    """Return axes counted from the front; all of them for None or an empty list."""
    if axes is None or axes == [] or axes == ():
        return list(range(x.rank))
    several = [axes] if isinstance(axes, int) else list(axes)
    return [axis % x.rank for axis in several] if x.rank else []
