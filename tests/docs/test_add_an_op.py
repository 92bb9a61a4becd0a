"""The recipe for a new op, applied to a copy of the sources: two files, six lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import doc_examples

ROOT = Path(doc_examples.__file__).parents[1]
RECIPE = ROOT / "docs" / "recipes" / "add_an_op.md"
PIECE = re.compile(r"```python no-run\n +# (?P<path>\S+)\n(?P<code>.*?)```", re.DOTALL)
USE = '''
import numpy as np
import gptrs
import gptrs.functionals
from gptrs.capture import primitives
from gptrs.ir import parse_json, parse_program, print_json, print_program
from gptrs_conformance.kit import run_conformance
from gptrs_conformance.uses import ALL_USES
from gptrs_conformance.program_generator import programs_covering

import op_reference
import ptir_schema

text = """ptir.v0.5
func @main(%a: f32[2], %b: f32[2]) -> f32[2] {
  %0 = hypot %a, %b : f32[2]
  return %0
}
"""
program = parse_program(text)
assert print_program(program) == text
assert print_program(parse_json(print_json(program))) == text
inputs = {"a": np.array([3, 0], np.float32), "b": np.array([4, -2], np.float32)}
(result,) = gptrs.run_program(program, inputs, backend="ref")
assert result.tolist() == [5, 2]
with gptrs.use_backend(gptrs.get_backend("ref")):
    three, four = gptrs.tensor([3.0]), gptrs.tensor([4.0])
    assert primitives.hypot(three, four).item() == 5
    assert gptrs.functionals.hypot(three, 4).item() == three.hypot(four).item() == 5
uses = [use for use in ALL_USES if use.functional == "hypot"]
assert uses
for use in uses:
    use.run(gptrs.get_backend("ref"))
report = run_conformance(gptrs.get_backend("ref"), ops=["hypot"])
assert not report.failures, report.failures
assert set(report.coverage["hypot"].values()) == {"pass"} and len(report.coverage["hypot"]) == 6
refused = run_conformance(gptrs.get_backend("numba"), ops=["hypot"])
assert set(refused.coverage["hypot"].values()) == {"refused"}
assert "#### `hypot`" in op_reference.reference()
assert "op.hypot" in ptir_schema.schema()["$defs"]
programs = programs_covering(0)
assert any(step.op.name == "hypot" for p in programs for step in p.main.body.walk())
'''


def pieces() -> dict[str, str]:
    """The code of the recipe by the file that it belongs to."""
    found = PIECE.finditer(RECIPE.read_text(encoding="utf-8"))
    return {match["path"]: re.sub(r"(?m)^   ", "", match["code"]).rstrip() for match in found}


def test_an_op_is_two_files_and_at_most_6_lines() -> None:
    added = pieces()
    assert len(added) == 2
    assert sum(len(code.strip().splitlines()) for code in added.values()) <= 6
    assert len({Path(path).stem.partition("_")[0] for path in added}) == 1


@pytest.mark.long
def test_the_recipe_works(tmp_path: Path) -> None:
    for path in ROOT.glob("packages/*/src"):
        ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
        shutil.copytree(path, tmp_path / path.relative_to(ROOT), ignore=ignored)
    for path, code in pieces().items():
        with (tmp_path / path).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{code}\n")
    sources = [str(path) for path in tmp_path.glob("packages/*/src")]
    sources.append(str(ROOT / "tools"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PYTHONWARNINGS": "error"}
    tool = [sys.executable, str(ROOT / "tools" / "elementwise_functions.py")]
    subprocess.run(tool, env=environment, check=True, cwd=tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", USE], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    where = f"import gptrs; print(gptrs.__file__.startswith({str(tmp_path)!r}))"
    run = subprocess.run([sys.executable, "-c", where], env=environment, capture_output=True)
    assert run.stdout.strip() == b"True"
