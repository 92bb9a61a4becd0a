"""The walks of `docs/how_it_works.md` name files, what is found in them, and run in this order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import doc_examples
from fuzzing import tiny_gguf
from gptrs_runtime.converting.convert import convert

DOCS = Path(doc_examples.__file__).parents[1] / "docs"
TEXT = (DOCS / "how_it_works.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| \[`[^`]+`\]\(([^)]+)\) \| `([\w.]+)` \|", re.M)
ROWS = ROW.findall(TEXT)
RECORDER = Path(__file__).with_name("walk_recorder.py")
GENERATE = """
from gptrs_cli.main import main
assert main(["generate", "--model", "MODEL", "the", "--max-tokens", "2", "--temperature", "1"]) == 0
"""
GET_BACKEND = "import gptrs; gptrs.get_backend('ref')"
WALKS = {
    "### A token id": ("model", GENERATE, "ref"),
    "### A weight": ("model", GENERATE, "numba"),
    "A quantized weight": ("model.gguf", GENERATE, "numba"),
    "### A plugin": ("", GET_BACKEND, ""),
}
"""How the text before each table begins; the model, the code and the backend that walk it."""


def rows_below(start: str) -> list[tuple[str, str]]:
    """Return the rows of the first table after a line that begins so."""
    lines = TEXT.partition(f"\n{start}")[2]
    table = re.search(r"(^\|.*\n)+", lines, re.M)
    assert table is not None
    return ROW.findall(table[0])


def test_there_are_three_walks_of_steps_that_are_named_once() -> None:
    assert len(ROWS) > 25
    assert len(set(ROWS)) == len(ROWS)
    assert [row for start in WALKS for row in rows_below(start)] == ROWS


@pytest.mark.parametrize(("path", "name"), ROWS)
def test_the_file_defines_what_to_look_for(path: str, name: str) -> None:
    source = (DOCS / path).read_text(encoding="utf-8")
    for part in name.split("."):
        assert re.search(rf"^\s*(def|class) {part}\b|^{part}\b", source, re.M)


CASES = [
    # A walk on numba compiles all of its kernels.
    pytest.param(
        start, marks=[pytest.mark.exhaustive] if "numba" in walk else [], id=start.strip("# ")
    )
    for start, walk in WALKS.items()
]


@pytest.mark.parametrize("start", CASES)
def test_a_walk_runs_in_the_order_of_its_table(start: str, tmp_path: Path) -> None:
    """Each row is entered after the row before it, in a process that finds no captured steps."""
    model, code, backend = WALKS[start]
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf.llama(("Q8_0",), width=64))
    if model == "model":
        convert(path, tmp_path / model)
    rows = rows_below(start)
    wanted, seen = tmp_path / "wanted.json", tmp_path / "seen.json"
    wanted.write_text(json.dumps([[str((DOCS / file).resolve()), name] for file, name in rows]))
    subprocess.run(
        [sys.executable, RECORDER, wanted, seen, code.replace("MODEL", str(tmp_path / model))],
        env=os.environ | {"GPTRS_CACHE_DIR": str(tmp_path / "cache"), "GPTRS_BACKEND": backend},
        check=True,
        capture_output=True,
    )
    reached = 0
    for place in json.loads(seen.read_text()):
        reached += place == reached
    assert reached == len(rows), f"{rows[reached]} is not entered after {rows[:reached][-1:]}"
