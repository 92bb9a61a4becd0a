"""What fresh memory holds."""

from __future__ import annotations

import zlib

import pytest


@pytest.fixture
def fresh_memory_shows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what the numba backend takes from memory: a result that shows it is a wrong one.

    With NaN and -1, or with numbers near 0.75 and large integers, as the name of the test decides.
    """
    name = str(request.node.name)
    monkeypatch.setenv("GPTRS_NUMBA_FILL", ("255", "63")[zlib.crc32(name.encode()) % 2])
