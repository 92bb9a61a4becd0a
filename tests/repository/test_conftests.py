"""`make test` collects on a machine that has only what it installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
ONLY_IN_CHECK = ("torch", "transformers", "jax", "ray")
LOAD = f"""
import importlib, sys
sys.path[:0] = ["tests", "tools"]
sys.modules.update(dict.fromkeys({ONLY_IN_CHECK}))
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_no_conftest_needs_a_package_that_make_check_alone_installs() -> None:
    paths = [path.relative_to(TESTS).with_suffix("") for path in TESTS.rglob("conftest.py")]
    assert len(paths) > 5
    subprocess.run(
        [sys.executable, "-c", LOAD, *(".".join(path.parts) for path in paths)],
        cwd=TESTS.parent,
        check=True,
    )
