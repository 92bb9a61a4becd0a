"""The JAX backend on the CPU; skipped where JAX is not installed."""

from __future__ import annotations

import pytest

from gptrs.backend.contract import Backend
from gptrs.plugins.manager import manager

collect_ignore_glob: list[str] = []
try:
    import jax  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def jax_backend() -> Backend:
    """The backend on the CPU, whatever else the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPTRS_JAX_PLATFORM", "cpu")
        return manager().get_backend("jax")
