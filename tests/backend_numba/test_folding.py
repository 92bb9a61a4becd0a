"""Constants of kernels: what is folded, what numba must see as it stands, and dropped branches."""

import ast

import numpy as np
import pytest

from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.folding import fold_constants
from gptrs_backend_numba.codegen.kernel import kernel

NAMES = {
    "YES": True, "NO": False, "NONE": None, "FOUR": 4, "ZERO": 0, "LARGE": 2**62, "HUGE": 2**63,
    "HALF": 0.5, "ONE": np.int64(1), "np": np,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("FOUR", "4"),
        ("x * (FOUR + 3) - -FOUR", "x * 7 - -4"),
        ("FOUR * YES + NO", "4"),
        ("FOUR // 3 + FOUR % 3 + (FOUR << 2) + (FOUR >> 1)", "20"),
        ("-FOUR // 3 + -FOUR % 3", "0"),
        ("FOUR & 6 | 1 ^ FOUR", "5"),
        ("x * HALF", "x * 0.5"),
        ("f(x, FOUR, NONE)", "f(x, 4, None)"),
        ("3 < FOUR <= 4", "True"),
        ("FOUR != 4", "False"),
        ("NONE is None", "True"),
        ("FOUR is not None", "True"),
        ("not FOUR", "False"),
        ("x if YES else y", "x"),
        ("x if FOUR == 3 or ZERO else y", "y"),
        ("x if x and YES else FOUR", "x if x else 4"),
        ("x if NO and x else y", "y"),
        ("x if x and NO and y else y", "x if x and False else y"),
        ("x if not (x or NO) else y", "x if not x else y"),
        ("YES and x < y", "x < y"),
        ("NO or x < FOUR and YES", "x < 4"),
        ("NO and x < y", "False"),
    ],
)
def test_constants_are_folded(text: str, folded: str) -> None:
    assert body(f"return {text}")[0] == f"return {folded}"


@pytest.mark.parametrize(
    "text",
    [
        "ONE", "HUGE", "LARGE * 2", "LARGE + LARGE + x", "FOUR << 62", "FOUR << 64", "FOUR << -1",
        "FOUR // ZERO", "FOUR % ZERO", "FOUR / 2", "FOUR ** 2", "HALF * 2", "-HALF", "~FOUR",
        "-YES", "YES & NO", "YES << 1", "(FOUR, ZERO)", "FOUR and x", "YES and x",
    ],
)  # fmt: skip
def test_what_numba_computes_or_types_by_rules_of_its_own_stays(text: str) -> None:
    assert body(f"return {text}") == [f"return {text}"]


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("HALF < FOUR", "0.5 < 4"),
        ("NONE == FOUR", "None == 4"),
        ("np.int8(300)", "numpy_int8__folded(300)"),
        ("np.int64(HALF)", "numpy_int64__folded(0.5)"),
        ("np.float32(FOUR)", "numpy_float32__folded(4)"),
        ("np.inf * FOUR", "np.inf * 4"),
    ],
)
def test_operands_are_folded_where_operations_are_not(text: str, folded: str) -> None:
    assert body(f"return {text}") == [f"return {folded}"]


def test_scalars_and_types_of_modules_become_global_names() -> None:
    (text,), names = folded_body("return f(np.float32, np.float32(0.1), np.uint8(FOUR), np.inf)")
    call = ast.parse(text).body[0]
    assert isinstance(call, ast.Return)
    assert isinstance(call.value, ast.Call)
    kept, *added = (ast.unparse(argument) for argument in call.value.args)
    assert names[kept] is np.float32
    values = [names[name] for name in added[:2]]
    assert values == [np.float32(0.1), 4]
    assert [type(value) for value in values] == [np.float32, np.uint8]
    assert added[2] == "np.inf"


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("if YES:\n    x = 1\nelse:\n    x = 2\nreturn x", ["x = 1", "return x"]),
        ("if FOUR < 3:\n    x = 1\nreturn x", ["return x"]),
        ("if FOUR < 3:\n    return 1\nelif x and NO:\n    return 2\nreturn 3",
         ["if x and False:\n    return 2", "return 3"]),
        ("if x:\n    if NO:\n        x = 1\nreturn x", ["if x:\n    pass", "return x"]),
        ("for i in range(FOUR):\n    if NO:\n        x = i\nreturn x",
         ["for i in range(4):\n    pass", "return x"]),
        ("while NO:\n    x = 1\nreturn x", ["return x"]),
        ("while x < FOUR and YES:\n    x += FOUR\nreturn x",
         ["while x < 4:\n    x += 4", "return x"]),
        ("if YES:\n    return x\ny = 1\nreturn y", ["return x"]),
    ],
)  # fmt: skip
def test_branches_that_constants_rule_out_are_dropped(text: str, folded: list[str]) -> None:
    assert body(text) == folded


def test_variables_are_no_constants() -> None:
    assert body("FOUR = x\nreturn FOUR + ZERO") == ["FOUR = x", "return FOUR + 0"]
    assert body("for NO in range(3):\n    x = NO\nreturn x") == [
        "for NO in range(3):\n    x = NO",
        "return x",
    ]


def test_a_variable_that_only_a_dropped_branch_assigns_is_refused() -> None:
    with pytest.raises(TypeError, match=r"line 4 of `f`: `z` is assigned only where"):
        body("if NO:\n    z = 1\nreturn z")


def test_lines_stay() -> None:
    definition, _ = folded("if YES:\n    x = (FOUR +\n         x)\nreturn x")
    assert [statement.lineno for statement in definition.body] == [3, 5]


@kernel
def chosen(x, *, FLAG, COUNT, TYPE):
    if FLAG and COUNT > 2:
        x = x * "a text has no product with a number"
    total = np.int64(0)
    for i in range(COUNT << 1):
        total += TYPE(x) + TYPE(i) * (-COUNT // 2)
    return total


def test_kernels_are_compiled_without_what_their_bindings_rule_out() -> None:
    made = compiled(chosen.specialize(FLAG=True, COUNT=2, TYPE=np.int32))
    assert made(5) == 4 * 5 - (0 + 1 + 2 + 3)


def body(text: str) -> list[str]:
    return folded_body(text)[0]


def folded_body(text: str) -> tuple[list[str], dict[str, object]]:
    definition, names = folded(text)
    return [ast.unparse(statement) for statement in definition.body], names


def folded(text: str) -> tuple[ast.FunctionDef, dict[str, object]]:
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    (definition,) = ast.parse(f"def f(x, y):\n{lines}").body
    assert isinstance(definition, ast.FunctionDef)
    names: dict[str, object] = dict(NAMES)
    fold_constants(definition, names)
    return definition, names
