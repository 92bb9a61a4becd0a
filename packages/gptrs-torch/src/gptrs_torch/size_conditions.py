"""Conditions on input sizes that an export noted as Python code, which is read but never run.

torch traces one branch of `if x.shape[0] % 2`, and writes `L['x'].size()[0] % 2 == 0`. Other sizes
would take the wrong branch.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias, cast

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from gptrs.api import UnsupportedError, UsageError
from gptrs_torch.program_check import shown_name

Sizes: TypeAlias = Mapping[str, Sequence[int]]
"""The shapes of inputs by name."""
Term: TypeAlias = Callable[[Sizes], Any]

MAX_TEXT: Final = 4_000
"""Most characters of a condition."""
MAX_POWERS: Final = 4
"""Most powers in a condition: nested, each may have four times as many digits."""
_BINARY: Final = cast(
    "Mapping[object, Callable[[Any, Any], Any]]",
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Pow: operator.pow,
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    },
)
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "math.trunc": math.trunc,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "math.sqrt": math.sqrt,
    "abs": abs,
    "max": max,
    "min": min,
    "round": round,
    "torch.sym_float": float,
    "torch.sym_int": int,
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch._sym_sqrt": math.sqrt,
}
_LAYOUT: Final = (".stride()", ".storage_offset()")
"""Conditions on memory, which results do not depend on."""
_WRONG: Final = (ArithmeticError, LookupError, TypeError, ValueError)


class SizeConditions:
    """The conditions of an export, each as a function of shapes.

    UnsupportedError for one that is not plain arithmetic of the sizes of inputs.
    """

    def __init__(self, exported: ExportedProgram, texts: Sequence[str]) -> None:
        inputs = _inputs_by_source(exported) if texts else {}
        kept = [text for text in texts if not any(word in text for word in _LAYOUT)]
        self._conditions = [(text, _parsed(text, inputs)) for text in kept]
        self._passed: Sizes | None = None

    def check(self, given: Mapping[str, torch.Tensor]) -> None:
        """UsageError names the first condition that the sizes of inputs do not meet."""
        if not self._conditions:
            return
        sizes: Sizes = {name: each.shape for name, each in given.items()}
        if sizes == self._passed:
            return
        for text, condition in self._conditions:
            try:
                holds = condition(sizes)
            except _WRONG:  # such as a division by 0
                holds = False
            if not holds:
                raise UsageError(
                    f"the sizes of the inputs do not meet a condition of the export: `{text}`",
                    hint="export the model with inputs of these sizes",
                )
        self._passed = sizes


def _inputs_by_source(exported: ExportedProgram) -> dict[str, str]:
    """Return the names of inputs by their source, such as `L['x'][0]`, in all its forms."""
    names = list(exported.graph_signature.user_inputs)
    signature = exported.module_call_graph[0].signature
    assert signature is not None
    leaves = pytree.tree_unflatten(names, signature.in_spec)
    args, kwargs = cast("tuple[Sequence[object], dict[str, object]]", leaves)
    arguments: list[str] = list(getattr(signature, "forward_arg_names", None) or [])
    found = {f"L['flat_args'][{i}]": str(name) for i, name in enumerate(names)}
    values: dict[str, object] = {**dict(zip(arguments, args, strict=False)), **kwargs}
    # `*x` is one argument in conditions, and `x_0`, `x_1` in the signature.
    base = arguments[0].removesuffix("_0") if arguments and arguments[0].endswith("_0") else ""
    values |= {base: args} if base else {}
    for path, name in pytree.tree_flatten_with_path(values)[0]:
        found["L" + pytree.keystr(path)] = str(name)
    return found


def _parsed(text: str, inputs: Mapping[str, str]) -> Term:
    try:
        if len(text) > MAX_TEXT or text.count("**") > MAX_POWERS:
            raise ValueError
        return _term(ast.parse(text.strip(), mode="eval").body, inputs)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unread(text) from error


def _unread(text: str) -> UnsupportedError:
    return UnsupportedError(f"the export has a condition that is not read: `{shown_name(text)}`")


def _refused(node: ast.AST) -> NoReturn:
    raise _unread(ast.unparse(node))


def _term(node: ast.expr, inputs: Mapping[str, str]) -> Term:
    """Return an expression as a function; UnsupportedError for other than plain arithmetic."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return lambda sizes: value
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=source, attr="size"), args=[]),
            slice=ast.Constant(value=int(axis)),
        ):
            name = inputs.get(ast.unparse(source)) or _refused(node)
            return lambda sizes: sizes[name][axis]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            number = _term(inner, inputs)
            return lambda sizes: -number(sizes)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            truth = _term(inner, inputs)
            return lambda sizes: not truth(sizes)
        case ast.BinOp(left=left, op=op, right=right):
            if isinstance(op, ast.Pow) and not _is_small(right):
                _refused(node)
            return _applied(node, op, left, right, inputs)
        case ast.BoolOp(op=op, values=values):
            parts, combine = [_term(each, inputs) for each in values], _combined(op)
            return lambda sizes: combine(part(sizes) for part in parts)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _applied(node, op, left, right, inputs)
        case ast.Call(func=function, args=args, keywords=[]):
            call = _FUNCTIONS.get(ast.unparse(function)) or _refused(node)
            given = [_term(each, inputs) for each in args]
            return lambda sizes: call(*(each(sizes) for each in given))
        case _:
            _refused(node)


def _combined(op: ast.boolop) -> Callable[..., bool]:
    return all if isinstance(op, ast.And) else any


def _applied(
    node: ast.expr,
    op: ast.operator | ast.cmpop,
    left: ast.expr,
    right: ast.expr,
    inputs: Mapping[str, str],
) -> Term:
    apply = _BINARY.get(type(op)) or _refused(node)
    first, second = _term(left, inputs), _term(right, inputs)
    return lambda sizes: apply(first(sizes), second(sizes))


def _is_small(exponent: ast.expr) -> bool:
    """Return whether an exponent is a small number: files are untrusted."""
    match exponent:
        case ast.Constant(value=int() | float() as value):
            return value <= 4
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return True
        case _:
            return False
