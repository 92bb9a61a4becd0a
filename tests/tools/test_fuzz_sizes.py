"""`tools/fuzz_sizes.py` counts what it compares, and notes programs that give other results."""

from __future__ import annotations

import pytest

import fuzz_sizes
from gptrs_conformance.check import CheckFailure


def test_right_programs_leave_nothing_behind(tmp_path, capsys):
    out = tmp_path / "failures"
    few = ["--programs", "3", "--backends", "ref", "--processes", "1", "--out", str(out)]
    assert fuzz_sizes.main(few) == 0
    printed = capsys.readouterr().out
    assert "3 programs on ref, 9 sizes, seeds 0 to 2" in printed
    assert "0 differ" in printed
    assert not out.exists()


def test_a_wrong_program_is_noted_by_its_seed(monkeypatch: pytest.MonkeyPatch):
    def differs(backend, program, seed):
        if seed == 4:
            raise CheckFailure("result 0 is another one")
        return 3

    monkeypatch.setattr(fuzz_sizes, "require_all_sizes", differs)
    assert fuzz_sizes._examine("ref", range(3, 6)) == (
        6,
        {4: "CheckFailure: result 0 is another one"},
    )
