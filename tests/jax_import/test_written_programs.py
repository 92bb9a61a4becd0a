"""Programs and models as StableHLO: every op of the conformance kit, written and read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

jax = pytest.importorskip("jax", reason="these tests write modules by JAX")

import gptrs_backend_jax  # noqa: E402
import gptrs_conformance.kit  # noqa: E402, F401 - registers the rows
from gptrs import get_backend  # noqa: E402
from gptrs.api import UnsupportedError  # noqa: E402
from gptrs.api.backends import Backend  # noqa: E402
from gptrs.api.importers import OutgoingModel  # noqa: E402
from gptrs.api.programs import Op, Program, TensorType, dtypes, run_program  # noqa: E402
from gptrs.ir import parse_program  # noqa: E402
from gptrs_backend_jax.stablehlo.exporting import export, to_exported  # noqa: E402
from gptrs_backend_jax.stablehlo.model import StableHloModel  # noqa: E402
from gptrs_backend_jax.stablehlo.reading.mlir_module import parsed  # noqa: E402
from gptrs_cli.main import main  # noqa: E402
from gptrs_conformance.op_case import ROWS, OpCase, cases, legal_dtypes  # noqa: E402
from gptrs_conformance.op_runner import program_of  # noqa: E402
from gptrs_runtime.load import load_model  # noqa: E402
from gptrs_runtime.outgoing_model import outgoing_model, outgoing_program  # noqa: E402

OPS = sorted(ROWS, key=lambda op: op.name)
TYPES = (dtypes.f32, dtypes.si32, dtypes.i1, dtypes.ui8, dtypes.bf16)
"""The element types of the quick tests: those that an op does not take are left out."""


def chosen(op: type[Op]) -> Iterator[OpCase]:
    """Yield one case for each of the types, or for the first type that the op takes."""
    legal = list(legal_dtypes(op))
    for dtype in [each for each in TYPES if each in legal][:2] or legal[:1]:
        found = [case for case in cases(op, dtype) if case.error is None]
        yield from found[len(found) // 2 :][:1]


def read_back(model: OutgoingModel, backend: Backend) -> StableHloModel:
    """Return a program that was written as a module, read again."""
    return StableHloModel(parsed(to_exported(model).mlir_module_serialized), backend, "again")


def require_near(found: np.ndarray, wanted: np.ndarray) -> None:
    """Fail unless arrays are equal, floats nearly: XLA and ref may round in other places."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if TensorType.of(wanted).dtype.is_float:
        wide = (each.astype(np.float64) for each in (found, wanted))
        near = 1e-5 if wanted.dtype.itemsize > 2 else 0.1
        np.testing.assert_allclose(*wide, near, near)
    else:
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("op", OPS, ids=lambda op: str(op.name))
def test_an_op_is_written_and_read_back(op: type[Op]) -> None:
    ref = get_backend("ref")
    for case in chosen(op):
        program = program_of(case)
        outgoing = outgoing_program(program, "case")
        model = read_back(outgoing, ref)
        given = dict(zip(program.inputs, case.inputs, strict=True))
        wanted = run_program(program, given, ref)
        with np.errstate(all="ignore"):
            found = model.run(list(given.values()))
        for have, right in zip(found, wanted, strict=True):
            require_near(have, right)


def squash() -> Program:
    """Return a program with a free size."""
    return parse_program("""ptir.v0.5
func @main(%x: f32[?0, 4], %w: f32[4, 5]) -> (f32[?0, 5], f32[5]) {
  %0 = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[?0, 5]
  %1 = tanh %0 : f32[?0, 5]
  %2 = reduce %1 {kind = sum, axes = [0]} : f32[5]
  return %1, %2
}
""")


@pytest.mark.parametrize("suffix", [".stablehlo", ".mlir", ".jaxexport"])
def test_free_sizes_stay_free(tmp_path: Path, suffix: str) -> None:
    if suffix == ".jaxexport":
        pytest.importorskip("flatbuffers", reason="jax.export writes and reads files with it")
    program, path = squash(), tmp_path / f"squash{suffix}"
    assert export(outgoing_program(program, "squash"), path) == [path]
    model = gptrs_backend_jax.load(path, "ref")
    assert (list(model.inputs), model.outputs) == (["x", "w"], ("result0", "result1"))
    dice = np.random.default_rng(1)
    for rows in (2, 5):
        given = {
            "x": dice.standard_normal((rows, 4)).astype(np.float32),
            "w": dice.standard_normal((4, 5)).astype(np.float32),
        }
        wanted = run_program(program, given, "ref")
        for have, right in zip(model(**given).values(), wanted, strict=True):
            assert np.array_equal(have, right)  # the same ops on the same backend: the same bits


@pytest.mark.parametrize("suffix", [".stablehlo", ".mlir"])
def test_files_are_the_same_again_and_name_no_code_of_this_machine(
    tmp_path: Path, suffix: str
) -> None:
    text = "ptir.v0.5\nfunc @main(%x: f32[2]) -> f32[2] {\n %0 = tanh %x : f32[2]\n return %0\n}\n"
    model, path = outgoing_program(parse_program(text), "p"), tmp_path / f"p{suffix}"
    export(model, path)
    first = path.read_bytes()
    assert b".py" not in first
    export(model, path)
    assert path.read_bytes() == first


def test_results_keep_their_order_whatever_their_names() -> None:
    text = """ptir.v0.5
func @main(%x: f32[2]) -> (f32[2], f32[2]) {
  %0 = mul %x, %x : f32[2]
  %1 = neg %x : f32[2]
  return %0, %1
}
"""
    made = replace(outgoing_program(parse_program(text), "p"), outputs=("b", "a"))
    model = read_back(made, get_backend("ref"))
    assert model.outputs == ("b", "a")
    square, negative = model.run([np.array([2, 3], np.float32)])
    assert (square.tolist(), negative.tolist()) == ([4, 9], [-2, -3])


def test_awkward_names_are_kept_and_those_with_controls_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = outgoing_program(squash(), "p")

    def read_again(names: tuple[str, ...]) -> StableHloModel:
        slots = zip(made.inputs, names, strict=True)
        inputs = tuple(replace(each, name=name) for each, name in slots)
        return read_back(replace(made, inputs=inputs, outputs=names), get_backend("ref"))

    for names in (("a.b/c:0", 'say "x"'), ("it's", "x \\22 größe \\")):
        model = read_again(names)
        assert (tuple(model.inputs), model.outputs) == (names, names)
    assert not caplog.text
    assert list(read_again(("a\n", "b")).inputs) == ["arg0", "arg1"]
    assert "names that StableHLO files cannot have" in caplog.text


def test_a_program_that_refuses_to_be_written_leaves_no_file(tmp_path: Path) -> None:
    program = parse_program("""ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = custom_call %x {target = "acme.kernel.v1", results = [f32[2]]} : f32[2]
  return %0
}
""")
    with pytest.raises(UnsupportedError, match="custom_call"):
        export(outgoing_program(program, "case"), tmp_path / "case.stablehlo")
    assert not list(tmp_path.iterdir())


def test_a_language_model_is_written_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "demo.stablehlo"
    assert main(["convert", "demo", str(path)]) == 0
    capsys.readouterr()
    ref = get_backend("ref")
    model = gptrs_backend_jax.load(path, ref)
    outgoing = outgoing_model(load_model("demo", backend="ref"), {})
    ids = np.int64([[1, 5, 9], [4, 4, 2]])
    ids = ids.astype(next(iter(model.inputs.values())).dtype.numpy)
    weights = [each.whole() for each in outgoing.weights]
    names = list(outgoing.program.inputs)
    (wanted,) = run_program(outgoing.program, dict(zip(names, [ids, *weights], strict=True)), ref)
    (found,) = model(ids).values()
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)
