"""The backend that defines what PTIR means."""

from __future__ import annotations

import pytest

from gptrs.backend.protocol import Backend
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import Selection


@pytest.fixture(scope="session")
def reference() -> Backend:
    """The reference backend."""
    return PluginManager(Selection()).get_backend("ref")
