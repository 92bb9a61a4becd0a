"""Optimized programs on disk: found again, never stale, never from somebody else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

import gptrs
from gptrs.backend.contract import InputRole
from gptrs.capture.caching import optimized_programs
from gptrs.capture.caching.optimized_programs import OptimizedPrograms
from gptrs.capture.caching.program_key import optimization_key
from gptrs.ir import dtypes
from gptrs.ir.parser import parse_program
from gptrs.ir.printer import print_program
from gptrs.ir.size_guards import SizeGuards, deciding
from gptrs.ir.symbolic_dim import symbol
from gptrs.optimizer.split import Recipe, Split

SYMBOLIC = parse_program("""ptir.v0.5
func @main(%x: f32[?0, 3], %w: bf16[3]) -> f32[?0, 3] {
  %0 = broadcast_to f32[3] [1.0, nan, -0.0] {shape = [?0, 3]} : f32[?0, 3]
  %1 = add %x, %0 : f32[?0, 3]
  return %1
}
""")
ARGUMENTS = [InputRole.ARGUMENT, InputRole.PARAMETER]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "programs"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def split():
    return Split(SYMBOLIC, (0, Recipe(SYMBOLIC, (1,))))


def many_rows(example: int) -> SizeGuards:
    with deciding(SizeGuards({0: example})) as guards:
        assert (symbol(0) > 16) is (example > 16)
    return guards


def test_what_was_kept_is_found(folder, split):
    OptimizedPrograms(folder).keep("key", split, None)
    kept = OptimizedPrograms(folder).find("key", None)
    assert kept is not None
    name, found = kept
    assert name.startswith("key.")
    assert print_program(found.program) == print_program(SYMBOLIC)
    first, recipe = found.inputs
    assert first == 0
    assert isinstance(recipe, Recipe)
    assert recipe.inputs == (1,)
    x, _ = found.program.main.body.params
    assert x.type.dtype is dtypes.f32, "types are compared by identity"
    assert OptimizedPrograms(folder).find("other", None) is None


def test_each_class_of_sizes_has_its_own(folder, split):
    store = OptimizedPrograms(folder)
    few = Split(SYMBOLIC, (0, 1))
    store.keep("key", split, many_rows(40))
    store.keep("key", few, many_rows(3))
    assert len(list(folder.iterdir())) == 2
    guards = SizeGuards({0: 700})
    kept = store.find("key", guards)
    assert kept is not None
    _, found = kept
    assert isinstance(found.inputs[1], Recipe)
    assert [str(guard) for guard in guards.guards] == ["?0-17"]
    guards = SizeGuards({0: 16})
    assert store.find("key", guards)[1].inputs == (0, 1)
    assert not guards.accept({0: 17})


def test_the_key_tells_everything_apart_that_decides(monkeypatch):
    backend = gptrs.get_backend("ref")
    other = parse_program(print_program(SYMBOLIC).replace("1.0", "2.0"))
    keys = {
        optimization_key(SYMBOLIC, backend, ARGUMENTS, None, fold=True),
        optimization_key(other, backend, ARGUMENTS, None, fold=True),
        optimization_key(SYMBOLIC, backend, ARGUMENTS[::-1], None, fold=True),
        optimization_key(SYMBOLIC, backend, ARGUMENTS, ("8",), fold=True),
        optimization_key(SYMBOLIC, backend, ARGUMENTS, None, fold=False),
    }
    assert len(keys) == 5
    assert optimization_key(SYMBOLIC, backend, ARGUMENTS, None, fold=True) in keys


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_file_makes_no_other_objects(folder, tmp_path, split):
    OptimizedPrograms(folder).keep("key", split, None)
    (file,) = folder.iterdir()
    body = pickle.dumps(Harmful(tmp_path / "harm"))
    file.write_bytes(optimized_programs.FORMAT.encode(file.name, "", body))
    assert OptimizedPrograms(folder).find("key", None) is None
    assert not (tmp_path / "harm").exists()


def test_damaged_files_count_as_absent(folder, split):
    OptimizedPrograms(folder).keep("key", split, None)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(damaged)
        assert OptimizedPrograms(folder).find("key", None) is None
    file.write_bytes(whole)
    assert OptimizedPrograms(folder).find("key", None) is not None


def test_files_that_changed_places_count_as_absent(folder, split):
    OptimizedPrograms(folder).keep("key", split, None)
    OptimizedPrograms(folder).keep("other", Split(SYMBOLIC, (0, 1)), None)
    one, other = sorted(folder.iterdir())
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    assert OptimizedPrograms(folder).find("key", None) is None
    assert OptimizedPrograms(folder).find("other", None) is None


def test_files_that_others_may_write_are_not_read(folder, split):
    OptimizedPrograms(folder).keep("key", split, None)
    (file,) = folder.iterdir()
    file.chmod(0o666)
    assert OptimizedPrograms(folder).find("key", None) is None
    file.unlink()
    file.symlink_to("/dev/zero")
    assert OptimizedPrograms(folder).find("key", None) is None


def test_a_folder_that_takes_nothing_is_no_error(tmp_path, split):
    store = OptimizedPrograms(tmp_path / "missing")
    store.keep("key", split, None)
    assert store.find("key", None) is None


def test_files_read_long_ago_make_room(folder, split, monkeypatch):
    monkeypatch.setattr("gptrs.capture.caching.optimized_programs.BUDGET", 4000)
    store = OptimizedPrograms(folder)
    for number in range(8):
        store.keep(f"key{number}", split, None)
        file = next(folder.glob(f"key{number}.*"))
        os.utime(file, (number + 1, number + 1))
    kept = sorted(path.name.partition(".")[0] for path in folder.iterdir())
    assert kept[-1] == "key7"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 4000
    assert "key0" not in kept


DEEP = 60
"""Layers of two instructions: more than `SMALLEST_KEPT` of them."""
SCRIPT = f"""
import numpy as np, gptrs
from gptrs import functionals as F
from gptrs.optimizer.pipeline import Pipeline
runs = []
before = Pipeline.after_folding
Pipeline.after_folding = lambda self, program: runs.append(1) or before(self, program)
def deep(x):
    for layer in range({DEEP}):
        x = F.tanh(x * (1.0 + layer))
    return x
with gptrs.use_backend(gptrs.get_backend("ref")):
    found = gptrs.jit(deep)(gptrs.tensor(np.linspace(0, 1, 5, dtype=np.float32))).numpy()
print(len(runs), found.tobytes().hex())
"""


@pytest.mark.long
def test_a_second_process_optimizes_nothing(tmp_path):
    def run(**variables: str) -> list[str]:
        environment = {**os.environ, "GPTRS_CACHE_DIR": str(tmp_path), **variables}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    optimized, result = run()
    assert optimized == "1"
    assert run() == ["0", result]
    assert run(GPTRS_OPT_POST_ITERS="1") == ["1", result], "other settings, another program"
    assert run(GPTRS_CACHE_BYTES="0") == ["1", result]
