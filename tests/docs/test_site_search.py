"""The search of the site is asked as a page asks it; `make docs` asks all that people look for."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from docs_site.search_check import mend_worker, node, wrong_answers
from docs_site.search_queries import FIRST

MATERIAL = importlib.util.find_spec("material")
pytestmark = [
    pytest.mark.skipif(MATERIAL is None, reason="the theme of the site brings the search"),
    pytest.mark.skipif(node() is None, reason="the search is a program for node"),
]
WORKER = Path(__file__).parents[2] / "docs" / "assets" / "iframe-worker.js"
FRAME = """
const frame = new EventTarget(), inside = new EventTarget(), script = new EventTarget();
frame.contentWindow = inside;
frame.contentDocument = { createElement: () => script, body: { append: ran } };
globalThis.window = globalThis;
globalThis.location = { protocol: "file:" };
globalThis.document = {
  createElement: () => frame,
  documentElement: { append: () => frame.dispatchEvent(new Event("load")) },
};
function ran() {
  const back = ({ data }) => inside.postMessage(`${data} from ${script.src}`);
  inside.addEventListener("message", back);
  setTimeout(() => script.dispatchEvent(new Event("load")));
}
eval(require("fs").readFileSync(process.argv[1], "utf-8"));
const worker = new Worker("search.js");
worker.addEventListener("message", ({ data }) => console.log(data));
worker.postMessage("first");
worker.postMessage("second");
"""
"""A page of a folder, and a frame whose script sends back what it gets."""
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


def test_words_of_digits_do_not_end_the_search(tmp_path: Path):
    draw = random.Random(2000)
    lengths = [draw.randint(1, 7) for _ in range(2000)]
    words = sorted({"w" + "".join(draw.choices("0123ab", k=length)) for length in lengths})
    site = built(tmp_path, ("a.html", "Words", words))
    first = {"a": tuple({word[:count] for word in words for count in (2, 3)})}
    assert mend_worker(site)
    assert wrong_answers(site, node(), first) == []


def test_queries_are_asked_once():
    queries = [query for each in FIRST.values() for query in each]
    assert len(queries) > 100
    assert len(set(queries)) == len(queries)


def test_pages_in_a_folder_search_in_a_frame():
    done = subprocess.run(
        [node(), "-e", FRAME, str(WORKER)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["first from search.js", "second from search.js"]
