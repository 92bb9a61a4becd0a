"""The scoreboard: one page without scripts or network, with every backend, op and failure."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from typing_extensions import override

from gptrs_conformance.op_runner import Outcome
from gptrs_conformance.report import CaseName, Report
from gptrs_conformance.scoreboard import scoreboard
from gptrs_runtime.conformance import Conformance


class Reader(HTMLParser):
    """Counts tags, and requires that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report(name: str, *statuses: str, shard: tuple[int, int] = (1, 1)) -> Conformance:
    made = Report(name, "core", shard=shard, complete=True)
    for dtype, status in zip(("f32", "f64", "i1"), statuses, strict=False):
        made.add(CaseName("tanh", dtype, "<x>"), Outcome(status, "is <b> & wrong"))  # pyright: ignore
    made.add(CaseName("a check"), Outcome("pass"))
    return made.record()


def test_the_page_is_well_formed_and_self_contained() -> None:
    page = scoreboard([report("one", "pass", "fail"), report("two", "pass", "refused")])
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
    assert reader.tags.count("details") == 2
    assert "tanh f64 (&lt;x&gt;): is &lt;b&gt; &amp; wrong" in page
    assert 'class="fail" title="fails">✗' in page


def test_the_best_backend_is_first_and_shards_are_one() -> None:
    page = scoreboard(
        [
            report("worse", "refused", "refused", "pass"),
            report("better", "pass", shard=(1, 2)),
            report("better", "refused", "pass", shard=(2, 2)),
        ]
    )
    rows = re.findall(r"<tr><th>(\w+)</th><td>([^<]*)</td>", page)
    assert rows[0] == ("better", "level core, shard 1/2, shard 2/2")
    assert rows[1] == ("worse", "level core")
    assert page.index(">100.0%<") < page.index(">33.3%<")
