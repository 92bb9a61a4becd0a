"""Libraries of models of other kinds, and libraries for other kinds of processors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fuzzing.tiny_models import save_tiny_model
from gptrs import jit, tensor
from gptrs.errors import UnsupportedError, UsageError
from gptrs.plugins.manager import get_backend
from gptrs_backend_numba.codegen.processor import this_machine
from gptrs_runtime.libraries.write import compile_library
from gptrs_runtime.load import load_model
from support.library_modules import module_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="libraries are for Linux"),
]
SYMBOLS: Mapping[str, tuple[str, ...]] = {
    "bart": (), "whisper": ("batch=2",), "clip": ("batch=2",), "wav2vec2": ("batch=2", "samples=90")
}  # fmt: skip
SIZES = {
    "batch": 2, "source": 5, "target": 4, "texts": 3, "sequence": 6, "samples": 90, "height": 32,
    "width": 32,
}  # fmt: skip
PROGRAM = """ptir.v0.5
func @main(%x: f32[?0, 40], %w: f32[40, 24]) -> f32[?0, 24] {
  %y = dot_general %x, %w {contract_lhs = [1], contract_rhs = [0]} : f32[?0, 24]
  %z = tanh %y : f32[?0, 24]
  return %z
}
"""
X86 = pytest.mark.skipif(this_machine() != "x86_64", reason="the targets are of x86-64")


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", SYMBOLS)
def test_a_model_of_another_kind_has_the_same_bits(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    folder = save_tiny_model(
        tmp_path / "m", kind, get_backend("ref"),
        weight=lambda shape: random.normal(scale=0.5, size=shape).astype(np.float32),
    )  # fmt: skip
    made = compile_library(
        folder, tmp_path / "lib", name="kind", backend="numba", threads=2, symbols=SYMBOLS[kind],
        wheel="1",
    )  # fmt: skip
    computation = load_model(folder, backend="numba", threads=2).computation()
    given: dict[str, np.ndarray] = {}
    for name, (dtype, sizes) in computation.inputs.items():
        shape = tuple(SIZES.get(str(size), size) for size in sizes)
        given[name] = random.integers(3, 19, shape).astype(dtype.numpy)
        if dtype.is_float:
            given[name] = random.normal(size=shape).astype(np.float32)
    for name, value in (("attention_mask", 1), ("lengths", SIZES["samples"])):
        if name in given:
            given[name][:] = value
    step = jit(lambda *arrays: tuple(computation.function(*arrays).values()))
    expected = step(*map(tensor, given.values()))
    found = module_of(made, tmp_path / "installed").Model()(**given)
    assert list(found) == list(made.manifest.outputs)
    for ours, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "layer.ptir"
    path.write_text(PROGRAM)
    return path


@pytest.mark.exhaustive
@X86
def test_a_library_of_several_targets_takes_one_that_runs(program: Path, tmp_path: Path) -> None:
    made = compile_library(
        program, tmp_path / "out", backend="numba", threads=1, wheel="1",
        targets=("portable", "amx", "avx2"),
    )  # fmt: skip
    assert "avx2" not in made.manifest.needs
    layer = module_of(made, tmp_path / "installed").Model()
    random = np.random.default_rng(1)
    w = random.normal(size=(40, 24)).astype(np.float32)
    for rows in (1, 5):
        x = random.normal(size=(rows, 40)).astype(np.float32)
        (found,) = layer(x, w).values()
        np.testing.assert_allclose(found, np.tanh(x @ w), atol=1e-5)
    assert not list((tmp_path / "out").glob("*.o"))


@pytest.mark.exhaustive
@X86
def test_objects_for_another_machine_are_linked_by_a_script(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    out, settings = tmp_path / "out", {"backend": "numba", "threads": 1, "targets": ("neon_dot",)}
    made = compile_library(program, out, **settings)
    assert made.manifest.link == "sh link.sh"
    assert {path.name for path in out.iterdir()} == {
        "example.c", "layer.h", "layer.weights", "link.sh", "manifest.json", "objects"
    }  # fmt: skip
    (kernel, *_) = (out / "objects" / "layer").glob("*.o")
    assert kernel.read_bytes()[18] == 183  # `EM_AARCH64`
    with pytest.raises(UnsupportedError, match="a wheel needs the library"):
        compile_library(program, tmp_path / "other", wheel="1", **settings)


@X86
def test_a_library_for_aarch64_runs_its_example_under_qemu(program: Path, tmp_path: Path) -> None:
    compiler, emulator = "aarch64-linux-gnu-gcc", shutil.which("qemu-aarch64-static")
    if shutil.which(compiler) is None or emulator is None:
        pytest.skip(f"`{compiler}` or qemu-aarch64-static is not installed")
    out = tmp_path / "out"
    compile_library(program, out, backend="numba", threads=2, targets=("neon", "neon_i8mm"))
    build = [compiler, "-O1", "example.c", "-L.", "-llayer", "-Wl,-rpath,$ORIGIN", "-o", "example"]
    subprocess.run(build, cwd=out, check=True)
    for cpu in ("cortex-a72", "max"):
        run = [emulator, "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", "./example"]
        told = subprocess.run(run, cwd=out, check=True, capture_output=True, text=True)
        assert told.stdout == "output 0: 1 24\n"


def test_targets_that_do_not_exist_or_fit_together_are_refused(
    program: Path, tmp_path: Path
) -> None:
    for targets, words in (
        (("avx3",), "there is no target `avx3`; targets are portable, avx2, "),
        (("avx2", "neon"), "one library cannot be for aarch64 and x86_64"),
    ):
        with pytest.raises(UsageError, match=words):
            compile_library(program, tmp_path / "out", backend="numba", targets=targets)
    with pytest.raises(UnsupportedError, match="backend `ref` writes no libraries"):
        compile_library(program, tmp_path / "out", backend="ref", targets=("avx2",))
    assert [path.name for path in tmp_path.iterdir()] == ["layer.ptir"]
