"""Python's operators on tensors, each bound to the functional that gives it meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_BOUND: dict[str, Callable[..., Any]] = {}
_loaders: list[Callable[[], object]] = []


def set_loader(load: Callable[[], object]) -> None:
    """Let `load` import what binds the operators, when the first of them is used."""
    _loaders[:] = [load]


def bind(symbol: str, function: Callable[..., Any]) -> None:
    """Let the operator `symbol` call `function(lhs, rhs)` (or of one operand)."""
    _BOUND[symbol] = function


def _meaning(symbol: str) -> Callable[..., Any]:
    if symbol not in _BOUND:
        for load in _loaders:
            load()
    return _BOUND[symbol]


class Operators:
    """Mixin: `+ - * / @` and unary `-`; the other operand is a tensor or a Python number."""

    __slots__ = ()

    def __add__(self, other: object) -> Any:
        return _meaning("+")(self, other)

    def __radd__(self, other: object) -> Any:
        return _meaning("+")(other, self)

    def __sub__(self, other: object) -> Any:
        return _meaning("-")(self, other)

    def __rsub__(self, other: object) -> Any:
        return _meaning("-")(other, self)

    def __mul__(self, other: object) -> Any:
        return _meaning("*")(self, other)

    def __rmul__(self, other: object) -> Any:
        return _meaning("*")(other, self)

    def __truediv__(self, other: object) -> Any:
        return _meaning("/")(self, other)

    def __rtruediv__(self, other: object) -> Any:
        return _meaning("/")(other, self)

    def __matmul__(self, other: object) -> Any:
        return _meaning("@")(self, other)

    def __neg__(self) -> Any:
        return _meaning("neg")(self)
