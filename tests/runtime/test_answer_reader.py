"""Answers are thoughts, text and calls, however they are cut and whatever looks like a call."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gptrs.errors import ModelError
from gptrs_runtime.chat.answer_reader import (
    AnswerForm,
    AnswerReader,
    CallArguments,
    CallStart,
    TextDelta,
    ThoughtsDelta,
)
from gptrs_runtime.chat.messages import (
    BARE,
    LISTED,
    NAMED,
    PIPED,
    TAGGED,
    THINK,
    THOUGHTS,
    ThoughtMarks,
    call_family,
    shown_marks,
    thought_marks,
)
from gptrs_runtime.generation.chat_session import Answer, Call, thought_tokens
from runtime.answer_texts import TOOLS, cut, random_answer, read

FAMILIES = (TAGGED, BARE, LISTED, NAMED, PIPED)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = Call("f", '{"a": 1}')
PLACES = st.lists(st.integers(0, 10_000), max_size=40)


@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    family=st.sampled_from(FAMILIES),
    thoughts=st.sampled_from((None, *THOUGHTS)),
    opened=st.booleans(),
    places=PLACES,
)
def test_an_answer_is_what_it_is_made_of_however_it_is_cut(seed, family, thoughts, opened, places):
    opened = opened and thoughts is not None
    made = random_answer(random.Random(seed), family, thoughts, opened=opened)
    form = AnswerForm(thoughts, family, TOOLS)
    assert read(form, [made.text], opened=opened) == made.answer
    assert read(form, cut(made.text, places), opened=opened) == made.answer
    assert read(form, list(made.text), opened=opened) == made.answer
    first = made.answer.calls[:1]
    alone = read(AnswerForm(thoughts, family, TOOLS, several=False), [made.text], opened=opened)
    assert (alone.text, alone.reasoning, alone.calls) == (
        *(made.answer.text, made.answer.reasoning), first
    )  # fmt: skip


PIECES = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "{", "}"),
    *('"name"', '"arguments"', '"f"', ":", ",", ";", "f", " ", "\n", "\\", '"', "null", "[", "]"),
    *('{"name": "f", "arguments": {}}', "<|tool_call|>", "<|python_tag|>", "<", "1e"),
)


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
    family=st.sampled_from(FAMILIES),
    places=PLACES,
    certain=st.booleans(),
)
@example("<think><think> <think>", FAMILIES[0], [], False)
def test_any_text_is_read_the_same_however_it_is_cut(text, family, places, certain):
    form = AnswerForm(THINK, family, TOOLS, certain=certain)
    assert read(form, cut(text, places)) == read(form, [text]) == read(form, list(text))
    if not certain and "</think>" not in text:
        answer = read(AnswerForm(None, family, {}), [text])
        assert answer == Answer(text, None, ())  # without tools nothing is lost


@pytest.mark.parametrize(
    ("family", "text", "said", "calls"),
    [
        (TAGGED, f"I write a <tool_call> now.\n{CALL}", "I write a <tool_call> now.", [F]),
        (TAGGED, f"<tool_call>{CALL}", "<tool_call>", [F]),
        (TAGGED, f"A\n{CALL}\n{CALL}\nB\n", "A\n\n\nB\n", [F, F]),
        (TAGGED, f"\n{CALL} Done.", "Done.", [F]),
        (TAGGED, CALL.removesuffix("all>"), "", [F]),
        (TAGGED, f"{CALL}\n</tool_c", "</tool_c", [F]),
        (TAGGED, CALL.removesuffix("\n</tool_call>") + " and", "and", [F]),
        (TAGGED, '<tool_call>{"name": "f"}</tool_call>', "", [Call("f", "{}")]),
        (TAGGED, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', "", [F]),
        (TAGGED, '<tool_call>{"name": "f", "arguments": "\\"\\ud800\\""}', None, []),
        (TAGGED, '<tool_call>{"name": "f", "arguments": "{\\"\\ud800\\": 1}"}', None, []),
        (TAGGED, '<tool_call>{"name": "f", "arguments": "' + "[" * 9999 + '"}', None, []),
        (TAGGED, '<tool_call>{"name": "find.it-2", "arguments": {}}', "",
         [Call("find.it-2", "{}")]),
        (TAGGED, '<tool_call>{"name": "f", "name": "now", "arguments": {}}', "",
         [Call("f", "{}")]),
        (TAGGED, '<tool_call>{"x": {"name": "now"}, "name": "f", "arguments": {}}', "",
         [Call("f", "{}")]),
        (TAGGED, '<tool_call>{"name": 1, "arguments": {}}', None, []),
        (BARE, ' \n{"name": "f", "parameters": {"a": 1}};{"name": "now", "parameters": null} ',
         "", [F, Call("now", "{}")]),
        (BARE, '{"answer": 42}; {"name": "f", "parameters": {"a": 1}}', '{"answer": 42}', [F]),
        (BARE, 'It is {"name": "f", "parameters": {"a": 1}}', None, []),
        (BARE, '{x {"name": "f", "parameters": {"a": 1}}', None, []),
        (BARE, '{x <|python_tag|>{"name": "f", "parameters": {"a": 1}}', "{x", [F]),
        (BARE, '<|python_tag|>{"name": "f", "parameters": {"a": 1}} {"name": "f"}',
         '{"name": "f"}', [F]),
        (BARE, "; and so", None, []),
        *((family, '{"name": "f", "arguments": {"a": 1}}', None, []) for family in FAMILIES
          if family is not BARE),
        (LISTED, '[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}', "", [F]),
        (LISTED, '[TOOL_CALLS] [{"name": "x"}, {"name": "f", "arguments": {"a": 1}}] y',
         '[TOOL_CALLS] [{"name": "x"} y', [F]),
        (LISTED, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, x', ", x", [F]),
        (LISTED, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}', "", [F]),
        (LISTED, "[TOOL_CALLS] []", None, []),
        (NAMED, '[TOOL_CALLS]zzz[ARGS]{"a": "[TOOL_CALLS]f[ARGS]{}"}', None, []),
        (NAMED, '[TOOL_CALLS]f [ARGS] {"a": 1}[TOOL_CALLS]now[ARGS]{}', "", [F, Call("now", "{}")]),
        (NAMED, "[TOOL_CALLS]f[ARG", None, []),
        (PIPED, '<|tool_call|>[{"name": "f", "arguments": {"a": 1}} ]', "", [F]),
    ],
)  # fmt: skip
def test_what_is_a_call_and_what_stays_text(family, text, said, calls):
    form = AnswerForm(None, family, TOOLS)
    expected = Answer(text if said is None else said, None, tuple(calls))
    assert read(form, [text]) == expected
    assert read(form, list(text)) == expected


@pytest.mark.parametrize(
    ("text", "opened", "thoughts", "said"),
    [
        ("<think>\na\nb\n</think>\n\nYes\n", False, "a\nb", "Yes\n"),
        ("\n<think>a</think> Yes", False, "a", "Yes"),
        ("a\n</think>\n\nYes", True, "a", "Yes"),
        ("<think>\na</think>Yes", True, "a", "Yes"),
        ("<thinking> a</think>Yes", True, "<thinking> a", "Yes"),
        ("cut of", True, "cut of", ""),
        ("<think>cut of </thi", False, "cut of </thi", ""),
        ("<think>\n\n</think>\n\nYes", False, None, "Yes"),
        ("\n</think>\n\nYes", True, None, "Yes"),
        ("", True, None, ""),
        ("So\n<think>a</think><think>b</think>\nYes", False, "a\n\nb", "So\n\nYes"),
        ("The tag <think> opens.", False, None, "The tag <think> opens."),
        ("The tag </think> ends.", False, None, "The tag </think> ends."),
        ("a  <think>b", False, None, "a  <think>b"),
        ("a\n  <think>b</think>", False, "b", "a\n  "),
        (" \n", False, None, " \n"),
        (f"<think>I try {CALL}</think>\n{CALL}", False, f"I try {CALL}", ""),
    ],
)
def test_thoughts_are_apart_from_the_text(text, opened, thoughts, said):
    form = AnswerForm(THINK, TAGGED, TOOLS)
    for pieces in ([text], list(text)):
        found = read(form, pieces, opened=opened)
        cut_away = said.rstrip() if text.endswith("</think>") else said
        assert (found.reasoning, found.text) == (thoughts, cut_away)
        assert len(found.calls) == (text.count(CALL) > 1)


HARMONY, XML = THOUGHTS[0], ThoughtMarks("<think>", "</think>", ("<response>", "</response>"))


@pytest.mark.parametrize(
    ("marks", "text", "thoughts", "said"),
    [
        (HARMONY, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final"
         "<|message|>Yes", "hm", "Yes"),
        (HARMONY, "<|channel|>final<|message|>Yes", None, "Yes"),
        (HARMONY, "<|channel|>commentary<|message|>I look<|end|><|start|>assistant<|channel|>"
         "analysis<|message|>hm<|end|>", "hm", "I look"),
        (XML, "<think>hm</think>\n<response>Yes</response>\n", "hm", "Yes"),
        (XML, "Write <response>Yes</response>", None, "Write <response>Yes</response>"),
        (XML, "<response>Yes</response>", None, "Yes"),
    ],
)  # fmt: skip
def test_marks_of_the_answer_itself_are_no_text(marks, text, thoughts, said):
    for pieces in ([text], list(text)):
        assert read(AnswerForm(marks), pieces) == Answer(said, thoughts, ())


def told(reader, text):
    """The text, thoughts and arguments that each character adds."""
    return [
        "".join(event.text for event in reader.push(one) if not isinstance(event, CallStart))
        for one in text
    ]


@pytest.mark.parametrize(
    ("text", "held", "then"),
    [
        ("a", 0, ""),
        ("a<t", 2, "x"),
        ("a\n ", 2, "x"),
        ("<tool_call> \n", 13, "x"),
        ('<tool_call>{"a": [tru', 21, "x"),
        ('<tool_call>{"a": "\\u12', 22, "x"),
        ('<tool_call>{"a": "', 18, "\n."),
        ('<tool_call>{"a": -', 18, "-"),
        ('<tool_call>{"a": 1.5e+', 22, "e"),
        ('<tool_call>{"a" ', 16, ","),
        ('<tool_call>{"a": {}', 19, "]"),
        ('<tool_call>{"a": [', 18, "}"),
        ('<tool_call>{"a": 1, ', 20, "}"),
        ("<tool_call>", 11, "["),
        ("<thin", 5, "g"),
        ("a\n<think", 7, "s"),
    ],
)
def test_text_is_held_back_while_it_may_become_a_mark_and_no_longer(text, held, then):
    reader = AnswerReader(AnswerForm(THINK, TAGGED, TOOLS))
    assert "".join(told(reader, text)) == text[: len(text) - held]
    assert "".join(told(reader, then)) == text[len(text) - held :] + then


def test_thoughts_are_held_back_while_they_may_end():
    reader = AnswerReader(AnswerForm(THINK), opened=True)
    assert told(reader, "<t a</x b") == ["", "", "<t", " a", "", "", "</x", "", " b"]


def test_arguments_come_as_they_grow_where_the_call_is_certain():
    for certain in (True, False):
        reader = AnswerReader(AnswerForm(None, TAGGED, TOOLS, certain=certain))
        found = told(reader, CALL[: CALL.index("}}") + 2])
        pieces = ["{", '"', "a", '"', ":", " ", "1}"]  # a number ends where something else begins
        assert [each for each in found if each] == (pieces if certain else [F.arguments])
    for end in ("", '": 1', "\\"):
        text = '<tool_call>{"name": "f", "arguments": {"a' + end
        reader = AnswerReader(AnswerForm(None, TAGGED, TOOLS, certain=True))
        events = [*reader.push(text), *reader.finish()]
        assert events[0] == CallStart(0, "f")
        assert isinstance(events[1], CallArguments)
        assert '{"a": 1'.startswith(events[1].text)
        assert not any(isinstance(event, TextDelta) for event in events)
        assert reader.calls == 1
    reader = AnswerReader(AnswerForm(None, NAMED, TOOLS, certain=True))
    assert (
        "".join(told(reader, '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]zzz[ARGS]{"')) == F.arguments
    )


def test_the_places_of_thoughts_are_those_in_the_text():
    text = f"So\n<think>a</think>b\n{CALL}<think>c"
    for pieces in ([text], list(text)):
        reader = AnswerReader(AnswerForm(THINK, TAGGED, TOOLS))
        for piece in pieces:
            reader.push(piece)
        reader.finish()
        found = [text[begin:end] for begin, end in reader.thought_spans]
        assert found == ["<think>a</think>", "<think>c"]


class Vocabulary:
    """The pieces of a tokenizer."""

    def __init__(self, *pieces):
        self._pieces = pieces

    def number(self, piece):
        return self._pieces.index(piece) if piece in self._pieces else None


@pytest.mark.parametrize(
    ("template", "pieces", "begin"),
    [
        ("{{ content.split('</think>') }}", (), "<think>"),
        ("{{ 'x<think>\\n' }}", (), None),
        ("{{ messages }}", (), None),
        ("{{ messages }}", ("<think>",), None),
        ("{{ messages }}", ("<think>", "</think>"), "<think>"),
        ("<|start|>assistant<|channel|>analysis<|message|>", (), "<|channel|>analysis<|message|>"),
        ("<|user|>x<|end|>", ("<|end|>", "<|channel|>"), None),
        ("<|START_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|>", (), "<|START_THINKING|>"),
        ("[THINK] [/THINK]", (), "[THINK]"),
        ("<seed:think> </seed:think> <think>", (), "<seed:think>"),
        ("<|channel>thought\n <channel|>", (), "<|channel>thought\n"),
    ],
)
def test_marks_of_thoughts_are_those_of_the_template_else_of_the_tokens(template, pieces, begin):
    found = thought_marks(template, Vocabulary(*pieces))
    assert (None if found is None else found.begin) == begin


def test_marks_around_an_answer_belong_to_templates_that_have_them():
    known = "<think> </think>"
    assert thought_marks(known, Vocabulary()) == THINK
    assert thought_marks("", Vocabulary("<think>", "</think>")) == THINK
    for first, last in (("<answer>", "</answer>"), ("<response>", "</response>")):
        found = thought_marks(f"{known} {first}", Vocabulary())
        assert found == ThoughtMarks("<think>", "</think>", (first, last))


def test_special_tokens_that_marks_are_made_of_are_shown():
    special = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|x|>", "</tool_call>", ""]
    assert shown_marks(special, HARMONY, TAGGED) == {*special} - {"<|x|>", ""}
    assert shown_marks(special, THINK, None) == shown_marks(special, None, None) == frozenset()


def test_a_template_without_tools_and_one_of_another_family_are_refused():
    assert call_family("{{ tools }} [TOOL_CALLS] [", "m") is LISTED
    with pytest.raises(ModelError, match="`m` was not made for tools"):
        call_family("<tool_call>", "m")
    with pytest.raises(ModelError, match=r"those that begin with `<tool_call>`, `.TOOL_CALLS.`"):
        call_family("{{ tools }}", "m")


def test_events_are_of_the_kinds_that_are_public():
    reader = AnswerReader(AnswerForm(THINK))
    found = [*reader.push("<think>a</think>b"), *reader.finish()]
    assert found == [ThoughtsDelta("a"), TextDelta("b")]


@pytest.mark.parametrize(
    ("before", "thoughts", "behind"),
    [
        ("", "<think>abc</think>", "So."),
        ("Well,\n", "<think>abc</think>", "\nso."),
        ("", "", "So."),
    ],
)
def test_tokens_of_thoughts_are_counted_wherever_they_stand(before, thoughts, behind):
    """Each token is a character here."""
    text = before + thoughts + behind
    tokenizer = SimpleNamespace(decode=lambda tokens, special: "".join(map(chr, tokens)))
    reader = AnswerReader(AnswerForm(THINK))
    reader.push(text)
    reader.finish()
    model = SimpleNamespace(tokenizer=tokenizer)
    assert thought_tokens(model, reader, list(map(ord, text))) == len(thoughts)
