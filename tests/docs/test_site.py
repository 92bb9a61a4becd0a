"""The site of the docs: its parts are made right; `make docs` builds the whole, strictly."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

import doc_examples
from docs_site import api_reference, command_reference
from docs_site.markdown_dialect import for_python_markdown
from docs_site.site_links import PAGES, LinkError, relinked
from gptrs import api

ROOT = Path(doc_examples.__file__).parents[1]
NAV = re.compile(r"^ +- (?:.*: )?(\S+\.md)$", re.MULTILINE)
VARIABLE = re.compile(r"(?<![A-Z_])GPTRS_[A-Z0-9_]+")


def test_the_variables_of_the_page_are_those_of_the_code():
    sources = [*ROOT.glob("packages/*/src/**/*.py")]
    used = {name for path in sources for name in VARIABLE.findall(path.read_text("utf-8"))}
    listed = re.findall(r"^\| `(GPTRS_\w+)` ", (ROOT / "docs/environment.md").read_text(), re.M)
    assert len(listed) == len(set(listed))
    assert set(listed) == used


def test_the_navigation_names_pages_that_are_there():
    shown = {*NAV.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))}
    made = {*PAGES.values(), "reference/commands.md", *api_reference.PAGES}
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert made <= shown <= made | written


@pytest.fixture(scope="module")
def commands() -> str:
    return command_reference.page()


@pytest.mark.parametrize(
    "row",
    [
        "## gptrs generate\n",
        "## gptrs list backends\n",
        "| `[PROMPT]` |",
        "| `--temperature X` | ",
        " | `GPTRS_TEMPERATURE` |",
        "| `--json` | ",
        "Exit codes: 0 ok",
    ],
)
def test_the_command_line_is_listed(commands: str, row: str):
    assert row in commands


def test_commands_of_all_packages_are_listed(commands: str):
    found = set()
    for file in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        found |= set(project.get("entry-points", {}).get("gptrs.commands", {}))
    listed = set(re.findall(r"^## gptrs (\S+)", commands, re.MULTILINE))
    assert {"serve", "new", "batch", "finetune", "train"} <= found == listed
    assert "comes with the package `gptrs-serve`" in commands
    assert commands.count("| `--api-key-file FILE` |") == 1


def test_the_table_of_capabilities_names_every_command(commands: str):
    page = (ROOT / "docs/capabilities.md").read_text(encoding="utf-8")
    named = {*re.findall(r"[a-z]+", " ".join(re.findall(r"`(?:gptrs )?([a-z]+)[^`]*`", page)))}
    assert set(re.findall(r"^## gptrs (\w+)", commands, re.MULTILINE)) <= named


def test_a_command_whose_library_is_missing_is_listed(monkeypatch: pytest.MonkeyPatch):
    for name in ("ray", "gptrs_ray.batch", "gptrs_ray.command"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    section = command_reference.page().partition("## gptrs batch\n")[2].partition("\n## ")[0]
    assert "`gptrs-ray`, without which this page was built" in section


def test_shared_options_stand_once(commands: str):
    row = "| `--threads N` | Use N threads. [1<=x<=256] |"
    assert commands.count(row) == 1
    assert commands.index("## Shared options") < commands.index(row)
    assert "[Shared options](#shared-options): `--backend`" in commands


def test_public_names_are_listed_where_they_are_defined():
    names = api_reference.stub_names(Path(api.backends.__file__).with_suffix(".pyi"))
    assert names["Backend"] == "gptrs.backend.contract.Backend"
    assert "functionals" not in names
    pages = api_reference.pages()
    assert set(pages) == set(api_reference.PAGES)
    assert "::: gptrs_runtime.generation.generate.generate\n" in pages["reference/python.md"]
    assert "::: gptrs.functionals.activation.gelu\n" in pages["reference/functionals.md"]
    assert "::: gptrs.nn.layers.Linear\n" in pages["reference/nn.md"]


def linked(text: str) -> str:
    return relinked(text, "recipes/add_an_op.md", ROOT)


def test_links_hold_on_the_site():
    assert linked("[a](../ptir.md#b)") == "[a](../ptir.md#b)"
    assert linked("[a](../../SECURITY.md)") == "[a](../project/security.md)"
    assert linked("[`op`](../../tools/dist.py) [x](https://a.b) [y](#z)") == (
        "`op` [x](https://a.b) [y](#z)"
    )
    assert relinked("[a](docs/ptir.md)", "index.md", ROOT) == "[a](ptir.md)"
    code = "`x[0](y)`\n```python\nx[1](y)\n```\n"
    assert linked(code) == code


def test_a_dead_link_is_an_error():
    with pytest.raises(LinkError, match=r"docs/recipes/add_an_op.md links to absent.md"):
        linked("[a](absent.md)")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\n- b\n  c\n- d", "a\n\n- b\n    c\n- d"),
        ("1. a\n\n   b\n\n   ```python no-run\n   x\n     y\n   ```\n2. c\n\nd", None),
        ("- a\n  - b\n    c\n- d", "- a\n    - b\n        c\n- d"),
        ("a\n b", "a\n b"),
    ],
)
def test_lists_and_fences_are_those_of_python_markdown(text: str, wanted: str | None):
    numbered = "1. a\n\n    b\n\n    ```python\n    x\n      y\n    ```\n2. c\n\nd"
    assert for_python_markdown(text) == (numbered if wanted is None else wanted)


def test_examples_in_docstrings_become_code():
    fences = pytest.importorskip("docs_site.doctest_fences", reason="needs griffe")
    assert (
        fences.fenced("Add.\n\n>>> f(1)\n2\n\nEnd.") == "Add.\n\n```pycon\n>>> f(1)\n2\n```\n\nEnd."
    )
