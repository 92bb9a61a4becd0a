"""The examples of README, CONTRIBUTING and the documentation run as they are printed."""

import shutil
from pathlib import Path

import pytest

import doc_examples
from functionals.temporary import restored

ROOT = Path(doc_examples.__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_EXAMPLES = [p for p in DOCUMENTS if doc_examples.find_blocks(p.read_text(encoding="utf-8"))]
FIRST_READ = ("README.md", "tutorial.md")
"""What is also run by `make test`: to start a process for each command takes long."""


def _documents():
    for path in WITH_EXAMPLES:
        marks = () if path.name in FIRST_READ else [pytest.mark.exhaustive]
        yield pytest.param(path, id=path.relative_to(ROOT).as_posix(), marks=marks)


def test_the_readme_and_the_rules_for_contributors_have_examples():
    assert {ROOT / "README.md", ROOT / "CONTRIBUTING.md"} <= set(WITH_EXAMPLES)


@pytest.mark.long
@pytest.mark.parametrize("path", list(_documents()))
def test_examples_run(path: Path, tmp_path: Path):
    shutil.copytree(ROOT / "docs" / "examples", tmp_path, dirs_exist_ok=True)
    with restored():
        assert doc_examples.run_file(path, cwd=tmp_path) > 0
