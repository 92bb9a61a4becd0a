"""Inputs by parameter name: from files, strictly, or made up, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from gptrs.checkpoint.formats.tensor_archive import write_archive
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir import dtypes, parse_program
from gptrs.ir.program import Program
from gptrs_runtime.programs import (
    InputFiles,
    random_inputs,
    require_complete,
    run_program,
)


def _program(params: str, body: str = "", results: str = "%a", types: str = "f32[2]") -> Program:
    return parse_program(
        f"ptir.v0.5\nfunc @main({params}) -> {types} {{\n{body}\n  return {results}\n}}\n"
    )


TWO = _program("%a: f32[2], %b: si32[]")


def test_parameters_without_a_name_go_by_their_position():
    assert list(_program("%x: f32[1], %0: f32[2]", results="%0").inputs) == ["x", "arg1"]


def test_inputs_come_from_several_files_in_any_format(tmp_path):
    write_archive(tmp_path / "a.safetensors", {"a": np.ones(2, np.float32)})
    write_archive(tmp_path / "b.npy", {"b": np.int32(3)})
    with InputFiles([tmp_path / "a.safetensors", tmp_path / "b.npy"]) as files:
        arrays = files.read(TWO)
    assert arrays["a"].tolist() == [1, 1]
    assert arrays["b"] == 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"a": np.ones(2, np.float32), "x": np.ones(1)},
            r"no parameter `x`; it takes `a`: f32\[2\], `b`: si32\[\]",
        ),
        ({"a": np.ones(3, np.float32)}, r"input `a` must be `f32\[2\]`, got `f32\[3\]`"),
        ({"a": np.ones(2)}, r"input `a` must be `f32\[2\]`, got `f64\[2\]`"),
    ],
)
def test_what_is_no_input_is_refused(tmp_path, arrays, message):
    write_archive(tmp_path / "a.npz", arrays)
    with InputFiles([tmp_path / "a.npz"]) as files, pytest.raises(UsageError, match=message):
        files.read(TWO)


def test_an_input_given_twice_and_a_bad_second_file_are_errors(tmp_path):
    path = tmp_path / "a.npz"
    write_archive(path, {"a": np.ones(2, np.float32)})
    with pytest.raises(UsageError, match="has the input `a`, as a file before it has"):
        InputFiles([path, path])
    (tmp_path / "bad").write_bytes(b"bad")
    with pytest.raises(CheckpointError, match="is not a file of tensors"):
        InputFiles([path, tmp_path / "bad"])


def test_what_is_missing_is_listed_with_its_type():
    with pytest.raises(UsageError, match=r"no input is given for `b`: si32\[\], which is needed"):
        require_complete(TWO, {"a": 1})
    with pytest.raises(UsageError, match=r"for `a`: f32\[2\], `b`: si32\[\], which are needed"):
        require_complete(TWO, {})
    require_complete(TWO, {"a": 1, "b": 2})


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_made_up_arrays_depend_on_seed_and_name_alone(dtype):
    program = _program(f"%a: {dtype}[200], %b: {dtype}[200]", types=f"{dtype}[200]")
    first, again, other = (random_inputs(program, seed) for seed in (7, 7, 8))
    alone = random_inputs(program, 7, {"a": None})
    assert list(alone) == ["b"]
    for name in ("a", "b"):
        assert first[name].dtype == dtype.numpy
        assert first[name].tobytes() == again[name].tobytes()
        assert first[name].tobytes() != other[name].tobytes()
    assert first["b"].tobytes() == alone["b"].tobytes()
    assert first["a"].tobytes() != first["b"].tobytes()
    if dtype.is_integer:
        values = {int(value) for value in first["a"]}
        assert values == set(range(1, 8))


def test_a_negative_seed_is_refused():
    with pytest.raises(UsageError, match="a seed is an integer >= 0, got -1"):
        random_inputs(TWO, -1)


INDEXED = {
    "take": ("%a: f32[2, 3], %i: si64[50]", "%0 = take %a, %i : f32[50, 3]", "f32[50, 3]"),
    "through layout ops and casts": (
        "%a: f32[2, 3], %i: si32[5, 10]",
        "%0 = reshape %i {shape = [50]} : si32[50]\n"
        "%1 = cast %0 {dtype = si64} : si64[50]\n"
        "%2 = take %a, %1 : f32[50, 3]",
        "f32[50, 3]",
    ),
    "the smaller of two axes": (
        "%a: f32[2], %b: f32[9], %i: si64[50]",
        "%0 = take %b, %i : f32[50]\n%1 = take %a, %i : f32[50]\n%2 = add %0, %1 : f32[50]",
        "f32[50]",
    ),
    "gather": (
        "%a: f32[9, 2], %i: si64[9, 50]",
        "%0 = gather %a, %i {axis = 1} : f32[9, 50]",
        "f32[9, 50]",
    ),
    "scatter_reduce": (
        "%a: f32[2], %i: si64[50], %u: f32[50]",
        "%0 = scatter_reduce %a, %i, %u {axis = 0, kind = add} : f32[2]",
        "f32[2]",
    ),
    "segment_reduce": (
        "%a: f32[50], %i: si64[50]",
        "%0 = segment_reduce %a, %i {kind = sum, num_segments = 2} : f32[2]",
        "f32[2]",
    ),
}


@pytest.mark.parametrize("what", INDEXED)
def test_made_up_indices_are_in_range(what):
    params, body, types = INDEXED[what]
    last = body.splitlines()[-1].split()[0]
    program = _program(params, body, last, types)
    inputs = random_inputs(program, 0)
    assert set(np.unique(inputs["i"])) == {0, 1}
    [result] = run_program(program, inputs, "ref")
    assert result.size


def test_indices_of_functions_are_in_range():
    program = parse_program("""ptir.v0.5
func @rows(%a: f32[2, 3], %i: si32[50]) -> f32[50, 3] {
  %0 = take %a, %i : f32[50, 3]
  return %0
}
func @main(%a: f32[2, 3], %i: si32[50]) -> f32[50, 3] {
  %0 = call %a, %i {function = @rows} : f32[50, 3]
  return %0
}
""")
    assert set(np.unique(random_inputs(program, 0)["i"])) == {0, 1}
