"""Pages on installing name every distribution that the repository has."""

import re
import tomllib
from pathlib import Path

import pytest

import doc_examples

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
