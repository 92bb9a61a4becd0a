"""The recipe for a new functional, applied to a copy of the sources: two files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import doc_examples

ROOT = Path(doc_examples.__file__).parents[1]
RECIPE = ROOT / "docs" / "recipes" / "add_a_functional.md"
PIECE = re.compile(r"```python no-run\n +# (?P<path>\S+)\n(?P<code>.*?)```", re.DOTALL)
TABLE = "USES = (\n"
USE = """
import numpy as np
import gptrs
from gptrs import functionals as F
from gptrs_conformance.checks.functionals import CHECKS
from gptrs_conformance.kit import run_check

assert gptrs.__file__.startswith({root!r})
reference = gptrs.get_backend("ref")
(check,) = [check for check in CHECKS if check.name == "functional softsign"]
outcome = run_check(reference, check)
assert outcome.status == "pass", outcome
assert F.implementations()["softsign"] == ("portable",)
assert "softsign" in F.__all__
F.implement("softsign", "other")(lambda x: x * 0)
with gptrs.use_backend(reference), gptrs.overrides({{"softsign": "other"}}):
    assert F.softsign(gptrs.tensor([1.0])).item() == 0
"""


def pieces() -> dict[str, str]:
    """The code of the recipe by the file that it belongs to."""
    found = PIECE.finditer(RECIPE.read_text(encoding="utf-8"))
    return {match["path"]: re.sub(r"(?m)^   ", "", match["code"]).rstrip() for match in found}


def test_a_functional_is_two_files_of_one_family() -> None:
    assert len(pieces()) == 2
    assert len({Path(path).stem for path in pieces()}) == 1


def test_the_recipe_works(tmp_path: Path) -> None:
    for path in ROOT.glob("packages/*/src"):
        ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
        shutil.copytree(path, tmp_path / path.relative_to(ROOT), ignore=ignored)
    function, uses = pieces()
    with (tmp_path / function).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{pieces()[function]}\n")
    text = (tmp_path / uses).read_text(encoding="utf-8")
    assert text.count(TABLE) == 1
    text = text.replace(TABLE, f"{TABLE}{pieces()[uses]}\n")
    (tmp_path / uses).write_text(text, encoding="utf-8")
    sources = [str(path) for path in tmp_path.glob("packages/*/src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PYTHONWARNINGS": "error"}
    run = subprocess.run(
        [sys.executable, "-c", USE.format(root=str(tmp_path))],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
