"""Conversations: each answer is that of the whole text, and nothing is read twice."""

from __future__ import annotations

import itertools

import pytest

import gptrs
from gptrs.errors import ContextLengthError, ModelError
from gptrs.runtime.generation.generate import GenerationOptions, generate
from gptrs.runtime.generation.sampling import Sampling
from gptrs.runtime.load import load_model
from runtime.steps import rows_of_steps
from runtime.tiny_chat import TEMPLATE, save_tiny_chat
from runtime.tiny_gpt2 import END

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
