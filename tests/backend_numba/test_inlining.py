"""Parts of kernels: names that do not meet, places of calls, and what is refused."""

import ast
from collections.abc import Callable
from typing import NamedTuple

import pytest

from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.inlining import Part, inline_parts, scatter_records
from gptrs_backend_numba.codegen.kernel import kernel, kernel_part


@kernel_part
def doubled(x):
    """Return twice a number, by a variable that others have as well."""
    total = x + x
    x = 1000
    return total


@kernel_part
def sum_of_doubled(count, step, *, FACTOR, begin):
    total = 0
    for x in range(count):
        twice = doubled(x * step)
        total += FACTOR * twice
    total = begin(total)
    return total


@kernel
def summed(x, step, *, part):
    total = part(x, step)
    total = doubled(total)
    return 10000 * x + total


@kernel
def nested_call(x):
    return 1 + doubled(x)


class Pair(NamedTuple):
    first: int
    number: int


@kernel_part
def pair_of(x, y):
    return Pair(x + y, x * y)


@kernel
def of_pairs(x, y):
    """One pair is read by its fields, one as a whole, one is made twice."""
    pair = pair_of(x, y)
    x = 1000
    whole = Pair(x, y)
    first, count = whole
    again = Pair(1, 2)
    again = Pair(again.number, again.first)
    return pair.first + 10 * pair.number + 7 * first + count + 100000 * again.first


def test_named_tuples_become_variables_where_only_their_fields_are_read() -> None:
    assert compiled(of_pairs)(3, 4) == 7 + 10 * 12 + 7 * 1000 + 4 + 100000 * 2
    tree = ast.parse(
        "def caller(x):\n a = Pair(x, 2)\n b = Pair(3, x)\n return a.first, b, b.number"
    )
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    scatter_records(definition, {"Pair": Pair})
    assert ast.unparse(definition.body[-1]) == "return (a__first, b, b.number)"
    assert len(definition.body) == 4


def test_variables_of_parts_keep_apart() -> None:
    inner = sum_of_doubled.specialize(FACTOR=5, begin=doubled.specialize())
    assert compiled(summed.specialize(part=inner))(4, 3) == 40000 + 2 * 2 * 5 * 2 * (0 + 3 + 6 + 9)


def test_a_part_twice_in_a_kernel_has_its_own_variables() -> None:
    assert compiled(twice)(3, 4) == 6 * 1000 + 8


@kernel
def twice(x, y):
    a = doubled(x)
    b = doubled(y)
    return 1000 * a + b


def test_global_names_are_those_of_the_module_of_the_part() -> None:
    definition, namespace = inlined("y = other(x)\nreturn y + PANEL", other="return x * PANEL")
    assert run(definition, namespace, 2) == 2 * 5 + 3


def test_an_argument_that_the_part_changes_is_not_changed_in_the_caller() -> None:
    definition, namespace = inlined("y = other(x)\nreturn 10 * x + y", other="x += 1\nreturn x")
    assert run(definition, namespace, 2) == 23


def test_a_part_may_be_a_statement_and_an_end() -> None:
    definition, namespace = inlined("if x:\n    other(x)\nreturn other(x)", other="x = x\nreturn x")
    assert run(definition, namespace, 7) == 7


@pytest.mark.parametrize(
    ("body", "other", "message"),
    [
        ("return 1 + other(x)", "return x", "line 2 of `f`: `other` is a part of kernels"),
        ("y = other(x, x)\nreturn y", "return x", "line 2: `other` takes x"),
        ("y = other(x=x)\nreturn y", "return x", "line 2: `other` takes x"),
        ("y = other(x)\nreturn y", "if x:\n    return x\nreturn 1", "must return once"),
        ("y = other(x)\nreturn y", "if x:\n    return x", "must return once"),
        ("y = other(x)\nreturn y", "x = 1", "`other` returns nothing"),
    ],
)
def test_calls_in_other_places_are_refused(body: str, other: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        inlined(body, other)


def test_a_kernel_says_which_line_calls_a_part_within_an_expression() -> None:
    with pytest.raises(TypeError, match=r"of `nested_call`: `doubled` is a part of kernels"):
        compiled(nested_call)


def inlined(body: str, other: str) -> tuple[ast.FunctionDef, dict[str, object]]:
    part = Part(function("other", other), {"PANEL": 5})
    definition, namespace = function("f", body), {"other": part, "PANEL": 3}
    inline_parts(definition, namespace, lambda value: value if isinstance(value, Part) else None)
    return definition, namespace


def function(name: str, body: str) -> ast.FunctionDef:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (definition,) = ast.parse(f"def {name}(x):\n{lines}").body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def run(definition: ast.FunctionDef, namespace: dict[str, object], x: int) -> object:
    exec(compile(ast.fix_missing_locations(ast.Module([definition], [])), "f", "exec"), namespace)
    found = namespace["f"]
    assert isinstance(found, Callable)
    return found(x)
