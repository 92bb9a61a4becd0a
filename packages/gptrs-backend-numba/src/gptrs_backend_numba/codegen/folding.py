"""Replaces global names of constants by their values, in the syntax tree.

numba types and translates each operation of constants, and each branch unless one constant alone
rules it out. What is folded here has the value and the type that numba gives it.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np

_UNKNOWN: Final = object()
_OF_NUMBERS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip
"""Operations of integers and truth values."""
_OF_INTEGERS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}  # fmt: skip
"""Operations of integers alone."""
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_SCALARS: Final = (np.integer, np.float32, np.float64)


def fold_constants(definition: ast.FunctionDef, namespace: dict[str, object]) -> None:
    """Fold the operations of constants in a function, and drop branches that they rule out.

    The constants are literals and numbers of Python in `namespace`. NumPy scalars and what the
    function takes from modules are added to `namespace`. TypeError if a variable that is read is
    assigned only in dropped branches.
    """
    parameters = {argument.arg for argument in definition.args.args}
    stored = _stored(definition)
    definition.body = _Folder(namespace, stored | parameters).kept(definition.body)
    lost = stored - _stored(definition) - parameters
    for node in _names(definition):
        if node.id in lost:  # Python would take it for a global name
            raise TypeError(
                f"line {node.lineno} of `{definition.name}`: `{node.id}` is assigned only where the"
                " constants of the kernel let nothing run"
            )


class _Folder(ast.NodeTransformer):
    def __init__(self, namespace: dict[str, object], variables: set[str]) -> None:
        self._namespace = namespace
        self._variables = variables

    def kept(self, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
        """Return the folded statements that may run, at least one."""
        return self._left(statements) or [ast.Pass()]

    def _left(self, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
        left: list[ast.stmt] = []
        for statement in statements:
            found = self.visit(statement)
            left += found if isinstance(found, list) else [found]
            if left and isinstance(left[-1], ast.Return):
                break
        return left

    def visit(self, node: ast.AST) -> Any:
        """Return the replacement of a node."""
        value = self._value(node)
        return super().visit(node) if value is _UNKNOWN else _literal(value, node)

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        test = self._test(node.test)
        if isinstance(test, ast.Constant):
            return self._left(node.body if test.value else node.orelse)
        node.test, node.body, node.orelse = test, self.kept(node.body), self._left(node.orelse)
        return node

    def visit_While(self, node: ast.While) -> ast.stmt | list[ast.stmt]:
        test = self._test(node.test)
        if isinstance(test, ast.Constant) and not test.value:
            return self._left(node.orelse)
        node.test, node.body, node.orelse = test, self.kept(node.body), self._left(node.orelse)
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        node.target, node.iter = self.visit(node.target), self.visit(node.iter)
        node.body, node.orelse = self.kept(node.body), self._left(node.orelse)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self._test(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        node.test, node.body, node.orelse = test, self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        if all(map(self._is_truth, node.values)):
            return self._test(node)
        # The whole has a type with room for each value, so none may be left out.
        node.values = [each if self._is_known(each) else self.visit(each) for each in node.values]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            node.operand = self._test(node.operand)
            return node
        return self._unless_known(node, [node.operand])

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return self._unless_known(node, [node.left, node.right])

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        return self._unless_known(node, node.elts)

    def _unless_known(self, node: ast.expr, operands: list[ast.expr]) -> ast.expr:
        """Return the node as it is if its operands are constants: literals Python would fold."""
        return node if all(map(self._is_known, operands)) else self._with_parts(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        module = self._global(node.value)
        value = getattr(module, node.attr, None) if isinstance(module, ModuleType) else None
        if not callable(value):
            return self._with_parts(node)
        assert isinstance(module, ModuleType)
        return self._named(f"{module.__name__.replace('.', '_')}_{node.attr}", value, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.func = self.visit(node.func)
        if len(node.args) == 1:
            scalar = _scalar(self._global(node.func), self._value(node.args[0]))
            if scalar is not None:
                name = f"{type(scalar).__name__}_{scalar.tobytes().hex()}"
                return self._named(name, scalar, node)
        return self._with_parts(node)

    def _with_parts(self, node: ast.expr) -> ast.expr:
        folded = self.generic_visit(node)
        assert isinstance(folded, ast.expr)
        return folded

    def _named(self, name: str, value: object, node: ast.expr) -> ast.expr:
        """Return a global name for a value, which is the one that any node has by this name."""
        self._namespace[f"{name}__folded"] = value
        return ast.copy_location(ast.Name(f"{name}__folded", ast.Load()), node)

    def _test(self, node: ast.expr) -> ast.expr:
        """Return an expression that is true where `node` is, a literal if that is known."""
        value = self._value(node)
        if value is not _UNKNOWN:
            return _literal(bool(value), node)
        if not isinstance(node, ast.BoolOp):
            return self.visit(node)
        decisive = isinstance(node.op, ast.Or)
        tests: list[ast.expr] = []
        for test in map(self._test, node.values):
            if not isinstance(test, ast.Constant):
                tests.append(test)
            elif test.value is decisive:
                tests.append(test)
                break
        node.values = tests or [_literal(not decisive, node)]
        return node.values[0] if len(node.values) == 1 else node

    def _global(self, node: ast.expr) -> object:
        """Return the value of a global name."""
        if isinstance(node, ast.Name) and node.id not in self._variables:
            return self._namespace.get(node.id, _UNKNOWN)
        return _UNKNOWN

    def _is_known(self, node: ast.expr) -> bool:
        return self._value(node) is not _UNKNOWN

    def _is_truth(self, node: ast.expr) -> bool:
        match node:
            case ast.Compare() | ast.UnaryOp(ast.Not()):
                return True
            case ast.BoolOp(values=values):
                return all(map(self._is_truth, values))
            case _:
                return isinstance(self._value(node), bool)

    def _value(self, node: ast.AST) -> Any:
        """Return the value of an expression of constants."""
        match node:
            case ast.Constant(value):
                return value if _is_constant(value) else _UNKNOWN
            case ast.Name(ctx=ast.Load()):
                value = self._global(node)
                return value if _is_constant(value) else _UNKNOWN
            case ast.UnaryOp(op, operand):
                return _of_one(op, self._value(operand))
            case ast.BinOp(left, op, right):
                return _of_two(op, self._value(left), self._value(right))
            case ast.Compare(left, ops, comparators):
                values = map(self._value, (left, *comparators))
                pairs = zip(ops, itertools.pairwise(values), strict=True)
                truths = [_compared(op, *pair) for op, pair in pairs]
                return _UNKNOWN if _UNKNOWN in truths else all(truths)
            case _:
                return _UNKNOWN


def _of_one(op: ast.unaryop, value: Any) -> Any:
    if isinstance(op, ast.Not) and value is not _UNKNOWN:
        return not value
    if isinstance(op, ast.USub) and _is_integer(value) and _is_integer(-value):
        return -value
    return _UNKNOWN


def _of_two(op: ast.operator, left: Any, right: Any) -> Any:
    """Return an int64 that numba computes as Python does."""
    calculate = None
    if isinstance(left, int) and isinstance(right, int):
        calculate = _OF_NUMBERS.get(type(op))
    if _is_integer(left) and _is_integer(right):
        calculate = calculate or _OF_INTEGERS.get(type(op))
    shift = isinstance(op, ast.LShift | ast.RShift)
    division = isinstance(op, ast.FloorDiv | ast.Mod)
    if calculate is None or (shift and not 0 <= right < 64) or (division and right == 0):
        return _UNKNOWN
    result = calculate(left, right)
    return result if _is_integer(result) else _UNKNOWN


def _compared(op: ast.cmpop, left: Any, right: Any) -> Any:
    if left is _UNKNOWN or right is _UNKNOWN:
        return _UNKNOWN
    if isinstance(op, ast.Is | ast.IsNot) and (left is None or right is None):
        return (left is right) is isinstance(op, ast.Is)
    if type(op) in _COMPARISONS and isinstance(left, int) and isinstance(right, int):
        return _COMPARISONS[type(op)](left, right)
    return _UNKNOWN


def _scalar(type_: object, number: Any) -> np.number[Any] | None:
    """Return the NumPy scalar that numba makes of a number by a type."""
    if not isinstance(type_, type) or not issubclass(type_, _SCALARS):
        return None
    if issubclass(type_, np.integer):
        limits = np.iinfo(type_)
        fits = _is_integer(number) and limits.min <= number <= limits.max
        return type_(number) if fits else None
    return type_(number) if type(number) is float else None


def _is_integer(value: object) -> bool:
    """Return whether a value is one that numba takes for an int64."""
    return type(value) is int and -(2**63) <= value < 2**63


def _is_constant(value: object) -> bool:
    return value is None or type(value) in (bool, float) or _is_integer(value)


def _literal(value: Any, node: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Constant(value), node)


def _stored(definition: ast.FunctionDef) -> set[str]:
    return {node.id for node in _names(definition) if isinstance(node.ctx, ast.Store)}


def _names(definition: ast.FunctionDef) -> Iterator[ast.Name]:
    return (node for node in ast.walk(definition) if isinstance(node, ast.Name))
