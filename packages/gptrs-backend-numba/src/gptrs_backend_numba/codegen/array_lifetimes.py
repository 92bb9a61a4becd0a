"""The check that arrays outlive their addresses.

numba frees an array after its last mention on a path, even if its address is used afterwards. So a
function that takes `x.ctypes` of an array must mention the array once more, by `keep_alive(x)`,
before each way out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def require_kept_arrays(function: ast.FunctionDef) -> None:
    """Raise AssertionError unless arrays whose address is taken live until each `return`."""
    taken = _addressed(function)
    if not taken:
        return
    _require_one_assignment(function, taken.keys())
    assert isinstance(function.body[-1], ast.Return), f"`{function.name}` must end with `return`"
    for body in _bodies(function):
        for index, statement in enumerate(body):
            if isinstance(statement, ast.Return):
                needed = {name for name, line in taken.items() if line <= statement.lineno}
                missing = sorted(needed - _kept_before(body, index))
                assert not missing, (
                    f"line {statement.lineno} of `{function.name}`: `{missing[0]}` is freed before"
                    f" its address is last used; put `keep_alive({missing[0]})` before `return`"
                )


def _addressed(function: ast.FunctionDef) -> dict[str, int]:
    """Return the arrays whose address is taken, each with the first line that does."""
    found: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr == "ctypes":
            assert isinstance(node.value, ast.Name), "name the array whose address is taken"
            found[node.value.id] = min(node.lineno, found.get(node.value.id, node.lineno))
    return found


def _require_one_assignment(function: ast.FunctionDef, names: object) -> None:
    """Raise AssertionError if an array is made in a loop or assigned twice: numba frees it then."""
    top_level = {
        node.id for statement in function.body if isinstance(statement, ast.Assign)
        for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)
    }  # fmt: skip
    stored = [
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    for name in names:
        assert name in top_level, f"make `{name}` outside of loops and branches"
        assert stored.count(name) == 1, f"`{name}` must stay the array whose address was taken"


def _bodies(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield body


def _kept_before(body: list[ast.stmt], index: int) -> set[str]:
    """Return the names in the `keep_alive` statements right before `body[index]`."""
    kept: set[str] = set()
    for statement in reversed(body[:index]):
        match statement:
            case ast.Expr(ast.Call(ast.Name("keep_alive"), [ast.Name(name)])):
                kept.add(name)
            case _:
                break
    return kept
