"""Pages on installing name every distribution that the repository has."""

import re
import tomllib
from pathlib import Path

import pytest

import doc_examples
from gptrs_models.kinds import KINDS

ROOT = Path(doc_examples.__file__).parents[1]
PROJECTS = sorted(ROOT.glob("packages/*/pyproject.toml"))


def names() -> set[str]:
    return {tomllib.loads(path.read_text("utf-8"))["project"]["name"] for path in PROJECTS}


@pytest.mark.parametrize(
    ("page", "begin", "end"),
    [
        ("README.md", "## The packages", "## Further reading"),
        ("docs/install.md", "## Only a part", "## Which systems"),
        ("docs/install.md", "pip uninstall", "```"),
        ("docs/architecture.md", "## Packages", "## Core"),
    ],
)
def test_every_part_is_named(page: str, begin: str, end: str) -> None:
    (section,) = re.findall(f"^{begin}.*?^{end}", (ROOT / page).read_text("utf-8"), re.M | re.S)
    assert names() <= set(re.findall(r"gptrs-[a-z-]+", section))


def test_an_installation_without_make_brings_what_gptrs_needs() -> None:
    text = (ROOT / "docs/install.md").read_text("utf-8")
    (command,) = re.findall(r"^pip install \./.*?(?<!\\)$", text, re.M | re.S)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {re.match(r"[a-z-]+", text)[0] for text in project["dependencies"]}
    assert {*re.findall(r"\./packages/(\S+)", command)} == needed
    assert command.endswith(" .")


def test_pages_count_the_kinds_of_models() -> None:
    count = sum(len(family.kinds) for family in KINDS)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"{count} kinds of models" in (ROOT / "PACKAGE.md").read_text("utf-8")
    assert f"There are {count} kinds of models" in readme
    rows = re.findall(r"^\| [a-z -]+ \| (\d+) \| .*\|$", readme, re.M)
    assert sum(map(int, rows)) == count
