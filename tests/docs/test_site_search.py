"""The search of the site is asked as a page asks it; `make docs` asks all that people look for."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from docs_site.search_check import node, wrong_answers
from docs_site.search_queries import FIRST

MATERIAL = importlib.util.find_spec("material")
pytestmark = [
    pytest.mark.skipif(MATERIAL is None, reason="the theme of the site brings the search"),
    pytest.mark.skipif(node() is None, reason="the search is a program for node"),
]
CONFIG = {
    "lang": ["en"],
    "separator": r"[\s]+",
    "pipeline": [],
    "fields": {"title": {"boost": 1000}, "text": {"boost": 1}, "tags": {"boost": 1000}},
}


def built(site: Path, *pages: tuple[str, str, list[str]]) -> Path:
    """A site of pages with a title and tags each, whose search is the theme's."""
    theme = Path(MATERIAL.origin).parent / "templates" / "assets" / "javascripts"
    shutil.copytree(theme, site / "assets" / "javascripts")
    docs = [{"location": p, "title": title, "text": "", "tags": tags} for p, title, tags in pages]
    (site / "search").mkdir()
    index = {"config": CONFIG, "docs": docs}
    (site / "search" / "search_index.json").write_text(json.dumps(index), encoding="utf-8")
    return site


def test_pages_that_are_not_the_first_are_told(tmp_path: Path):
    pages = (("a.html", "Docker", []), ("b/c.html", "Containers", ["podman"]))
    site = built(tmp_path, *pages)
    first = {"a": ("docker", "podman"), "b/c": ("contain", "pod", "absent")}
    assert wrong_answers(site, node(), first) == [
        ("podman", "a", ["b/c"]),
        ("absent", "b/c", []),
    ]


def test_queries_are_asked_once():
    queries = [query for each in FIRST.values() for query in each]
    assert len(queries) > 100
    assert len(set(queries)) == len(queries)
