"""`tools/soak_server.py` finds nothing wrong in a short while, and tells what is wrong."""

from __future__ import annotations

import pytest

pytest.importorskip("uvicorn", reason="gptrs-serve is not installed")
import soak_server
from gptrs_serve.pools import THREADS


@pytest.mark.long
def test_random_and_hostile_load_leaves_nothing_behind(capsys, monkeypatch):
    # The pools of the server start their threads as they are needed, in any request.
    most = soak_server.State(64, 64, 2, 3 * THREADS)
    monkeypatch.setattr(soak_server, "MAY_GROW", most)
    assert soak_server.run(seconds=0.5, disconnects=6, seed=2, gap=60) == 0, capsys.readouterr().out
    told = capsys.readouterr().out
    assert ": 0 wrong; from" in told
    assert told.rstrip().endswith("flat")


def test_a_wrong_answer_and_growth_are_told(capsys):
    counts = soak_server.Counts(wrong=["a text"])
    small, large = soak_server.State(9, 9, 9, 9), soak_server.State(9, 9, 99, 9)
    assert soak_server.report(counts, small, large, 3.0) == 1
    told = capsys.readouterr().out
    assert "WRONG a text" in told
    assert "grew: descriptors" in told
    assert soak_server.report(soak_server.Counts(), small, small, 3.0) == 0
