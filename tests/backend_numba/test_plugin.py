"""The plugin's description is light, and leads to the backend."""

import subprocess
import sys

from gptrs.plugins.entry_points import load_reference
from gptrs_backend_numba.backend import NumbaBackend
from gptrs_backend_numba.plugin import PLUGIN


def test_describing_the_backend_imports_no_numba() -> None:
    code = "import sys, gptrs_backend_numba.plugin; print({'numba', 'llvmlite'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"


def test_the_factory_makes_the_backend() -> None:
    backend = load_reference(PLUGIN.factory)(threads=2)
    assert isinstance(backend, NumbaBackend)
    assert (backend.name, backend.threads) == (PLUGIN.name, 2)
