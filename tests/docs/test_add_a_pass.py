"""The recipe for a new pass, followed in a copy of the sources: three files, one of them a line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import doc_examples

ROOT = Path(doc_examples.__file__).parents[1]
OPTIMIZER = Path("packages/gptrs-core/src/gptrs/optimizer")
PASS = '''"""Drops marks for differentiation, which nobody reads after it."""

from __future__ import annotations

from gptrs.ir.ops.elementwise import StopGradient
from gptrs.ir.program import Value
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Emitter, Match, Operand, calls, rewrite

stop_gradient = calls(StopGradient)
x = Operand("x")


@rewrite(stop_gradient(x))
def stop_gradient_is_nothing(m: Match, emit: Emitter) -> Value:
    """stop_gradient(x) -> x"""
    return m[x]


STOP_GRADIENT_FOLDING = RewritePass("stop-gradient-folding", (stop_gradient_is_nothing,))
'''
TEST = """// RUN: stop-gradient-folding
ptir.v0.5

// CHECK:      func @main(%x: f32[2]) -> f32[2] {
// CHECK-NEXT:   return %x
// CHECK-NEXT: }
func @main(%x: f32[2]) -> f32[2] {
  %0 = stop_gradient %x : f32[2]
  return %0
}
"""
IMPORT = "from gptrs.optimizer.passes.region_simplification import REGION_SIMPLIFICATION\n"
OWN_IMPORT = "from gptrs.optimizer.passes.stop_gradient_folding import STOP_GRADIENT_FOLDING\n"
TABLE = "FOLDINGS: tuple[RewritePass, ...] = (\n"


def test_the_recipe_works(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
    tools = (ROOT / "tests" / "optimizer", ROOT / "tools" / "fuzzing")
    for path in (*ROOT.glob("packages/*/src"), *tools):
        shutil.copytree(path, tmp_path / path.relative_to(ROOT), ignore=ignored)
    folder = tmp_path / OPTIMIZER
    (folder / "passes" / "stop_gradient_folding.py").write_text(PASS, encoding="utf-8")
    tests = tmp_path / "tests" / "optimizer"
    (tests / "passes" / "stop_gradient_folding.ptir").write_text(TEST, encoding="utf-8")
    text = (folder / "pipeline.py").read_text(encoding="utf-8")
    assert text.count(IMPORT) == text.count(TABLE) == 1
    text = text.replace(IMPORT, IMPORT + OWN_IMPORT)
    text = text.replace(TABLE, TABLE + "    STOP_GRADIENT_FOLDING,\n")
    (folder / "pipeline.py").write_text(text, encoding="utf-8")
    sources = [str(path) for path in tmp_path.glob("packages/*/src")]
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    options += ["-o", "pythonpath=tools tests"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/optimizer/test_passes.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sources)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
