"""Thoughts on the command line: beside the text in JSON, on a terminal, and not in a pipe."""

from __future__ import annotations

import json
import sys

import pytest

from gptrs_cli.generate import page
from gptrs_runtime.chat.answer_reader import TextDelta, ThoughtsDelta
from runtime.tiny_chat import save_scripted_chat

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
PROMPT = "user: hi\nassistant: "
ANSWERS = {
    "tags": ("<think>\nhm 好\n</think>\n\nYes.\n", PROMPT, "{# <think> </think> #}", ()),
    "opened": ("hm 好\n</think>\n\nYes.\n", f"{PROMPT}<think>\n", "<think>\n{# </think> #}", ()),
    "special": ("[THINK]hm 好[/THINK]Yes.\n", PROMPT, "{# [THINK] #}", ("[THINK]", "[/THINK]")),
    "plain": ("<think>hm", PROMPT, "", ()),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thoughts")
    return {
        name: save_scripted_chat(
            folder / name, answer, prompt=prompt, template=TEMPLATE + end, special=special
        )
        for name, (answer, prompt, end, special) in ANSWERS.items()
    }


@pytest.fixture(params=["tags", "opened", "special"])
def asked(request, folders):
    """The command that generates the answer of a model."""
    return ("generate", "--model", folders[request.param], "--chat", "hi", "--max-tokens", 60)


def test_json_has_thoughts_beside_the_text(gptrs, asked, tmp_path):
    found = gptrs(*asked, "--json").json
    assert (found["text"], found["reasoning_content"]) == ("Yes.\n", "hm 好")
    several = gptrs(*asked, "--json", "--num-return", 2, "--temperature", 0.1).json
    for each in (several, *several["generations"]):
        assert (each["text"], each["reasoning_content"]) == ("Yes.\n", "hm 好")
    file = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "hi"}]
    file.write_text(json.dumps({"messages": messages}) + '\n{"prompt": "hi"}\n')
    line, raw = gptrs(*asked[:3], "--prompts", file, "--max-tokens", 60).json_lines
    assert (line["text"], line["reasoning_content"]) == ("Yes.\n", "hm 好")
    assert "reasoning_content" not in raw  # a prompt is no conversation
    line, raw = gptrs(*asked[:3], "--prompts", file, "--chat", "--max-tokens", 60).json_lines
    assert raw["reasoning_content"] == "hm 好"


def test_a_stream_has_events_of_thoughts_and_of_text(gptrs, asked):
    *events, last = gptrs(*asked, "--json", "--stream").json_lines
    joined = {"reasoning": "", "text": ""}
    tokens = []
    for event in events:
        joined[event["event"]] += event["text"]
        tokens += event["token_ids"]
    assert joined == {"reasoning": last["reasoning_content"], "text": last["text"]}
    assert (joined["text"], tokens) == ("Yes.\n", last["token_ids"])


def test_a_pipe_gets_the_text_alone(gptrs, asked, folders, monkeypatch):
    assert gptrs(*asked).out == "Yes.\n"
    texts = gptrs(*asked, "--num-return", 2, "--temperature", 0.1).out
    assert texts == "--- 1 of 2\nYes.\n--- 2 of 2\nYes.\n"
    special = gptrs(*asked, "--special").out
    assert "hm 好" in special
    assert special.endswith("<|end|>\n")
    assert gptrs(*asked, "--special", "--json").json["text"] == special.removesuffix("\n")


def test_a_terminal_shows_thoughts_before_the_text(gptrs, asked, monkeypatch):
    monkeypatch.setattr(page, "is_terminal", lambda stream: stream is sys.stdout)
    assert gptrs(*asked).out == "hm 好\n\nYes.\n"
    texts = gptrs(*asked, "--num-return", 2, "--temperature", 0.1).out
    assert texts == "--- 1 of 2\nhm 好\n\nYes.\n--- 2 of 2\nhm 好\n\nYes.\n"
    monkeypatch.setattr(page, "has_colors", lambda _: True)
    assert "\x1b[2mhm 好\x1b[0m\n\nYes." in gptrs(*asked).out.replace("\x1b[0m\x1b[2m", "")


def test_text_after_text_and_thoughts_after_thoughts_are_not_apart(capsys, monkeypatch):
    monkeypatch.setattr(page, "is_terminal", lambda _: True)
    shown = page.Page()
    shown.write_answer([ThoughtsDelta("a"), ThoughtsDelta("b"), TextDelta("c"), TextDelta("d")])
    assert capsys.readouterr().out == "ab\n\ncd"


def test_a_model_that_knows_no_thoughts_has_text_alone(gptrs, folders):
    asked = ("generate", "--model", folders["plain"], "--chat", "hi", "--max-tokens", 60)
    assert gptrs(*asked).out == "<think>hm\n"
    found = gptrs(*asked, "--json").json
    assert found["text"] == "<think>hm"
    assert "reasoning_content" not in found


def test_a_text_of_a_form_has_no_thoughts_that_the_prompt_begins(gptrs, folders):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    asked = ("generate", "--model", folders["opened"], "--chat", "hi", "--max-tokens", 60)
    assert len(gptrs(*asked, "--regex", "[a-c]{4}").out) == 5
    found = gptrs(*asked, "--regex", "[a-c]{4}", "--json").json
    assert len(found["text"]) == 4
    assert "reasoning_content" not in found


def test_a_conversation_keeps_thoughts_out_of_a_pipe(gptrs, folders):
    found = gptrs("chat", folders["special"], "--max-tokens", 60, stdin=b"hi\n")
    assert found.out == "Yes.\n"
