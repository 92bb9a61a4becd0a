"""Conversations: one way from messages, tools and variables to tokens."""

from __future__ import annotations

import json

import pytest

import gptrs
from gptrs.errors import ModelError, UsageError
from gptrs_runtime.chat.conversation import Conversation, conversation_of
from gptrs_runtime.chat.messages import read_messages
from gptrs_runtime.chat.template import ChatTemplate, ChatTemplateError
from gptrs_runtime.load import load_model
from runtime.tiny_chat import save_tiny_chat

TEMPLATE = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "<{{ m.role }}>{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.content }}{% endfor %}{% if mood %}{{ mood }}{% endif %}"
    "{% if add_generation_prompt %}<answer>{% endif %}"
)
USER = {"role": "user", "content": "the cat"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(save_tiny_chat(tmp_path_factory.mktemp("talk") / "t", TEMPLATE), "ref")


def text_of(model, conversation) -> str:
    return model.tokenizer.decode(model.prompt_tokens(conversation), special=True)


def call(arguments):
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (USER, USER),
        ({"role": "user", "content": [{"type": "text", "text": "the"}]}, "the"),
        ({"role": "user", "content": tuple({"type": "text", "text": t} for t in "ab")}, "ab"),
        ({"role": "user", "content": []}, ""),
        ({"role": "user", "content": [
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "b", "cache_control": None}]}, "ab"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"role": "assistant", "content": None, "refusal": "no"}, "no"),
        ({"role": "assistant", "content": "yes", "refusal": None}, "yes"),
        ({"role": "assistant", "content": None, "audio": None}, {"role": "assistant"}),
        ({"role": "assistant", "tool_calls": [call('{"a": "b"}')]},
         {"role": "assistant", "tool_calls": [call({"a": "b"})]}),
        ({"role": "assistant", "tool_calls": (call({"a": 1}),), "content": None},
         {"role": "assistant", "tool_calls": [call({"a": 1})]}),
        ({"role": "assistant", "tool_calls": [call(" ")]},
         {"role": "assistant", "tool_calls": [call({})]}),
    ],
)  # fmt: skip
def test_messages_are_read_as_templates_have_them(message, read):
    expected = {"role": message["role"], "content": read} if isinstance(read, str) else read
    assert read_messages([USER, message]) == [USER, expected]
    assert read_messages(read_messages([message])) == [expected]  # once is enough


def test_images_stay_parts_without_what_advises_others():
    image = {"url": "data:image/png;base64,AA", "detail": "high"}
    parts = [
        {"type": "text", "text": "see", "cache_control": {}},
        {"type": "image_url", "image_url": image},
        {"type": "image", "image": "data:,"},
    ]
    (read,) = read_messages([{"role": "user", "content": parts}])
    assert read["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": image["url"]}},
        {"type": "image", "image": "data:,"},
    ]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"content": [{"type": "text"}]}, "message 1 has a part that is neither"),
        ({"content": [{"type": "text", "text": "a", "x": 1}]}, "the keys `text`, `type`, `x`"),
        ({"content": [{"type": "audio", "audio": "a"}]}, "of type `'audio'`"),
        ({"content": [{"type": "image_url", "image_url": {"url": "a", "b": 1}}]}, "neither text"),
        ({"content": [{"type": ["text"], "text": "a"}]}, "neither text"),
        ({"content": ["text"]}, "got `'text'`"),
        ({"content": 7}, "`content` of message 1 must be a text or a list of parts, got `7`"),
        ({"content": {"type": "text", "text": "a"}}, "must be a text or a list"),
        ({"tool_calls": {}}, "message 1 has a tool call that is not"),
        ({"tool_calls": [{}]}, "message 1 has a tool call"),
        ({"tool_calls": [call("[1]")]}, "message 1 has a tool call"),
        ({"tool_calls": [call("{")]}, "message 1 has a tool call"),
        ({"tool_calls": [{"function": {"name": 3, "arguments": {}}}]}, "message 1 has a tool call"),
    ],
)
def test_malformed_messages_are_told(message, problem):
    with pytest.raises(UsageError) as caught:
        read_messages([USER, {"role": "user", **message}])
    assert problem in caught.value.message


TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"a": 1}}}


def test_tools_are_told_in_one_form():
    shuffled = {"function": {"strict": True, "x": 1, "parameters": {"a": 1}, "name": "f",
                             "return": None, "description": "d"}}  # fmt: skip
    told = Conversation([USER], tools=[shuffled]).tools
    assert json.dumps(told) == json.dumps(
        [{"type": "function", "function": {**TOOL["function"], "x": 1}}]
    )
    bare = Conversation([USER], tools=({"function": {"name": "f"}},)).tools
    assert bare[0]["function"] == {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert Conversation([USER], tools=[]).tools is None
    assert Conversation([USER]).tools is None


@pytest.mark.parametrize(
    "tool",
    [
        3, {}, {"function": 3}, {"function": {}}, {"name": "f"}, {"function": {"name": 3}},
        {"type": "custom", "function": {"name": "f"}},
        {"function": {"name": "f", "parameters": "x"}},
        {"function": {"name": "f", "description": 3}},
    ],
)  # fmt: skip
def test_what_is_no_tool_is_told(tool):
    with pytest.raises(UsageError, match="tool 1 is not of the form"):
        Conversation([USER], tools=[TOOL, tool])
    with pytest.raises(UsageError, match="tools must be a list"):
        Conversation([USER], tools="f")


def test_a_template_is_told_all_of_a_conversation(model):
    told = Conversation([USER], tools=[TOOL], variables={"mood": "!"})
    assert text_of(model, told).endswith('"parameters": {"a": 1}}}]<user>the cat!<answer>')
    plain = text_of(model, [USER])
    assert plain == "<|end|><user>the cat<answer>"
    without = text_of(model, Conversation([USER], add_generation_prompt=False))
    assert without == plain.removesuffix("<answer>")
    parts = [{"role": "user", "content": [{"type": "text", "text": "the cat"}]}]
    assert text_of(model, parts) == plain
    history = [{"role": "assistant", "content": "", "tool_calls": [call('{"a": "b"}')]}]
    assert text_of(model, history).endswith('<assistant>{"a": "b"}<answer>')


def test_a_conversation_is_a_prompt_for_all_who_generate(model):
    asked = Conversation([USER], tools=[TOOL], variables={"mood": "!"})
    fields = {"max_tokens": 2, "temperature": 0, "ignore_eos": True}
    one = gptrs.generate(model, asked, **fields)
    assert one.prompt_token_ids == tuple(model.prompt_tokens(asked))
    assert [each.text for each in gptrs.generate_batch(model, [asked, [USER]], **fields)] == [
        one.text, gptrs.generate(model, [USER], **fields).text,
    ]  # fmt: skip
    with gptrs.Engine(model) as engine:
        assert engine.submit(asked, **fields).result()[0].text == one.text


@pytest.mark.parametrize(
    "name",
    [
        "messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token",
        "pad_token", "raise_exception", "strftime_now", "a b", "",
    ],
)  # fmt: skip
def test_variables_hide_nothing_that_a_template_is_given(name):
    with pytest.raises(UsageError) as caught:
        Conversation([USER], variables={name: 1})
    assert f"`{name}`" in caught.value.message or f"'{name}'" in caught.value.message
    template = ChatTemplate("{{ x }}", {"image_token": "<i>"}, {name: 1})
    with pytest.raises(UsageError):
        template.render([USER])


def test_variables_hide_no_special_token_of_the_model(model):
    template = ChatTemplate("{{ image_token }}", {"image_token": "<i>"})
    assert template.render([USER]) == "<i>"
    with pytest.raises(UsageError, match="`image_token` cannot be set as a variable"):
        template.render(Conversation([USER], variables={"image_token": "x"}))
    model.template_variables["mood"] = "?"
    try:
        assert text_of(model, [USER]).endswith("?<answer>")
        own = Conversation([USER], variables={"mood": "!"})
        assert text_of(model, own).endswith("!<answer>")
    finally:
        model.template_variables.clear()


def test_fields_of_a_request_are_a_conversation():
    nulls = dict.fromkeys(
        ("tools", "chat_template_kwargs", "enable_thinking", "reasoning_effort",
         "add_generation_prompt", "continue_final_message")
    )  # fmt: skip
    assert conversation_of({"messages": [USER], **nulls}) == Conversation([USER])
    told = conversation_of({
        "messages": [USER], "tools": [TOOL], "chat_template_kwargs": {"x": 1}, "other": 5,
        "enable_thinking": False, "reasoning_effort": "low", "add_generation_prompt": False,
    })  # fmt: skip
    variables = {"x": 1, "enable_thinking": False, "reasoning_effort": "low"}
    assert told == Conversation(
        [USER], [TOOL], variables, add_generation_prompt=False, needs=("reasoning_effort",)
    )
    assert conversation_of({"messages": [USER], "reasoning_effort": "medium"}).needs == ()
    off = conversation_of({"messages": [USER], "reasoning_effort": "none"})
    assert off.variables == {"reasoning_effort": "none", "enable_thinking": False}
    going_on = conversation_of({"messages": [USER], "continue_final_message": True})
    assert going_on.continue_final_message
    assert not going_on.answers
    same = {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": True}}
    assert conversation_of({"messages": [USER], **same}).variables == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"messages": None}, "at least one message"),
        ({"chat_template_kwargs": [1]}, "`chat_template_kwargs` must be an object"),
        ({"enable_thinking": "no"}, "`enable_thinking` must be true or false"),
        ({"reasoning_effort": 3}, "`reasoning_effort` must be text"),
        ({"add_generation_prompt": 1}, "`add_generation_prompt` must be true or false"),
        ({"continue_final_message": "x"}, "`continue_final_message` must be true or false"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "exclude each other"),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "differ"),
        ({"continue_final_message": True, "messages": [{"role": "assistant"}]}, "a text to cont"),
    ],
)
def test_malformed_fields_are_told(fields, problem):
    with pytest.raises(UsageError) as caught:
        conversation_of({"messages": [USER], **fields})
    assert problem in caught.value.message


def test_an_effort_is_refused_where_the_template_reads_none(model):
    effort = {"messages": [USER], "reasoning_effort": "low"}
    with pytest.raises(UsageError, match="reads no `reasoning_effort`"):
        model.prompt_tokens(conversation_of(effort))
    assert model.prompt_tokens(conversation_of({**effort, "reasoning_effort": "none"}))
    template = ChatTemplate("{{ reasoning_effort }}", {})
    assert template.render(conversation_of(effort)) == "low"
    with pytest.raises(UsageError, match="reads no"):
        ChatTemplate("{{ my_reasoning_effort }}", {}).render(conversation_of(effort))


CONTINUED = {
    "keeps spaces": "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}",
    "trims": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}",
}


@pytest.mark.parametrize("content", ["Once upon", "Once upon  ", "  Once\n", ""])
@pytest.mark.parametrize("name", CONTINUED)
def test_a_message_is_continued_as_transformers_does_it(tmp_path, name, content):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    folder = save_tiny_chat(tmp_path / "chat", CONTINUED[name])
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    said = [USER, {"role": "assistant", "content": content}]
    expected = theirs.apply_chat_template(said, tokenize=False, continue_final_message=True)
    template = load_model(folder, "ref").chat_template()
    assert template.render(Conversation(said, continue_final_message=True)) == expected


@pytest.mark.parametrize("trim", ["", " | trim"])
def test_a_message_that_is_there_twice_is_continued_where_it_is_last(trim):
    content = f"{{{{ messages[-1].content{trim} }}}}"
    going_on = Conversation([{"role": "assistant", "content": "One."}], continue_final_message=True)
    assert ChatTemplate(f"{content}|{content}|", {}).render(going_on) == "One.|One."
    empty = Conversation([{"role": "assistant", "content": ""}], continue_final_message=True)
    assert ChatTemplate(content, {}).render(empty) == ""


def test_a_message_that_a_template_leaves_out_is_not_continued():
    said = [USER, {"role": "assistant", "content": "Once"}]
    going_on = Conversation(said, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="drops the message") as caught:
        ChatTemplate("{{ messages[0].content }}", {}).render_all([said, going_on])
    assert caught.value.conversation == 1
    with pytest.raises(ChatTemplateError, match="drops the message"):
        ChatTemplate("the cat {{ messages[1].content[-20:] }}", {}).render(going_on)


def test_the_last_text_of_parts_is_continued():
    parts = [{"type": "text", "text": "a"}, {"type": "image", "image": "x"},
             {"type": "text", "text": "b"}, {"type": "image", "image": "y"}]  # fmt: skip
    going_on = Conversation([{"role": "user", "content": parts}], continue_final_message=True)
    read = ChatTemplate("{% for p in messages[0].content %}{{ p.text }}/{% endfor %}", {})
    shown = [{**part, "image": "x"} if "image" in part else part for part in parts]
    assert read.render(going_on.with_messages([{"role": "user", "content": shown}])) == "a//b"
    assert going_on.messages[0]["content"] == parts


def test_conversations_with_tools_and_without_are_rendered_each_by_its_template(tmp_path):
    named = [
        {"name": "default", "template": "{{ messages[0].content }}"},
        {"name": "tool_use", "template": "T{{ messages[0].content }}{{ raise_exception('no') if"
         " messages | length > 1 }}"},
    ]  # fmt: skip
    model = load_model(save_tiny_chat(tmp_path / "two", named), "ref")
    plain, with_tools = Conversation([USER]), Conversation([USER], tools=[TOOL])
    found = model.all_conversation_tokens([with_tools, plain, with_tools])
    assert [model.tokenizer.decode(each) for each in found] == [
        "Tthe cat", "the cat", "Tthe cat",
    ]  # fmt: skip
    refused = Conversation([USER, USER], tools=[TOOL])
    with pytest.raises(ChatTemplateError, match="no") as caught:
        model.all_conversation_tokens([plain, with_tools, plain, refused])
    assert caught.value.conversation == 3
    image = {"role": "user", "content": [{"type": "image", "image": "data:,"}]}
    with pytest.raises(ModelError, match="reads no images"):
        model.all_conversation_tokens([plain, Conversation([image])])
