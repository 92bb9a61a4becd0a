"""Files of StableHLO and of `jax.export`: in text, bytecode and artifacts; on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="these tests run functions of JAX")
jnp = pytest.importorskip("jax.numpy", reason="these tests run functions of JAX")

import gptrs_backend_jax  # noqa: E402
from gptrs.errors import GptrsError, ModelError, UnsupportedError, UsageError  # noqa: E402
from gptrs_cli.main import main  # noqa: E402

X = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)


def function(x: Any, w: Any) -> dict[str, Any]:
    """Return results by name: a part of what models compute."""
    return {
        "shares": jax.nn.softmax(x @ w),
        "best": jnp.argmax(x, 1),
        "size": jnp.float32(1) * x.shape[0],
    }


W = np.random.default_rng(4).standard_normal((4, 5)).astype(np.float32)


def exported(rows: Any = 3) -> Any:
    """Return the function as `jax.export` has it."""
    example = jax.ShapeDtypeStruct((rows, 4), np.float32)
    return jax.export.export(jax.jit(function), platforms=["cpu"])(example, W)


def require_results(model: Any, x: np.ndarray) -> None:
    """Fail unless a model computes the function."""
    found = model(x, W)
    for name, wanted in jax.jit(function)(x, W).items():
        np.testing.assert_allclose(found[name], wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("form", ["bytecode", "text", "lowered"])
def test_modules_are_told_by_what_is_in_them(tmp_path: Path, form: str) -> None:
    path = tmp_path / "model.stablehlo"
    made = exported()
    if form == "bytecode":
        path.write_bytes(made.mlir_module_serialized)
    elif form == "text":
        path.write_text(made.mlir_module())
    else:
        path.write_text(jax.jit(function).lower(X, W).as_text())
    model = gptrs_backend_jax.load(path, "ref")
    assert repr(model).startswith("<StableHloModel")
    found = list(model(X, W).values())
    wanted = jax.tree.leaves(jax.jit(function)(X, W))
    for have, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have, right, 1e-5, 1e-5)


def test_artifacts_of_jax_export_keep_their_free_sizes(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers", reason="jax.export writes and reads files with it")
    (rows,) = jax.export.symbolic_shape("rows")
    path = tmp_path / "model.jaxexport"
    path.write_bytes(exported(rows).serialize())
    model = gptrs_backend_jax.load(path, "numba")
    assert model.inputs["x"].shape == ("rows", 4)
    for count in (3, 6):
        require_results(model, np.concatenate([X] * count))
    assert "[?0, 4]" in str(model.program(X, W))


def test_free_sizes_of_a_module_are_one_program_or_one_for_each(tmp_path: Path) -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    path = tmp_path / "model.mlirbc"
    path.write_bytes(exported(rows).mlir_module_serialized)
    model = gptrs_backend_jax.load(path, "ref")
    for count in (1, 2):
        require_results(model, np.concatenate([X] * count))


def test_sizes_that_the_module_forbids_are_refused(tmp_path: Path) -> None:
    (rows,) = jax.export.symbolic_shape("rows", constraints=["rows >= 3"])
    path = tmp_path / "model.stablehlo"
    path.write_bytes(exported(rows).mlir_module_serialized)
    model = gptrs_backend_jax.load(path, "ref")
    require_results(model, X)
    with pytest.raises(UsageError, match="rows"):
        model(X[:2], W)


def test_erf_of_lowered_text_is_known(tmp_path: Path) -> None:
    path = tmp_path / "gelu.mlir"
    gelu = jax.jit(lambda x: jax.nn.gelu(x, approximate=False))
    path.write_text(gelu.lower(X).as_text())
    (found,) = gptrs_backend_jax.load(path, "ref")(X).values()
    np.testing.assert_allclose(found, gelu(X), 1e-5, 1e-5)


def test_a_file_is_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.stablehlo"
    path.write_bytes(exported().mlir_module_serialized)
    np.savez(tmp_path / "x.npz", x=X, w=W)
    asked = ["run", str(path), "--input", str(tmp_path / "x.npz"), "--json", "--backend", "ref"]
    assert main(asked) in (0, 2)
    if not capsys.readouterr().out:  # the module names its inputs otherwise
        model = gptrs_backend_jax.load(path, "ref")
        np.savez(tmp_path / "x.npz", **dict(zip(model.inputs, (X, W), strict=True)))
        assert main(asked) == 0


def test_listing_the_importer_imports_no_jax() -> None:
    code = "import gptrs_backend_jax.stablehlo.plugin, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_custom_calls_of_older_artifacts_are_known(tmp_path: Path) -> None:
    path = tmp_path / "old.mlir"
    path.write_text(
        "module { func.func @main(%x: tensor<3x4xf32>) ->"
        " (tensor<3x4xf32>, tensor<3x2xf32>, tensor<3x2xi32>) {"
        " %e = stablehlo.custom_call @mhlo.erf(%x) : (tensor<3x4xf32>) -> tensor<3x4xf32>"
        ' %s = stablehlo.custom_call @Sharding(%e) {mhlo.sharding = "{replicated}"} :'
        " (tensor<3x4xf32>) -> tensor<3x4xf32>"
        " %v, %i = stablehlo.custom_call @mhlo.topk(%x) {mhlo.attributes = {k = 2 : i64,"
        " largest = true}} : (tensor<3x4xf32>) -> (tensor<3x2xf32>, tensor<3x2xi32>)"
        " return %s, %v, %i : tensor<3x4xf32>, tensor<3x2xf32>, tensor<3x2xi32> } }"
    )
    erf, values, indices = gptrs_backend_jax.load(path, "ref")(X).values()
    np.testing.assert_allclose(erf, jax.lax.erf(X), 1e-6, 1e-6)
    wanted = jax.lax.top_k(X, 2)
    assert np.array_equal(values, wanted[0])
    assert np.array_equal(indices, wanted[1])


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("", ModelError, "0 bytes"),
        ("hello", GptrsError, "flatbuffers|neither a StableHLO module"),
        ("module { func.func @main() { return }", ModelError, "MLIR refuses it"),
        ("module { }", ModelError, "no function `@main`"),
        ("module { func.func private @main() }", ModelError, "no function `@main`"),
        (
            "module { func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {"
            ' %y = "tosa.exp"(%x) : (tensor<2xf32>) -> tensor<2xf32> return %y : tensor<2xf32> } }',
            UnsupportedError,
            "`tosa.exp`",
        ),
        (
            "module { func.func @main(%x: tensor<2xf8E3M4>) -> tensor<2xf8E3M4> {"
            " return %x : tensor<2xf8E3M4> } }",
            UnsupportedError,
            "f8E3M4",
        ),
        (
            "module { func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {"
            " %y = func.call @main(%x) : (tensor<2xf32>) -> tensor<2xf32>"
            " return %y : tensor<2xf32> } }",
            UnsupportedError,
            "nested deeper",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(
    tmp_path: Path, text: str, kind: type[GptrsError], said: str
) -> None:
    path = tmp_path / "wrong.mlir"
    path.write_text(text)
    with pytest.raises(kind, match=said) as error:
        gptrs_backend_jax.load(path, "ref")(np.ones(2, np.float32))
    assert "\n" not in error.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a file"):
        gptrs_backend_jax.load(tmp_path / "none.mlir")


def test_other_suffixes_are_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.hlo"
    path.write_bytes(exported().mlir_module_serialized)
    assert main(["run", str(path), "--random-seed", "1"]) != 0
    assert json.dumps(capsys.readouterr().err).count("Traceback") == 0
