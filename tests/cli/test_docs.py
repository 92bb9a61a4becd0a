"""`gptrs docs`: pages by name, words in sections, pages that a wheel installed."""

from __future__ import annotations

import json

import pytest

from docs_site.search_queries import FIRST
from gptrs_cli.commands import docs


def test_a_pipe_gets_the_markdown_of_a_page(gptrs):
    result = gptrs("docs", "kv-cache.md")
    assert result.code == 0
    assert result.out.startswith("# The key/value cache")
    guide = gptrs("docs", "generation").out
    assert "no-run" not in guide
    assert "<!--" not in guide


def test_words_find_sections_those_with_them_in_the_heading_first(gptrs):
    result = gptrs("docs", "structured", "output", "--json")
    found = json.loads(result.out)
    assert found["schema"] == "gptrs.docs/1"
    first = found["pages"][0]
    assert first["name"] == "generation"
    assert first["section"].startswith("Structured output")
    listed = gptrs("docs", "structured output").out.splitlines()
    assert len(listed) == 1 + len(found["pages"])


@pytest.mark.parametrize("page", FIRST)
def test_the_page_that_people_look_for_comes_first(gptrs, page):
    for words in FIRST[page]:
        found = json.loads(gptrs("docs", words, "--json").out)["pages"]
        assert found[0]["name"] == page, words


def test_words_that_no_page_has_together_find_those_with_most_of_them(gptrs):
    result = gptrs("docs", "docker", "zyzzyva", "--json")
    assert json.loads(result.out)["pages"][0]["name"] == "deployment"
    assert "no page has all of these words; these have 1 of 2" in result.err
    result = gptrs("docs", "docker", "zyzzyva", "xylem")
    assert (result.code, result.out) == (2, "")
    assert "none has these words" in result.err


def test_unknown_words_and_a_missing_documentation_are_told(gptrs, monkeypatch, tmp_path):
    result = gptrs("docs", "generaton")
    assert result.code == 2
    assert "did you mean `generation`?" in result.err
    monkeypatch.setattr(docs, "__file__", str(tmp_path / "a/b/c/d/e/f.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = gptrs("docs")
    assert "comes with the distribution `gptrs`, which is not installed" in result.err


def test_pages_of_a_wheel(gptrs, monkeypatch, tmp_path):
    (tmp_path / "gptrs_docs" / "plugins").mkdir(parents=True)
    (tmp_path / "gptrs_docs" / "plugins" / "own.md").write_text("# Your own\n\n## Part\n\nzebra\n")
    monkeypatch.setattr(docs, "__file__", str(tmp_path / "a/b/c/d/e/f.py"))
    monkeypatch.syspath_prepend(tmp_path)
    assert gptrs("docs").out.split() == ["PAGE", "TITLE", "plugins/own", "Your", "own"]
    assert "Part" in gptrs("docs", "zebra").out


def test_a_terminal_gets_a_formatted_page(gptrs, monkeypatch):
    shown = list[str]()
    monkeypatch.setattr(docs, "is_terminal", lambda _: True)
    monkeypatch.setattr("pydoc.pager", shown.append)
    assert gptrs("docs", "kv_cache").code == 0
    assert "The key/value cache" in shown[0]
    assert "## " not in shown[0]
