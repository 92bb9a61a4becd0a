"""Programs and ops that several tests of the optimizer start from."""

from __future__ import annotations

import pytest

from gptrs.ir import OPS
from optimizer.ops_of_two_results import ALL


@pytest.fixture
def ops_of_two_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the ops of `ops_of_two_results` known to the verifier and the printer."""
    for name, cls in ALL.items():
        monkeypatch.setitem(OPS, name, cls)
