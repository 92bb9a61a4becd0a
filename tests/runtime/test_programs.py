"""Programs from text run on any backend, and wrong inputs are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import gptrs
from gptrs.errors import PluginError, ProgramError, UnsupportedError, UsageError
from gptrs_runtime.programs import read_program

TEXT = """
ptir.v0.5
func @main(%x: f32[2, 3], %w: f32[3, 4]) -> (f32[2, 4], f32[3, 2]) {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[2, 4]
  %1 = tanh %0 : f32[2, 4]
  %2 = transpose %x {permutation = [1, 0]} : f32[3, 2]
  return %1, %2
}
"""
X, W = np.arange(6, dtype=np.float32).reshape(2, 3) / 6, np.eye(3, 4, dtype=np.float32)


def test_a_program_from_text(backend):
    results = gptrs.run_program(gptrs.ir.parse_program(TEXT), {"w": W, "x": X}, backend.name)
    np.testing.assert_allclose(results[0], np.tanh(X @ W), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(results[1], X.T)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": X}, r"input `w` is missing; the program takes `x: f32\[2, 3\]`, `w: f32\[3, 4\]`"),
        ({"x": X, "w": W, "v": W}, r"no parameter `v`; it takes `x: "),
        ({"x": X, "w": W.T}, r"input `w` must be `f32\[3, 4\]`, got `f32\[4, 3\]`"),
        ({"x": X.astype(np.float64), "w": W}, r"input `x` must be `f32\[2, 3\]`, got `f64"),
    ],
)
def test_wrong_inputs(inputs, message):
    with pytest.raises(UsageError, match=message):
        gptrs.run_program(gptrs.ir.parse_program(TEXT), inputs)


def test_unknown_backend():
    with pytest.raises(PluginError, match="nosuch"):
        gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": X, "w": W}, "nosuch")


def test_inputs_stay_as_they_are(backend):
    x, w = X.copy(), W.copy()
    gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": x, "w": w}, backend)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(w, W)


def test_a_malformed_program_is_refused():
    with pytest.raises(ProgramError, match="line 3, column"):
        gptrs.ir.parse_program("ptir.v0.5\n\nfunc @main( {\n}")


class Picky(gptrs.api.backends.Backend):
    """A backend that takes nothing; compiling must never be reached without a refusal."""

    name = "picky"

    def refusal(self, op, operands, results):
        return f"`{op.name}`"

    def compile(self, program, roles):
        from gptrs.api.backends import require_supported

        require_supported(self, program)
        raise AssertionError("unreachable")

    def to_device(self, array):
        raise AssertionError("nothing may be moved before the program is compiled")

    def to_host(self, buffer):
        raise AssertionError("unreachable")


def test_what_a_backend_lacks_is_refused_before_anything_runs():
    with pytest.raises(UnsupportedError, match="backend `picky` does not support `dot_general`"):
        gptrs.run_program(gptrs.ir.parse_program(TEXT), {"x": X, "w": W}, Picky())


def test_the_settings_of_a_model_are_no_program(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": []}', encoding="utf-8")
    with pytest.raises(ProgramError, match="is the settings of a model, no program") as refused:
        read_program(tmp_path / "config.json")
    assert str(tmp_path) in refused.value.hint
