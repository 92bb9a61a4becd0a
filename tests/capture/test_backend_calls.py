"""Errors of a faulty backend name it, and what it returns wrongly is never taken for a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gptrs
from gptrs import functionals as F
from gptrs.backend.contract import Buffer, Executable, InputRole
from gptrs.capture import execute
from gptrs.capture.parameter import Parameter
from gptrs.capture.tensor import Tensor
from gptrs.errors import BackendError, ExecutionError
from gptrs.ir import Program
from gptrs.ir.tensor_type import TensorType
from gptrs_backend_ref.backend import RefBackend

TEXT = """
ptir.v0.5
func @main(%x: f32[2, 3]) -> f32[2, 3] {
  %0 = tanh %x : f32[2, 3]
  return %0
}
"""
X = np.ones((2, 3), np.float32)
WHO = f"backend `ref` (`{__name__}.Faulty`)"


class Altered(Executable):
    def __init__(self, results: Callable[[list[Buffer]], Any], right: Any) -> None:
        self._results = results
        self._right = right

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        return self._results(self._right.run(inputs))


class Faulty(RefBackend):
    """The reference backend with one of its members replaced."""

    def __init__(
        self, results: Callable[[list[Buffer]], Any] | None = None, **members: Any
    ) -> None:
        super().__init__()
        self._results = results
        for name, member in members.items():
            setattr(self, name, member)

    def compile(self, program: Program, roles: Sequence[InputRole]) -> Any:
        right = super().compile(program, roles)
        return right if self._results is None else Altered(self._results, right)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch):
    """Programs of one faulty backend are not those of another one of the same name."""
    monkeypatch.setattr(execute, "program_cache", type(execute.program_cache)())


def fail(error: BaseException) -> Callable[..., Any]:
    def raise_it(*_: object) -> Any:
        raise error

    return raise_it


FLAT = np.zeros(7, np.float32)
WRONG = {
    "shape": (lambda _: [FLAT], "result 0 of `run` is float32[7], not float32[2, 3]"),
    "dtype": (lambda r: [r[0].astype("f8")], "result 0 of `run` is float64[2, 3], not float32"),
    "too few": (lambda _: [], "`run` gave 0 results, the program has 1"),
    "too many": (lambda r: [*r, *r], "`run` gave 2 results, the program has 1"),
    "none": (lambda _: None, "`run` gave a `NoneType`, not a list"),
    "a list": (lambda r: [r[0].tolist()], "result 0 of `run` is a `list`, not float32[2, 3]"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_results_of_another_type_are_refused(wrong):
    results, problem = WRONG[wrong]
    with pytest.raises(BackendError) as caught:
        gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": X}, Faulty(results))
    assert caught.value.message.startswith(f"{WHO} broke its contract: {problem}")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("wrong", WRONG)
def test_results_of_tensors_and_of_jitted_functions_are_checked_too(wrong):
    results, _ = WRONG[wrong]
    with gptrs.use_backend(Faulty(results)), pytest.raises(BackendError, match="its contract"):
        F.tanh(gptrs.tensor(X)).numpy()
    with gptrs.use_backend(Faulty(results)), pytest.raises(BackendError, match="its contract"):
        gptrs.jit(F.tanh)(gptrs.tensor(X))


def test_results_for_any_sizes_are_checked():
    step = gptrs.jit(F.tanh, dynamic={"x": ("N",)})
    with gptrs.use_backend(Faulty(lambda results: [FLAT])):
        assert step(gptrs.tensor(np.ones(7, np.float32))).shape == (7,)
        with pytest.raises(
            BackendError, match=r"result 0 of `run` is float32\[7\], not float32\[8\]"
        ):
            step(gptrs.tensor(np.ones(8, np.float32)))


@pytest.mark.parametrize(("always", "noticed"), [("", False), ("0", False), ("1", True)])
def test_later_runs_are_checked_when_asked_for(monkeypatch, always, noticed):
    monkeypatch.setenv("GPTRS_CHECK_RESULTS", always)
    runs: list[int] = []

    def results(right: list[Buffer]) -> list[Buffer]:
        runs.append(1)
        return right if len(runs) == 1 else [FLAT]

    step = gptrs.jit(F.tanh)
    with gptrs.use_backend(Faulty(results)):
        step(gptrs.tensor(X))
        if noticed:
            with pytest.raises(BackendError, match="its contract"):
                step(gptrs.tensor(X))
        else:
            step(gptrs.tensor(X))


FAULTS = [TypeError("no such thing"), SystemExit(0), AssertionError()]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("member", ["compile", "run", "to_device", "to_host"])
def test_what_a_backend_raises_names_it(member, error):
    backend = Faulty(fail(error)) if member == "run" else Faulty(**{member: fail(error)})
    with pytest.raises(BackendError) as caught:
        gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": X}, backend)
    assert caught.value.message.startswith(f"{WHO} failed in `{member}`: {type(error).__name__}")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [ExecutionError("out of range"), KeyboardInterrupt(), MemoryError()]
)
def test_what_is_meant_for_the_caller_is_left_alone(error):
    with pytest.raises(type(error)) as caught:
        gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": X}, Faulty(fail(error)))
    assert caught.value is error


PARTS = {
    "refusal": "`compile`",  # which asks it
    "fuse": "`legalize` and `fuse`",
    "legalize": "`legalize` and `fuse`",
    "pass": "its pass `wobbly`",
}


@pytest.mark.parametrize("error", [TypeError("no such thing"), SystemExit(0)], ids=repr)
@pytest.mark.parametrize("member", PARTS)
def test_what_parts_of_a_backend_raise_names_it(member, error):
    class Wobbly:
        name = "wobbly"

        def apply(self, program: Program) -> Program:
            return program if member != "pass" else fail(error)()

    class Broken(Faulty):
        def legalize(self) -> Any:
            return fail(error)() if member == "legalize" else ()

        def fuse(self) -> Any:
            return fail(error)() if member == "fuse" else (Wobbly(),)

        def refusal(self, op: Any, operands: Any, results: Any) -> Any:
            return fail(error)() if member == "refusal" else None

    who = WHO.replace("Faulty", "test_what_parts_of_a_backend_raise_names_it.<locals>.Broken")
    with gptrs.use_backend(Broken()), pytest.raises(BackendError) as caught:
        gptrs.jit(F.softmax)(gptrs.tensor(X))
    assert caught.value.message.startswith(f"{who} failed in {PARTS[member]}: ")
    assert caught.value.__cause__ is error


def test_what_is_no_executable_is_refused():
    backend = Faulty(compile=lambda program, roles: None)
    problem = (
        "`compile` gave a `NoneType`, which does not derive from `gptrs.api.backends.Executable`"
    )
    with pytest.raises(BackendError, match=problem):
        gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": X}, backend)


@pytest.mark.parametrize("own", ["run", "run_bound", "submit"])
def test_the_method_that_the_backend_wrote_is_named(own):
    """Runs with weights come as `submit`, whose default calls `run_bound`, and that `run`."""
    backend = Faulty(lambda results: results)
    made = type("Made", (Altered,), {own: fail(TypeError("no such thing"))})
    backend.compile = lambda program, roles: made(None, None)  # pyright: ignore
    weight = TensorType.of(X)
    w = Tensor.of_parameter(Parameter(weight, 1, "w", lambda: X, backend))
    with gptrs.use_backend(backend), pytest.raises(BackendError) as caught:
        gptrs.jit(lambda x: x * w)(gptrs.tensor(X)).numpy()
    assert f"failed in `{own}`: TypeError" in caught.value.message


def test_memory_of_another_type_is_refused():
    backend = Faulty(to_device=lambda array: array.ravel())
    with pytest.raises(BackendError, match=r"`to_device` is float32\[6\], not float32\[2, 3\]"):
        gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": X}, backend)
    other = SimpleNamespace(dtype="other.float32", shape=(2, 3))
    backend = Faulty(to_device=lambda array: other)
    with pytest.raises(BackendError, match="the `dtype` of a buffer is a NumPy dtype: wrap other"):
        gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": X}, backend)
    backend = Faulty(to_host=lambda buffer: buffer.tolist())
    with pytest.raises(BackendError, match="`to_host` gave a `list`, not a NumPy array"):
        gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": X}, backend)
