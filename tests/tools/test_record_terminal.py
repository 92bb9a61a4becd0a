"""Pictures of terminals: what is seen at the end, typed lines and colours included."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("rich", reason="makes the pictures")
import record_terminal

ASKING = "name = input('> '); print(f'\\x1b[31mhello {name}\\x1b[0m')"


def test_what_was_erased_or_overwritten_is_not_seen():
    output = "loading 1 s\r\x1b[2Kloading 2 s\r\n\x1b[1A\x1b[2Kready\r\n\x1b[?25h> x\r\n"
    assert list(record_terminal.screen_lines(output)) == ["ready", "> x"]


def test_a_command_is_typed_to_and_becomes_a_picture(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_terminal, "_QUIET_S", 0.3)
    output, code = record_terminal.recorded([sys.executable, "-c", ASKING], ["you"], 40)
    assert code == 0
    lines = record_terminal.screen_lines(output)
    assert lines == ["> you", "\x1b[31mhello you\x1b[0m"]
    drawn = record_terminal.picture(lines, "a title", 40)
    assert drawn.startswith("<svg")
    assert "hello&#160;you" in drawn
    assert "a title" in drawn or "a&#160;title" in drawn
