"""Commands that the docs show and do not run: the command line takes them as they stand."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.command_lines import require_taken

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "packages/*/README.md")
FENCE = re.compile(r"^```(?:sh|console no-run)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> set[str]:
    blocks = "".join(FENCE.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    lines = (line.removeprefix("$ ") for line in blocks.splitlines())
    return {line for line in lines if line.startswith("gptrs ")}


def test_commands_that_are_not_run_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = {line for each in PAGES for page in ROOT.glob(each) for line in command_lines(page)}
    assert len(found) > 100
    if find_spec("gptrs_ray") is None:  # whose command the parser does not know
        found = {line for line in found if not line.startswith("gptrs batch ")}
    monkeypatch.chdir(tmp_path)  # no folder that a word could name
    refused: dict[str, str] = {}
    for line in sorted(found):
        try:
            require_taken(line)
        except Exception as error:
            refused[line] = f"{type(error).__name__}: {error}"
    assert refused == {}
    with pytest.raises(Exception, match="extra argument"):
        require_taken('gptrs classify --model m "a text"')
