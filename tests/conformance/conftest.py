"""The backend that defines what PTIR means, and what fresh memory holds."""

from __future__ import annotations

import zlib

import pytest

from gptrs.backend.protocol import Backend
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import Selection


@pytest.fixture(scope="session")
def reference() -> Backend:
    """The reference backend."""
    return PluginManager(Selection()).get_backend("ref")


@pytest.fixture
def fresh_memory_shows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what the numba backend takes from memory: a result that shows it is a wrong one.

    With NaN and -1, or with numbers near 0.75 and large integers, as the name of the test decides.
    """
    name = str(request.node.name)
    monkeypatch.setenv("GPTRS_NUMBA_FILL", ("255", "63")[zlib.crc32(name.encode()) % 2])
