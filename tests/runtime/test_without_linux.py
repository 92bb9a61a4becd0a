"""Nothing needs what only Linux has: each such call has a portable road, or a clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("without_linux.py")
ONE_COMPILER = {"GPTRS_NUMBA_COMPILERS": "1"}
"""Other processes would compile kernels for the system that there is."""
ON_WINDOWS = "import sys; sys.platform = 'win32'; import gptrs"


@pytest.mark.long
def test_products_text_and_files_without_what_only_linux_has(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env={**os.environ, "GPTRS_CACHE_DIR": str(tmp_path / "cache"), **ONE_COMPILER},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "all of it works\n"


def test_windows_is_refused_with_what_to_do():
    run = subprocess.run([sys.executable, "-c", ON_WINDOWS], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.rstrip().endswith("install it in the Linux subsystem (WSL 2)")
