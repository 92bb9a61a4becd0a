"""The walks of `docs/how_it_works.md` name files and what is found in them."""

import re
from pathlib import Path

import pytest

import doc_examples

DOCS = Path(doc_examples.__file__).parents[1] / "docs"
ROWS = re.findall(
    r"^\| \[`[^`]+`\]\(([^)]+)\) \| `(\w+)` \|", (DOCS / "how_it_works.md").read_text(), re.M
)


def test_there_are_three_walks_of_files_that_are_visited_once():
    assert len(ROWS) > 25
    assert len({path for path, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("path", "name"), ROWS)
def test_the_file_defines_what_to_look_for(path: str, name: str):
    source = (DOCS / path).read_text(encoding="utf-8")
    assert re.search(rf"^\s*(def|class) {name}\b|^{name}\b", source, re.M)
