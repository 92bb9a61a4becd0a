"""Conversations: each answer is that of the whole text, and nothing is read twice."""

from __future__ import annotations

import itertools

import pytest

import gptrs
from gptrs.errors import ContextLengthError, ModelError, UsageError
from gptrs_runtime.generation.generate import GenerationOptions, generate
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load import load_model
from runtime.steps import rows_of_steps
from runtime.tiny_chat import TEMPLATE, save_scripted_chat, save_tiny_chat
from runtime.tiny_gpt2 import END, save_tiny_gpt2

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    return load_model(save_tiny_chat(tmp_path_factory.mktemp("chat") / "tiny"), "ref")


def said(stream):
    list(stream)
    return stream.generation


def test_answers_are_those_of_the_whole_conversation(chat_model):
    session = gptrs.ChatSession(chat_model, GenerationOptions(12, GREEDY), "Be brief.")
    written = f"system: Be brief.{END}\n"
    for text in ("hello", "and the bird", "bye"):
        answer = session.ask(text)
        done = said(answer)
        session.remember(answer)
        written += f"user: {text}{END}\nassistant: "
        tokens = chat_model.tokenizer.encode(written, special=False)
        assert done.prompt_token_ids == tuple(tokens)
        expected = generate(chat_model, tokens, max_tokens=12, sampling=GREEDY)
        assert done.token_ids == expected.token_ids
        written += f"{done.text}{END}\n"
    assert [message["role"] for message in session.messages] == [
        "system",
        *["user", "assistant"] * 3,
    ]


def test_what_was_read_is_not_read_again(chat_model, monkeypatch):
    read = rows_of_steps(chat_model, monkeypatch)
    session = gptrs.ChatSession(chat_model, GenerationOptions(3, GREEDY))
    first = session.ask("the cat and the dog and the bird")
    said(first)
    session.remember(first)
    before = len(first.generation.prompt_token_ids)
    read.clear()
    second = said(session.ask("x"))
    assert read[0] <= len(second.prompt_token_ids) - before


def test_an_answer_that_was_cut_off_is_part_of_the_conversation(chat_model):
    session = gptrs.ChatSession(chat_model, GenerationOptions(30, GREEDY, ignore_eos=True))
    answer = session.ask("hello")
    text = "".join(itertools.islice(answer, 4))
    session.remember(answer)
    assert session.messages[-1] == {"role": "assistant", "content": text}
    following = said(session.ask("go on"))
    expected = generate(
        chat_model, following.prompt_token_ids, max_tokens=30, sampling=GREEDY, ignore_eos=True
    )
    assert following.token_ids == expected.token_ids


def test_what_does_not_fit_was_not_asked(chat_model):
    session = gptrs.ChatSession(chat_model, GenerationOptions(200, GREEDY))
    with pytest.raises(ContextLengthError):
        session.ask("the cat " * 200)
    assert session.messages == []
    said(session.ask("hello"))


def test_a_template_may_refuse(tmp_path):
    refusing = "{{ raise_exception('no') }}"
    model = load_model(save_tiny_chat(tmp_path / "no", refusing), "ref")
    with pytest.raises(ModelError, match="TemplateError: no"):
        gptrs.ChatSession(model, GenerationOptions(1)).ask("hello")


def test_a_model_must_be_made_for_it(model, tmp_path):
    with pytest.raises(ModelError, match="no chat template"):
        gptrs.ChatSession(model, GenerationOptions())
    bare = load_model(save_tiny_chat(tmp_path / "bare", TEMPLATE, tokenizer=False), "ref")
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        gptrs.ChatSession(bare, GenerationOptions())


THINKS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
PROMPT = "user: hi\nassistant: "
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_thoughts_are_remembered_apart_from_the_text(tmp_path):
    template = THINKS + "{# <think> </think> #}"
    answer = "<think>\nhm\n</think>\n\nYes 好.\n"
    folder = save_scripted_chat(tmp_path / "m", answer, prompt=PROMPT, template=template)
    model = load_model(folder, "ref")
    session = gptrs.ChatSession(model, max_tokens=60)
    stream = session.ask("hi")
    assert "".join(stream) == answer
    session.remember(stream)
    assert session.messages[1:] == [
        {"role": "assistant", "content": "Yes 好.\n", "reasoning_content": "hm"}
    ]
    assert gptrs.read_answer(model, stream.generation) == gptrs.Answer("Yes 好.\n", "hm", ())
    whole = gptrs.read_answer(model, stream.generation, opened=True)
    assert whole.reasoning == "hm"
    reader = gptrs.answer_reader(model, model.prompt_tokens([{"role": "user", "content": "hi"}]))
    events = [event for piece in answer for event in reader.push(piece)] + reader.finish()
    assert events[:1] == [gptrs.ThoughtsDelta("h")]
    assert events[-1:] == [gptrs.TextDelta("\n")]


def test_marks_that_are_special_tokens_are_read_whatever_the_text_shows(tmp_path):
    marks = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "<x>")
    answer = '[THINK]hm[/THINK]Yes.<x> No.[TOOL_CALLS]f[ARGS]{"a": 1}'
    template = f"{THINKS}{{# tools {' '.join(marks[:4])} #}}"
    folder = save_scripted_chat(
        tmp_path / "m", answer, prompt=PROMPT, template=template, special=marks
    )
    model = load_model(folder, "ref")
    messages = [{"role": "user", "content": "hi"}]
    hidden = gptrs.generate(model, messages, max_tokens=60)
    assert hidden.text == 'hmYes. No.f{"a": 1}'
    reader = gptrs.answer_reader(model, hidden.prompt_token_ids, TOOLS)
    shown = gptrs.generate(model, messages, max_tokens=60, special=reader.form.shown)
    assert shown.text == answer.replace("<x>", "")
    for made in (hidden, shown):
        found = gptrs.read_answer(model, made, TOOLS)
        assert found == gptrs.Answer("Yes. No.", "hm", found.calls)
        assert [(call.name, call.arguments) for call in found.calls] == [("f", '{"a": 1}')]
    for stop in ("s.", " ", "No."):
        cut = gptrs.generate(model, messages, max_tokens=60, stop=[stop])
        text = "Yes. No.".split(stop)[0]
        assert gptrs.read_answer(model, cut) == gptrs.Answer(text, "hm", ())
    session = gptrs.ChatSession(model, max_tokens=60)
    stream = session.ask("hi")
    assert "".join(stream).startswith("[THINK]hm[/THINK]Yes.")
    session.remember(stream)
    assert session.messages[1]["reasoning_content"] == "hm"
    with pytest.raises(UsageError, match="`special` must be True, False or a frozenset of tokens"):
        gptrs.generate(model, messages, special="[THINK]")
    with pytest.raises(UsageError, match="a tool has a name and perhaps parameters"):
        gptrs.read_answer(model, hidden, [{"function": {"parameters": {}}}])


def test_a_prompt_that_opens_thoughts_begins_the_answer_within_them(tmp_path):
    template = THINKS + "<think>\n\n{# </think> #}"
    folder = save_scripted_chat(
        tmp_path / "m", "hm\n</think>\nYes", prompt=f"{PROMPT}<think>\n\n", template=template
    )
    model = load_model(folder, "ref")
    made = gptrs.generate(model, [{"role": "user", "content": "hi"}], max_tokens=30)
    assert gptrs.read_answer(model, made) == gptrs.Answer("Yes", "hm", ())
    assert gptrs.read_answer(model, made, opened=False).reasoning is None


def test_without_a_template_an_answer_is_text(tmp_path):
    model = load_model(save_tiny_gpt2(tmp_path / "m"), "ref")
    made = gptrs.generate(model, "def", max_tokens=5)
    assert gptrs.read_answer(model, made) == gptrs.Answer(made.text, None, ())
    with pytest.raises(ModelError, match="has no chat template"):
        gptrs.read_answer(model, made, TOOLS)
