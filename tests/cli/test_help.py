"""The help as a terminal of 80 columns shows it."""

from __future__ import annotations

import pytest

RUN_A_MODEL = (
    *(("generate",), ("forward",), ("trace",), ("embed",), ("validate",)),
    *(("bench", "generate"), ("bench", "forward"), ("cache", "warm")),
)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("group", ["", "list", "bench", "cache", "conformance"])
def test_what_a_command_does_is_said_whole(gptrs, group):
    result = gptrs(*group.split(), "--help")
    _, _, commands = result.out.partition("\nCommands:\n")
    assert commands
    assert not [line for line in commands.splitlines() if line.endswith("...")]


@pytest.mark.parametrize("command", [(), *RUN_A_MODEL], ids=" ".join)
def test_all_that_run_a_model_take_a_budget_for_its_weights(gptrs, command):
    result = gptrs(*command, "--help")
    assert result.code == 0
    assert "--weight-budget SIZE" in result.out
    assert "Keep at most this much of the weights in" in " ".join(result.out.split())
    assert max(map(len, result.out.splitlines())) <= 80
