"""`@kernel`: bindings, keys, what is rebuilt, errors where they belong."""

import ast
import gc
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

from gptrs.ir import dtypes
from gptrs_backend_numba.codegen import elements
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.inlining import named, register_jitable, require_kept_arrays
from gptrs_backend_numba.codegen.kernel import KernelFunction, kernel, kernel_part, unique_name
from gptrs_backend_numba.codegen.machine import negated, pointer, wrap_add
from gptrs_backend_numba.codegen.scalar import bf16_to_f32, f32_to_bf16

SCALE = 10
"""A constant of this module."""


@kernel
def scaled(x, *, FACTOR, SHIFTED, change):
    """A kernel with bindings of three kinds."""
    if SHIFTED:
        return change(SCALE * FACTOR * x) + 1
    return change(SCALE * FACTOR * x)


@kernel
def applied(x, y, *, inner):
    return inner(x) + inner(y)


@kernel_part
def both(pair, *, FACTOR):
    result = 0, 0
    if pair[0] != 0:
        result = FACTOR * pair[1], pair[0]
    return result


@kernel
def reversed_pair(x, y, *, inner):
    y, x = inner((x, y))
    return 100 * y + x


@kernel
def summed(x, count, *, MEMORY, load, store):
    X = pointer(x, MEMORY)
    total = np.float32(0)
    for i in range(count):
        total += load(X[i])
    X[0] = store(total)
    return 0


@kernel
def broken(x):
    y = "text"
    return x + y


def test_bindings_are_constants() -> None:
    plain = scaled.specialize(FACTOR=2, SHIFTED=False, change=elements.unchanged)
    shifted = scaled.specialize(FACTOR=-1, SHIFTED=True, change=negated)
    assert (compiled(plain)(3), compiled(shifted)(3)) == (60, 31)


def test_a_specialized_kernel_is_a_binding() -> None:
    inner = [scaled.specialize(FACTOR=n, SHIFTED=False, change=negated) for n in (1, 2)]
    first, second = (applied.specialize(inner=each) for each in inner)
    assert first.key != second.key
    assert (compiled(first)(3, 4), compiled(second)(3, 4)) == (-70, -140)


def test_parts_take_and_return_tuples() -> None:
    found = compiled(reversed_pair.specialize(inner=both.specialize(FACTOR=2)))
    assert (found(3, 4), found(0, 4)) == (803, 0)


def test_element_types_are_bindings() -> None:
    specialized = summed.specialize(MEMORY=np.uint16, load=bf16_to_f32, store=f32_to_bf16)
    numbers = np.array([1.0, 2.5, -8.0], dtypes.bf16.numpy)
    assert compiled(specialized)(numbers.ctypes.data, 3) == 0
    assert numbers[0] == -4.5


@pytest.mark.parametrize(
    "bindings", [{}, {"FACTOR": 1, "SHIFTED": False}, {"change": negated, "factor": 2}]
)
def test_exactly_the_declared_bindings_are_needed(bindings: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=r"`scaled` has the bindings \(FACTOR, SHIFTED, change\)"):
        scaled.specialize(**bindings)


def key(value: object) -> str:
    return applied.specialize(inner=value).key


def test_keys_tell_values_apart() -> None:
    values = [
        0, 1, True, 0.0, -0.0, 1.0, "1", None, np.float32(0.0), np.float32(-0.0), np.float64(0.0),
        np.int64(1), np.int32(1), np.float32, np.float64, (1, 2), (1, (2,)), negated, wrap_add,
        elements.load_of(dtypes.bf16), elements.rounded_of(dtypes.bf16),
        elements.rounded_of(dtypes.f16), applied.specialize(inner=1), applied.specialize(inner=2),
    ]  # fmt: skip
    assert len({key(value) for value in values}) == len(values)
    assert [key(value) for value in values] == [key(value) for value in values]


@pytest.mark.parametrize("value", [lambda x: x, [1], object()])
def test_what_has_no_lasting_name_is_no_binding(value: object) -> None:
    with pytest.raises(TypeError, match=r"no name that tells|cannot be a"):
        key(value)


def test_functions_within_others_need_a_name() -> None:
    def inner(x: object) -> object:
        return x

    with pytest.raises(TypeError, match="a name of its own"):
        register_jitable(inner)
    assert register_jitable(named("other_name")(inner)).__qualname__ == "other_name"


def test_kernels_that_use_variables_of_a_function_are_refused() -> None:
    outer = 3
    with pytest.raises(TypeError, match="must be defined in a module"):
        kernel(lambda x: x + outer)


def test_what_is_rebuilt_has_the_lines_of_the_source() -> None:
    built = scaled.specialize(FACTOR=2, SHIFTED=True, change=negated).build("name")
    code, original = built.__code__, scaled.function.__code__
    assert built.__name__ == "name"
    assert code.co_filename == original.co_filename == __file__
    assert (code.co_argcount, code.co_kwonlyargcount) == (1, 0)
    lines = {line for *_, line in code.co_lines() if line}
    assert lines - {code.co_firstlineno} <= {line for *_, line in original.co_lines() if line}


def test_errors_point_to_the_kernel() -> None:
    with pytest.raises(Exception, match=r"test_kernel_functions\.py") as raised:
        compiled(broken)
    assert "return x + y" in "".join(traceback.format_exception(raised.value))
    assert gc.isenabled(), "the collector pauses while a kernel is compiled"


SCRIPT = """
import sys
from gptrs_backend_numba.lowering import reduction
from gptrs_backend_numba import backend
print("numba" in sys.modules, "inspect" in sys.modules)
"""


def test_no_kernel_is_read_on_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split()[0] == "False"


def test_kernels_outside_of_the_package_have_their_file_in_the_key(tmp_path: Path) -> None:
    text = (
        '"""Kernels."""\nfrom gptrs_backend_numba.codegen.kernel import kernel\n\n\n'
        "@kernel\ndef one(x):\n    return x + 1\n"
    )
    keys = []
    for name, body in (("a", text), ("b", text.replace("+ 1", "+ 2"))):
        path = tmp_path / f"{name}.py"
        path.write_text(body)
        namespace: dict[str, object] = {"__name__": "same"}
        exec(compile(body, str(path), "exec"), namespace)
        found = namespace["one"]
        assert isinstance(found, KernelFunction)
        keys.append(found.specialize().key)
    assert keys[0] != keys[1]
    assert unique_name("one", keys[0]) != unique_name("one", keys[1])


KEPT = """
def f(n):
    held = np.empty(n, np.float32)
    at = held.ctypes.data
    if n > 3:
        use(at)
        keep_alive(held)
        return 1
    use(at)
    keep_alive(held)
    return 0
"""


def require(text: str) -> None:
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    require_kept_arrays(function)


def test_an_array_that_is_kept_may_lend_its_address() -> None:
    require(KEPT)
    require("def f(n):\n    held = np.empty(n)\n    held[0] = 1\n    return 0")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("    keep_alive(held)\n    return 0", "    return 0", "line 10 of `f`: `held` is freed"),
        ("        keep_alive(held)\n        return 1", "        return 1", "line 7 of `f`"),
        ("    keep_alive(held)\n    return 0", "    keep_alive(held)\n    use(at)\n    return 0",
         "before `return`"),
        ("    return 0", "", "must end with `return`"),
        ("    use(at)\n    keep", "    held = np.empty(1)\n    keep", "must stay the array"),
        ("    held = ", "    if n:\n        held = ", "outside of loops"),
        ("held.ctypes", "np.empty(3).ctypes", "name the array"),
    ],
)  # fmt: skip
def test_an_array_must_outlive_the_use_of_its_address(
    before: str, after: str, message: str
) -> None:
    assert before in KEPT
    with pytest.raises(AssertionError, match=message):
        require(KEPT.replace(before, after))
