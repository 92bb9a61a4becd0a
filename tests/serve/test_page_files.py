"""The files of the page: all are served, under a strict policy, and none makes nodes of HTML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gptrs_serve
from gptrs_serve.problems import PAGE_FILES
from serve.clients import http

FOLDER = Path(gptrs_serve.__file__).with_name("page")
OWN = sorted(path for path in FOLDER.glob("*.*") if path.suffix in (".js", ".html"))
KINDS = {".html": "text/html", ".css": "text/css"}


def test_every_file_is_served_under_the_policy(address):
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.*")}
    assert set(PAGE_FILES.values()) == files - {"vendor/LICENSE.txt"}
    for path, name in PAGE_FILES.items():
        answer = http.get(f"{address}{path}")
        assert answer.content == (FOLDER / name).read_bytes()
        policy = answer.headers["content-security-policy"].split("; ")
        assert policy[:2] == ["default-src 'self'", "img-src data:"]
        kind = KINDS.get(Path(name).suffix, "text/javascript")
        assert answer.headers["content-type"].startswith(kind)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_script_makes_nodes_of_html_or_asks_elsewhere(path):
    source = path.read_text("utf-8")
    of_html = r"innerHTML|outerHTML|insertAdjacentHTML|parseFromString|document\.write|srcdoc"
    of_code = r"eval\(|Function\(|setAttribute\(|\son\w+=\"|https?://"
    assert not re.search(f"{of_html}|{of_code}", source)


def test_models_to_try_are_those_that_chat(address):
    found = http.get(f"{address}/page.json").json()["recommended"]
    assert "smollm2:135m" in [each["short"] for each in found]
    assert all(each["bytes"] > 0 and each["about"] for each in found)
