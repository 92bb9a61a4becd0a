"""The page, in a browser without a window: what a person does, with nothing in its console."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gptrs_runtime.load import load_model
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_gpt2 import save_tiny_gpt2
from serve.conftest import serving

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


@contextmanager
def opened_page(browser: Any, address: str) -> Iterator[Any]:
    """The page of a server; nothing else is asked for, and nothing is complained of."""
    opened = browser.new_page()
    told: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda m: told.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: told.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(address)
    yield opened
    opened.close()
    # A browser tells each status above 399; the page tells what the server says of it.
    assert [text for text in told if "Failed to load resource" not in text] == []
    assert [url for url in asked if not url.startswith((address, "data:"))] == []


@pytest.fixture
def page(browser, address) -> Iterator[Any]:
    with opened_page(browser, address) as opened:
        playwright.expect(opened.locator("#model option")).to_have_text(["tiny"])
        yield opened


def _ask(page: Any, text: str, *, tokens: int = 12) -> None:
    page.evaluate("document.getElementById('settings').open = true")
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
    first = blocks.last.locator(".text").inner_text()
    page.locator("#again").click()
    expect(blocks).to_have_count(2)
    expect(blocks.last).to_contain_text("2/2")  # the first answer is kept beside it
    expect(blocks.last).to_contain_text("tok/s")
    assert blocks.last.locator(".text").inner_text() == first  # the same seed
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
    page.locator("#settings > summary").click()
    page.locator("#max_tokens").fill("1000000")
    page.locator("#text").fill("hello")
    page.locator("#text").press("Enter")
    playwright.expect(page.locator("body")).to_contain_text("writes at most 100 tokens")
    playwright.expect(page.locator("#messages > *")).to_have_count(0)  # else each later one fails
    playwright.expect(page.locator("#text")).to_have_value("hello")


def test_a_narrow_page_has_all_within_reach(page):
    page.set_viewport_size({"width": 320, "height": 600})
    page.evaluate(
        "document.getElementById('model')"
        ".replaceChildren(new Option('a-long-name-of-a-model-'.repeat(3)))"
    )
    page.locator("#settings > summary").click()
    size = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollHeight]")
    assert size[0] <= 320
    assert size[1] <= 600
    assert page.locator("#send").bounding_box()["y"] < 570


def test_events_are_read_however_their_bytes_are_cut(page):
    """Several in one portion, and portions that end within an event, its end, or a letter."""
    found = page.evaluate("""async () => {
        const { events } = await import("./stream.js");
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


def _bodies(page: Any) -> list[dict]:
    """Return a list to which each conversation that the page sends is appended."""
    found: list[dict] = []
    page.on("request", lambda r: found.append(r.post_data_json) if "/chat/" in r.url else None)
    return found


def _done(page: Any) -> None:
    playwright.expect(page.locator("#stop")).to_be_disabled()
    playwright.expect(page.locator("#messages > *").last).to_contain_text("Copy")


SHOWN = """\
# Sorting

Some **bold** and `a < b`, [docs](https://example.org/a) at https://example.org/b, see page.js.
Next line.

3. third
   - nested

```python title
print("<b>")  # **no**
```

| a | b |
|---|--:|
| 1 | 2 |
"""
LINK = 'target="_blank" rel="noopener noreferrer nofollow"'
MARKUP = (
    "<h1>Sorting</h1><p>Some <strong>bold</strong> and <code>a &lt; b</code>, "
    f'<a href="https://example.org/a" title="https://example.org/a" {LINK}>docs</a> at '
    f'<a href="https://example.org/b" title="https://example.org/b" {LINK}>https://example.org/b</a>'
    ', see page.js.<br>Next line.</p><ol start="3"><li>third<ul><li>nested</li></ul></li></ol>'
    '<div class="code"><span>python</span><button type="button">Copy</button><pre tabindex="0">'
    '<code>print("&lt;b&gt;")  # **no**\n</code></pre></div><table><thead><tr><th>a</th>'
    '<th class="right">b</th></tr></thead><tbody><tr><td>1</td><td class="right">2</td></tr>'
    "</tbody></table>"
)
RENDER = """async (text) => {
    const { markdown } = await import("./markdown.js");
    window.copied = [];
    const out = document.getElementById("welcome");
    out.hidden = false;
    out.replaceChildren(markdown(text, (code) => window.copied.push(code)));
    return out.innerHTML.replaceAll("\\n<", "<").replaceAll(">\\n", ">");
}"""


def test_markdown_becomes_nodes(page):
    assert page.evaluate(RENDER, SHOWN) == MARKUP.replace("\n<", "<")
    page.locator("#welcome button").click()
    assert page.evaluate("window.copied") == ['print("<b>")  # **no**\n']


ATTACKS = [
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "<iframe srcdoc='<script>parent.hit = 1</script>'></iframe>",
    "<a href='javascript:window.hit=1'>x</a>",
    "[x](javascript:window.hit=1)",
    "[x](JaVaScRiPt&colon;window.hit=1)",
    "[x](&#x6A;avascript:window.hit=1)",
    "[x](<java\tscript:window.hit=1>)",
    "[x](vbscript:window.hit) [x](file:///etc/passwd) [x](blob:https://example.org/1)",
    "[x](data:text/html;base64,PHNjcmlwdD53aW5kb3cuaGl0PTE8L3NjcmlwdD4=)",
    "[x](//example.org) [x](/v1/models) [x](#settings)",
    "<javascript:window.hit=1> javascript:window.hit=1",
    "![x](https://example.org/spy.png) ![x](data:image/svg+xml;base64,PHN2Zy8+)",
    "![x](javascript:window.hit=1) [![x](https://example.org/spy.png)](javascript:window.hit=1)",
    '[x](https://example.org/ "\\" onmouseover=window.hit=1 x=\\"")',
    "[x]: javascript:window.hit=1\n\n[x] [y][x]",
    "```<script>\n</code></pre><script>window.hit = 1</script>\n```",
    "`</code><script>window.hit = 1</script>`",
    "|<script>|\n|---|\n|<img src=x onerror=window.hit=1>|",
    "> " * 400 + "<style>@import 'https://example.org/x.css'</style>",
    "*a **b" * 3000,
]


def test_answers_cannot_act_on_the_page(page):
    """No node but those of Markdown, no address but those of the web, whatever a model writes."""
    allowed = "p a br code pre div span button em strong blockquote table thead tbody tr th td"
    for attack in ATTACKS:
        page.evaluate(RENDER, attack)
        tags, names, links = page.evaluate("""() => {
            const all = [...document.querySelectorAll("#welcome *")];
            for (const each of all) if (each.localName !== "a") each.click();
            const names = all.flatMap((each) => each.getAttributeNames());
            const links = all.filter((each) => each.href).map((each) => each.href);
            return [all.map((each) => each.localName), names, links];
        }""")
        assert tags, attack
        assert set(tags) <= set(allowed.split()), attack
        assert set(names) <= {"href", "title", "target", "rel", "class", "type", "tabindex"}, attack
        assert all(link.startswith("https://example.org/") for link in links), attack
    assert page.evaluate("window.hit") is None


def test_conversations_survive_a_reload(page):
    expect = playwright.expect
    page.locator("#settings > summary").click()
    page.locator("#system").fill("Be brief.")
    for text in ("first one", "second one"):
        page.locator("#clear").click()
        _ask(page, text, tokens=4)
        _done(page)
    said = page.locator("#messages").inner_text()
    page.reload()
    expect(page.locator("#model option")).to_have_text(["tiny"])
    assert page.locator("#messages").inner_text() == said
    expect(page.locator("#system")).to_have_value("Be brief.")
    page.locator("#history > summary").click()
    expect(page.locator("#chats .title")).to_have_text(["second one", "first one"])
    page.locator("#chats .title").last.click()
    expect(page.locator("#messages > *").first).to_contain_text("first one")
    page.locator("#history > summary").click()
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator("#delete_all").click()
    expect(page.locator("#messages > *")).to_have_count(0)
    assert page.evaluate("localStorage.length") == 0
    page.reload()
    expect(page.locator("#messages > *")).to_have_count(0)


def test_a_deleted_conversation_is_not_kept_when_its_answer_ends(page):
    _ask(page, "first", tokens=4)
    _done(page)
    _ask(page, "go on", tokens=100)
    page.once("dialog", lambda dialog: dialog.accept())
    page.evaluate("document.getElementById('delete_all').click()")
    playwright.expect(page.locator("#messages > *")).to_have_count(0)
    playwright.expect(page.locator("#stop")).to_be_disabled()
    assert page.evaluate("localStorage.length") == 0


def test_a_browser_that_keeps_nothing_can_chat(page):
    page.add_init_script("""for (const name of ["localStorage", "sessionStorage"]) {
        const get = () => { throw new DOMException("", "SecurityError"); };
        Object.defineProperty(window, name, { get });
    }""")
    page.reload()
    playwright.expect(page.locator("#model option")).to_have_text(["tiny"])
    _ask(page, "hello", tokens=4)
    _done(page)
    playwright.expect(page.locator("#status")).to_contain_text("no room to keep")
    page.locator("#messages button").first.click()
    playwright.expect(page.locator("#messages button").first).to_have_text("Copied")
    page.locator("#clear").click()
    playwright.expect(page.locator("#messages > *")).to_have_count(0)


def test_what_is_kept_is_bounded_and_damage_is_passed_over(page):
    found = page.evaluate("""async () => {
        const { MOST_CHATS, MOST_LENGTH, add, find, keep, kept, newChat } =
            await import("./chats.js");
        let time = 0;
        const of = (fields) => {
            const chat = newChat();
            add(chat, { role: "user", content: "", ...fields });
            chat.changed = time += 1;
            return chat;
        };
        const cyclic = [{ role: "user", content: "", parent: 0 }];
        const texts = { a: "{", b: "null", c: '{"id": "c", "messages": [{}], "leaf": 0}',
            d: JSON.stringify({ id: "d", leaf: 0, messages: cyclic }) };
        for (const [name, text] of Object.entries(texts)) {
            localStorage.setItem(`gptrs.chat.${name}`, text);
        }
        const damaged = kept().length;
        for (let at = 0; at < MOST_CHATS + 5; at += 1) keep(of({ content: String(at) }));
        const many = kept().map((each) => each.messages[0].content);
        for (let at = 0; at < 5; at += 1) keep(of({ content: `${at}`.repeat(MOST_LENGTH / 4) }));
        const long = kept().map((each) => each.messages[0].content[0]);
        const size = Object.values(localStorage).reduce((sum, each) => sum + each.length, 0);
        const image = of({ files: [{ name: "x.png", url: "x".repeat(2 * MOST_LENGTH) }] });
        const imaged = [keep(image), find(image.id).messages[0].files];
        const huge = keep(of({ content: "x".repeat(2 * MOST_LENGTH) }));
        return { damaged, many, long, is_bounded: size < MOST_LENGTH + 1000, imaged, huge };
    }""")
    assert found == {
        "damaged": 0,
        "many": [str(at) for at in range(104, 4, -1)],
        "long": ["4", "3", "2"],
        "is_bounded": True,
        "imaged": [True, [{"name": "x.png"}]],
        "huge": False,
    }


def test_an_edited_message_begins_a_branch(page):
    expect = playwright.expect
    bodies = _bodies(page)
    for text in ("one", "two"):
        _ask(page, text, tokens=4)
        _done(page)
    blocks = page.locator("#messages > *")
    before = blocks.nth(1).locator(".text").inner_text()
    blocks.first.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("another")
    blocks.first.get_by_role("button", name="Send").click()
    expect(blocks).to_have_count(2)
    _done(page)
    assert [each["content"] for each in bodies[-1]["messages"]] == ["another"]
    blocks.first.get_by_role("button", name="Previous version").click()
    expect(blocks).to_have_count(4)
    expect(blocks.first).to_contain_text("1/2")
    # An edited answer is what the next question follows; the model does not answer it.
    blocks.nth(1).get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("I say **this**")
    blocks.nth(1).get_by_role("button", name="Save").click()
    expect(blocks.last.locator(".text strong")).to_have_text("this")
    _ask(page, "three", tokens=4)
    _done(page)
    told = [each["content"] for each in bodies[-1]["messages"]]
    assert told == ["one", "I say **this**", "three"]
    assert len(bodies) == 4
    blocks.nth(1).get_by_role("button", name="Previous version").click()
    assert blocks.nth(1).locator(".text").inner_text() == before


def test_an_answer_that_was_cut_goes_on(page):
    bodies = _bodies(page)
    _ask(page, "hello", tokens=4)
    _done(page)
    last = page.locator("#messages > *").last
    playwright.expect(last).to_contain_text("Cut off: this answer has as many tokens")
    shown = "JSON.parse(Object.values(localStorage)[0]).messages"
    before = page.evaluate(shown)[-1]["content"]
    last.get_by_role("button", name="Continue").click()
    page.wait_for_function(f"(before) => {shown}.at(-1).content !== before", arg=before)
    assert page.evaluate(shown)[-1]["content"].startswith(before)
    playwright.expect(page.locator("#messages > *")).to_have_count(2)
    assert bodies[-1]["continue_final_message"] is True
    assert bodies[-1]["messages"][-1] == {"role": "assistant", "content": before}


def test_files_are_told_to_the_model(page):
    expect = playwright.expect
    bodies = _bodies(page)
    text = {"name": "a.py", "mimeType": "text/x-python", "buffer": b'x = """\n```\n"""\n'}
    image = {"name": "dot.gif", "mimeType": "image/gif", "buffer": b"GIF89a"}
    page.locator("#files").set_input_files([image])
    expect(page.locator("#status")).to_contain_text("takes no images")
    page.locator("#files").set_input_files([{**text, "buffer": b"\xff\x00"}])
    expect(page.locator("#status")).to_contain_text("neither an image nor a text")
    page.locator("#files").set_input_files([text, {**text, "name": "b.py"}])
    expect(page.locator("#attached li")).to_have_count(2)
    page.get_by_label("Remove b.py").click()
    _ask(page, "explain", tokens=4)
    _done(page)
    expect(page.locator("#messages details summary")).to_have_text("a.py")
    told = 'File a.py:\n````\nx = """\n```\n"""\n````\n\nexplain'
    assert [each["content"] for each in bodies[-1]["messages"]] == [told]


DOT = b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff!\xf9\4\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\1D\0;"


def test_models_of_images_are_sent_them(page):
    """Small ones unchanged; large ones become smaller, since servers bound what they read."""
    listed = {"id": "tiny", "capabilities": ["causal_lm", "image_lm"], "max_model_len": 256}
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [listed]}))
    page.reload()
    playwright.expect(page.locator("#welcome")).to_contain_text("reads images")
    bodies = _bodies(page)
    page.locator("#files").set_input_files(
        [{"name": "dot.gif", "mimeType": "image/gif", "buffer": DOT}]
    )
    playwright.expect(page.locator("#attached li")).to_have_count(1)
    _ask(page, "what is it")
    # The tiny model takes none in truth: the message comes back, and the file with it.
    playwright.expect(page.locator("#status")).not_to_be_empty()
    playwright.expect(page.locator("#attached li")).to_contain_text("dot.gif")
    image, text = bodies[-1]["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/gif;base64,R0lGODlh")
    assert text == {"type": "text", "text": "what is it"}
    width, height, size = page.evaluate("""async () => {
        const { attached } = await import("./files.js");
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [3000, 1000];
        const drawing = canvas.getContext("2d");
        const noise = drawing.createImageData(3000, 1000);
        noise.data.forEach((_, at) => { noise.data[at] = Math.random() * 256; });
        drawing.putImageData(noise, 0, 0);
        const blob = await new Promise((resolve) => canvas.toBlob(resolve));
        const { url } = await attached(new File([blob], "x.png", { type: "image/png" }), true);
        const image = new Image();
        image.src = url;
        await image.decode();
        return [image.width, image.height, url.length];
    }""")
    assert (width, height) == (1536, 512)
    assert size < 2_000_000


def test_thoughts_are_folded(browser, talking):
    with opened_page(browser, talking[0]) as page:
        page.locator("#model").select_option("agent")
        page.locator("#settings > summary").click()
        page.locator("#temperature").fill("0")
        page.locator("#text").fill("hi")
        page.locator("#text").press("Enter")
        answer = page.locator("#messages > .assistant")
        playwright.expect(answer.locator(".text")).to_contain_text("One moment.")
        _done(page)
        thoughts = answer.locator("details")
        playwright.expect(thoughts.locator("p")).to_have_text("Let me see.")
        assert thoughts.evaluate("(e) => e.open") is False


def test_the_first_page_says_which_model_to_try(browser, tmp_path):
    expect = playwright.expect
    base = load_model(save_tiny_gpt2(tmp_path / "base"), backend="ref")
    with serving({"base": base}) as (address, _), opened_page(browser, address) as page:
        expect(page.locator("#welcome")).to_contain_text("base has no chat template")
        expect(page.locator("#welcome code").first).to_have_text("gptrs serve smollm2:135m")
    reader = load_model(save_tiny_bert(tmp_path / "reader"), backend="ref")
    with serving({"reader": reader}) as (address, _), opened_page(browser, address) as page:
        expect(page.locator("#welcome")).to_contain_text("No model here writes texts")
