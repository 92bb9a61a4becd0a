"""The page, in a browser without a window: what a person does, with nothing in its console."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def page(browser, address) -> Iterator[Any]:
    """The page of the server; nothing else is asked for, and nothing is complained of."""
    opened = browser.new_page()
    told: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda m: told.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: told.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(address)
    playwright.expect(opened.locator("#model option")).to_have_text(["tiny"])
    yield opened
    opened.close()
    # A browser tells each status above 399; the page tells what the server says of it.
    assert [text for text in told if "Failed to load resource" not in text] == []
    assert [url for url in asked if not url.startswith((address, "data:"))] == []


def _ask(page: Any, text: str, *, tokens: int = 12) -> None:
    page.locator("summary").click()
    page.locator("#max_tokens").fill(str(tokens))
    page.locator("#seed").fill("1")
    page.locator("#text").fill(text)
    page.locator("#text").press("Enter")


def test_a_conversation(page):
    expect = playwright.expect
    _ask(page, "hello")
    blocks = page.locator("#messages > *")
    expect(blocks).to_have_count(2)
    expect(blocks.first).to_contain_text("hello")
    expect(blocks.last).to_contain_text(re.compile(r"\d+ tokens?, [\d.]+ tok/s"))
    expect(page.locator("#text")).to_have_value("")
    first = blocks.last.inner_text().splitlines()[1]
    page.locator("#again").click()
    expect(blocks).to_have_count(2)
    expect(blocks.last).to_contain_text("tok/s")
    assert blocks.last.inner_text().splitlines()[1] == first  # the same seed
    page.locator("#clear").click()
    expect(blocks).to_have_count(0)


def test_an_answer_is_stopped_by_a_key(page):
    expect = playwright.expect
    _ask(page, "go on", tokens=100)
    expect(page.locator("#stop")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(page.locator("#stop")).to_be_disabled()
    expect(page.locator("#send")).to_be_enabled()


def test_probabilities_are_shown(page):
    _ask(page, "hello", tokens=4)
    page.locator("#probabilities").check()
    page.locator("#again").click()
    token = page.locator("#messages [title]").first
    playwright.expect(token).to_have_attribute("title", re.compile("%"))


def test_errors_of_the_server_are_told(page):
    page.locator("summary").click()
    page.locator("#max_tokens").fill("1000000")
    page.locator("#text").fill("hello")
    page.locator("#text").press("Enter")
    playwright.expect(page.locator("body")).to_contain_text("writes 100 tokens at most")
    playwright.expect(page.locator("#messages > *")).to_have_count(0)  # else each later one fails
    playwright.expect(page.locator("#text")).to_have_value("hello")


def test_a_narrow_page_has_all_within_reach(page):
    page.set_viewport_size({"width": 320, "height": 600})
    page.evaluate("at('model').replaceChildren(new Option('a-long-name-of-a-model-'.repeat(3)))")
    page.locator("summary").click()
    size = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollHeight]")
    assert size[0] <= 320
    assert size[1] <= 600
    assert page.locator("#send").bounding_box()["y"] < 570


def test_events_are_read_however_their_bytes_are_cut(page):
    """Several in one portion, and portions that end within an event, its end, or a letter."""
    found = page.evaluate("""async () => {
        const told = [{ text: "für 🐈\\n\\n" }, { text: "data: x" }, {}];
        const lines = [...told.map((one) => JSON.stringify(one)), "[DONE]"];
        const bytes = new TextEncoder().encode(lines.map((line) => `data: ${line}\n\n`).join(""));
        const read = [];
        for (const size of [1, 2, 3, 7, bytes.length]) {
            const body = new ReadableStream({ start(out) {
                for (let at = 0; at < bytes.length; at += size) {
                    out.enqueue(bytes.slice(at, at + size));
                }
                out.close();
            } });
            const events_read = [];
            for await (const event of events(new Response(body))) events_read.push(event);
            read.push(events_read);
        }
        return read;
    }""")
    assert found == [[{"text": "für 🐈\n\n"}, {"text": "data: x"}, {}]] * 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_follow_the_system(page, scheme):
    page.emulate_media(color_scheme=scheme)
    found = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    found = (
        found
        if "0, 0, 0, 0" not in found
        else page.evaluate("getComputedStyle(document.body).backgroundColor")
    )
    parts = [float(part) for part in re.findall(r"[\d.]+", found)[:3]]
    assert (sum(parts) > 384) == (scheme == "light")
