"""Shared libraries compute the bits of gptrs without Python, and refuse what they cannot serve."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gptrs import jit, tensor
from gptrs.capture.execute import run_program
from gptrs.errors import ExecutionError, UnsupportedError, UsageError
from gptrs.ir import dtypes, parse_program
from gptrs.nn.page_buffers import PagedTexts
from gptrs.plugins.manager import get_backend
from gptrs_backend_numba.codegen.machine import usable_features
from gptrs_backend_numba.native import c_data
from gptrs_runtime.generation.generate import generate
from gptrs_runtime.libraries.write import CompiledLibrary, compile_library
from gptrs_runtime.load import load_model
from runtime.generation.tiny_lms import save_tiny_lm
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_gpt2 import save_tiny_gpt2
from runtime.tiny_resnet import save_tiny_resnet
from support.library_modules import module_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="libraries are for Linux"),
]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PROGRAM = """ptir.v0.5
func @main(%table: f32[6, 4], %rows: si64[?0], %shift: f32[?0, 4]) -> (f32[?0, 4], f32[4]) {
  %taken = take %table, %rows : f32[?0, 4]
  %moved = add %taken, %shift : f32[?0, 4]
  %sums = reduce %moved {kind = sum, axes = [0]} : f32[4]
  return %moved, %sums
}
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with room for a prompt and 64 tokens."""
    return save_tiny_gpt2(tmp_path_factory.mktemp("libraries") / "gpt2", n_positions=128)


@pytest.fixture(scope="module")
def texts(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> CompiledLibrary:
    """A tiny language model as a library."""
    folder = tmp_path_factory.mktemp("libraries") / "lm"
    return compile_library(directory, folder, name="lm", backend="numba", threads=2, wheel="0.1")


@pytest.fixture(scope="module")
def lm(texts: CompiledLibrary, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Its Python module."""
    return module_of(texts, tmp_path_factory.mktemp("installed"))


def _built(made: CompiledLibrary, *flags: str) -> Path:
    folder, name = made.files[0].parent, made.manifest.name
    command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", *flags, "example.c", "-L.", f"-l{name}"]
    command += [f"-Wl,-rpath,{folder}", "-o", "example"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "example"


def test_an_example_in_c_prints_the_tokens_of_gptrs(texts, directory):
    example = _built(texts)
    command = [str(example), "64", *map(str, PROMPT)]
    run = subprocess.run(command, cwd=example.parent, capture_output=True, text=True, check=True)
    model = load_model(directory, backend="numba")
    made = generate(model, PROMPT, max_tokens=64, temperature=0.0, ignore_eos=True)
    assert [int(line) for line in run.stdout.split()] == list(made.token_ids)
    assert len(set(made.token_ids)) > 1
    wrong = subprocess.run(
        [str(example), "2", "-1"], cwd=example.parent, capture_output=True, text=True
    )
    assert (wrong.returncode, "token 0 is -1" in wrong.stderr) == (1, True)


def test_steps_of_several_texts_have_the_same_bits(lm, directory):
    model = load_model(directory, backend="numba", threads=1)
    for threads in (1, 2):
        cache = lm.Cache(lm.Model(threads), 50, 2)
        ours = PagedTexts(model.causal_lm(), 2, 50)
        for step in ([[1, 2, 3], [4]], [[5], [6]], [list(range(40)), [7, 8]]):
            np.testing.assert_array_equal(cache.append(step), ours.append(step))
        assert [cache.length(text) for text in range(3)] == [44, 4, -1]
        alone = cache.append([[], [9]])
        cache.truncate(4, 1)
        np.testing.assert_array_equal(cache.append([[], [9]]), alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize("variant", ["ministral", "deepseek_v3", "gpt2 untied"])
def test_windows_and_experts_have_the_same_bits(variant, tmp_path):
    folder = save_tiny_lm(tmp_path / "model", variant, dtypes.f32)
    made = compile_library(
        folder, tmp_path / "out", name="lm", backend="numba", threads=2, wheel="1"
    )
    lm = module_of(made, tmp_path / "installed")
    ours = PagedTexts(load_model(folder, backend="numba").causal_lm(), 2, 60)
    cache = lm.Cache(lm.Model(), 60, 2)
    for step in ([list(range(45)), [4]], [[5], [6]], [[7, 8], list(range(40))]):
        np.testing.assert_array_equal(cache.append(step), ours.append(step))


def test_a_step_that_is_refused_appends_nothing(lm):
    model = lm.Model()
    cache = lm.Cache(model, 10)
    first = cache.append([PROMPT])
    for tokens, words in (
        ([[lm.VOCABULARY]], "token 0 is"),
        ([[1, -5]], "token 1 is -5"),
        ([[1, 2, 3]], "3 tokens do not fit"),
        ([[]], "needs a token"),
    ):
        with pytest.raises(ValueError, match=words):
            cache.append(tokens)
        assert cache.length() == len(PROMPT)
    with pytest.raises(ValueError, match="cannot be cut"):
        cache.truncate(9)
    with pytest.raises(ValueError, match="a cache has"):
        lm.Cache(model, lm.CONTEXT + 1)
    cache.truncate(0)
    np.testing.assert_array_equal(cache.append([PROMPT]), first)


def test_a_pointer_that_is_missing_is_told(texts):
    folder = texts.files[0].parent
    library = ctypes.CDLL(str(folder / "liblm.so"))
    library.lm_error.restype = ctypes.c_char_p
    library.lm_length.restype = ctypes.c_int64
    model, cache = ctypes.c_void_p(), ctypes.c_void_p()
    one, none = ctypes.c_int64(1), ctypes.c_int64(0)
    weights, room = str(folder / "lm.weights").encode(), ctypes.create_string_buffer(4096)
    assert library.lm_open(weights, 0, ctypes.byref(model)) == 0
    assert library.lm_cache_open(model, one, one, ctypes.byref(cache)) == 0
    for called, given in (
        (library.lm_open, {"weights": weights, "threads": 0, "model": room}),
        (library.lm_cache_open, {"model": model, "texts": one, "positions": one, "cache": room}),
        (library.lm_append, {"cache": cache, "tokens": room, "counts": room, "logits": room}),
        (library.lm_truncate, {"cache": cache, "text": none, "length": none}),
    ):
        for name in given.keys() - {"threads", "texts", "positions", "text", "length"}:
            assert called(*(given | {name: None}).values()) == 1
            assert library.lm_error().decode() == f"`{name}` must not be NULL"
    assert library.lm_length(None, none) == -1
    library.lm_cache_close(cache)
    library.lm_close(model)


def test_a_program_for_all_sizes_and_its_errors(tmp_path, monkeypatch):
    source = tmp_path / "program.ptir"
    source.write_text(PROGRAM)
    # A chain that would run on parts until its kernel is there has its kernel in a library.
    monkeypatch.setenv("GPTRS_NUMBA_PARTS", "only")
    made = compile_library(source, tmp_path / "out", backend="numba", threads=2, wheel="1.0rc1")
    assert (made.manifest.kind, made.manifest.name) == ("program", "program")
    module = module_of(made, tmp_path / "installed")
    model, generator = module.Model(), np.random.default_rng(0)
    program = parse_program(PROGRAM)
    table = generator.standard_normal((6, 4), np.float32)
    for rows in (1, 2, 3, 500):
        inputs = {"table": table, "rows": generator.integers(0, 6, rows),
                  "shift": generator.standard_normal((rows, 4), np.float32)}  # fmt: skip
        expected = run_program(program, inputs, get_backend("numba"))
        for ours, theirs in zip(model(**inputs).values(), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="out of its range"):
        model(table, np.array([0, 6]), np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="input `shift`: axis 0 must have the size 2, got 3"):
        model(table, np.array([0, 1]), np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match="must have 1 axes"):
        model(table, np.array([[0, 1]]), np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="has the size 0"):
        model(table, np.zeros(0, np.int64), np.zeros((0, 4), np.float32))
    with pytest.raises(TypeError, match="must be an array of int64"):
        model(table, np.zeros(1), np.zeros((1, 4), np.float32))
    with pytest.raises(TypeError, match="the inputs are table, rows, shift"):
        model(table)
    assert subprocess.run([_built(made)], cwd=tmp_path / "out", check=True).returncode == 0


@pytest.mark.exhaustive
def test_an_encoder_serves_batches_and_lengths(tmp_path):
    folder, settings = save_tiny_bert(tmp_path / "bert"), {"backend": "numba", "threads": 1}
    made = compile_library(folder, tmp_path / "out", wheel="1", **settings)
    model = load_model(folder, **settings)
    computation, compiled = model.computation(), module_of(made, tmp_path / "module").Model()
    step = jit(lambda *arrays: tuple(computation.function(*arrays).values()))
    for batch, length in product((1, 3), (1, 2, 17)):
        tokens = np.arange(batch * length).reshape(batch, length) % 20
        mask = np.ones_like(tokens)
        mask[-1, length // 2 + 1 :] = 0
        inputs = {name: mask if "mask" in name else tokens for name in computation.inputs}
        expected = step(*map(tensor, inputs.values()))
        for ours, theirs in zip(compiled(**inputs).values(), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.exhaustive
def test_images_are_compiled_for_one_size(tmp_path):
    folder = save_tiny_resnet(tmp_path / "resnet")
    with pytest.raises(UnsupportedError, match="planned for each size"):
        compile_library(folder, tmp_path / "out", backend="numba", threads=1)
    sizes = ("batch=2", "height=32", "width=32")
    made = compile_library(
        folder, tmp_path / "out", backend="numba", threads=1, symbols=sizes, wheel="1"
    )
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    (found,) = module_of(made, tmp_path / "module").Model()(images).values()
    model = load_model(folder, backend="numba", threads=1)
    np.testing.assert_array_equal(found, model.forward(images))


def test_weights_and_processors_that_do_not_belong(texts, tmp_path, monkeypatch):
    lm = module_of(texts, tmp_path / "installed")
    folder = Path(lm.__file__).parent
    weights = folder / "lm.weights"
    whole = weights.read_bytes()
    for content, words in (
        (b"", "does not have the weights"),
        (b"x" * 64 + whole[64:], "does not have the weights"),
        (whole[:-4096], "bytes, .* are needed"),
    ):
        weights.write_bytes(content)
        with pytest.raises(OSError, match=words):
            lm.Model()
    weights.unlink()
    with pytest.raises(OSError, match="No such file"):
        lm.Model()
    weights.write_bytes(whole)
    lacking = [each for each in c_data.CPUID if each not in usable_features()]
    if not lacking:
        pytest.skip("the processor has every feature that libraries know")
    monkeypatch.setattr(c_data, "usable_features", lambda: frozenset(lacking))
    source = tmp_path / "sums.ptir"
    source.write_text(PROGRAM)
    made = compile_library(source, tmp_path / "out", backend="numba", wheel="1")
    with pytest.raises(ValueError, match="needs a processor with"):
        module_of(made, tmp_path / "module").Model()


def test_what_is_refused_leaves_nothing(tmp_path, monkeypatch):
    source, out = tmp_path / "sums.ptir", tmp_path / "out"
    source.write_text(PROGRAM)
    with pytest.raises(UnsupportedError, match="backend `ref` writes no libraries"):
        compile_library(source, out, backend="ref")
    for name in ("int", "Two", "a b", "class", "x" * 42, "time", "json", "m", "x", "weights"):
        with pytest.raises(UsageError, match="cannot begin the names"):
            compile_library(source, out, name=name, backend="numba")
    with pytest.raises(UsageError, match="no version"):
        compile_library(source, out, backend="numba", wheel="new")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ExecutionError, match="no-such-compiler` is not installed"):
        compile_library(source, out, backend="numba")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(ExecutionError, match="failed"):
        compile_library(source, out, backend="numba")
    assert [path.name for path in tmp_path.iterdir()] == ["sums.ptir"]
    monkeypatch.delenv("CC")
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds no library"):
        compile_library(source, out, backend="numba", force=True)
    assert (out / "mine.txt").read_text() == "mine"


def test_a_library_is_replaced_only_by_force(tmp_path):
    source, out = tmp_path / "sums.ptir", tmp_path / "out"
    source.write_text(PROGRAM)
    first = compile_library(source, out, backend="numba", symbols=("0=2",))
    with pytest.raises(UsageError, match="`--force` replaces"):
        compile_library(source, out, backend="numba")
    again = compile_library(source, out, backend="numba", name="other", force=True)
    assert (first.manifest.name, again.manifest.name) == ("sums", "other")
    assert {path.name for path in out.iterdir()} == {path.name for path in again.files}
    assert json.loads((out / "manifest.json").read_text())["name"] == "other"


def test_the_runtime_is_clean_under_sanitizers(directory, tmp_path, monkeypatch):
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    (tmp_path / "probe.c").write_text("int main(void) { return 0; }\n")
    probe = subprocess.run(
        ["cc", *flags, "probe.c", "-o", "probe"], cwd=tmp_path, capture_output=True
    )
    if probe.returncode or subprocess.run([tmp_path / "probe"], check=False).returncode:
        pytest.skip("the C compiler has no sanitizers")
    monkeypatch.setenv("CC", f"cc {' '.join(flags)}")
    made = compile_library(directory, tmp_path / "out", name="lm", backend="numba", threads=2)
    example = _built(made, *flags)
    command = [str(example), "40", *map(str, PROMPT)]
    run = subprocess.run(command, cwd=example.parent, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert len(run.stdout.split()) == 40
