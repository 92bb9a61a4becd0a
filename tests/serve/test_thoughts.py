"""Thoughts over HTTP: apart from the answer, in whole answers and in streams, beside tools."""

from __future__ import annotations

import json

import pytest

from gptrs_runtime.load import load_model
from runtime.tiny_chat import save_scripted_chat
from serve.conftest import serving

pytest.importorskip("llguidance", reason="llguidance is not installed")
openai = pytest.importorskip("openai", reason="the client of OpenAI is not installed")

TEMPLATE = "{% if tools %}{% endif %}{{ messages[-1].content }}\nassistant: "
PROMPT = "hi\nassistant: "
CALL = '{"name": "f", "arguments": {"a": 1}}'
DRAFT = f"try <tool_call>{CALL}</tool_call> 好"
HERMES = f"{DRAFT}\n</think>\n\nOne <tool_call> two.\n<tool_call>\n{CALL}\n</tool_call>\n"
LISTED = f"[THINK]try [TOOL_CALLS] [{CALL}][/THINK]One. [TOOL_CALLS] [{CALL}]"
SCRIPTS = {
    "hermes": (f"<think>\n{HERMES}", PROMPT, "{# <think> <tool_call> </think> #}", ()),
    "opened": (HERMES, f"{PROMPT}<think>\n", "<think>\n{# </think> <tool_call> #}", ()),
    "listed": (LISTED, PROMPT, "{# [THINK] [TOOL_CALLS] [/THINK] #}",
               ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "<x>")),
    "plain": (f"<think>\n{HERMES}", PROMPT, "{# <tool_call> #}", ()),
}  # fmt: skip
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
THOUGHTS = {"hermes": DRAFT, "opened": DRAFT, "listed": f"try [TOOL_CALLS] [{CALL}]"}
SAID = {"hermes": "One <tool_call> two.", "opened": "One <tool_call> two.", "listed": "One."}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thoughts")
    return {
        name: load_model(
            save_scripted_chat(
                folder / name, answer, prompt=prompt, template=TEMPLATE + end, special=special
            ),
            backend="ref",
        )
        for name, (answer, prompt, end, special) in SCRIPTS.items()
    }


@pytest.fixture(scope="module")
def client(models):
    with (
        serving(models, most_output=400) as (address, _),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def whole(client, name, **fields):
    """The answer, and that of its usage which is told of completion tokens."""
    made = client.chat.completions.create(**asked(name, **fields))
    return made.choices[0], made.usage


def asked(name, **fields):
    messages = [{"role": "user", "content": "hi"}]
    return {"model": name, "messages": messages, "temperature": 0, "max_tokens": 300} | fields


def streamed(client, name, **fields):
    """The joined deltas of a stream, the names of their keys in order, its end, and its usage."""
    joined: dict = {"content": "", "reasoning_content": "", "calls": []}
    order, scores, reason, usage = [], [], None, None
    fields |= {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in client.chat.completions.create(**asked(name, **fields)):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_none=True, exclude={"role"})
            order += [key for key, value in delta.items() if value]
            joined["content"] += delta.get("content", "")
            joined["reasoning_content"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                if call.get("id"):
                    joined["calls"].append([call["function"]["name"], ""])
                joined["calls"][call["index"]][1] += call["function"]["arguments"]
            scores += choice.logprobs.content if choice.logprobs else ()
            reason = choice.finish_reason or reason
    return joined, list(dict.fromkeys(order)), scores, reason, usage


def calls_of(choice):
    calls = choice.message.tool_calls or []
    return [[call.function.name, call.function.arguments] for call in calls]


@pytest.mark.parametrize(
    ("name", "tools"),
    [("hermes", TOOLS), ("opened", TOOLS), ("listed", TOOLS), ("listed", None)],
)
def test_thoughts_are_apart_from_text_and_calls_in_answers_and_streams(client, models, name, tools):
    fields = {"logprobs": True} | ({} if tools is None else {"tools": tools})
    made, usage = whole(client, name, **fields)
    if tools is not None:
        assert made.message.reasoning_content == THOUGHTS[name]
        assert made.message.content == SAID[name]
        assert calls_of(made) == [["f", '{"a": 1}']]
        (call,) = made.message.tool_calls
        assert len(call.id) == (9 if name == "listed" else len("call_") + 24)
        assert made.finish_reason == "tool_calls"
    else:  # a mark that is a special token is not shown
        assert made.message.reasoning_content == THOUGHTS[name].replace("[TOOL_CALLS]", "")
        assert made.message.content.startswith(SAID[name])
        assert CALL in made.message.content
        assert made.message.tool_calls is None
    joined, order, scores, reason, told = streamed(client, name, **fields)
    assert joined["content"] == made.message.content
    assert joined["reasoning_content"] == made.message.reasoning_content
    assert joined["calls"] == calls_of(made)
    assert order == ["reasoning_content", "content", *(["tool_calls"] if tools else [])]
    assert reason == made.finish_reason
    assert len(scores) == len(made.logprobs.content) == usage.completion_tokens
    assert told.completion_tokens_details == usage.completion_tokens_details
    text, mark = SCRIPTS[name][0], "[/THINK]" if name == "listed" else "</think>"
    tokens = models[name].tokenizer.encode(text[: text.index(mark)] + mark, special=False)
    assert usage.completion_tokens_details.reasoning_tokens == len(tokens)


@pytest.mark.parametrize("name", list(THOUGHTS))
def test_thoughts_that_are_cut_are_thoughts(client, name):
    made, usage = whole(client, name, max_tokens=12)
    assert made.message.content == ""
    thoughts = made.message.reasoning_content
    assert THOUGHTS[name].replace("[TOOL_CALLS]", "").startswith(thoughts)
    assert (made.finish_reason, usage.completion_tokens_details.reasoning_tokens) == ("length", 12)
    joined, *_ = streamed(client, name, max_tokens=12)
    assert joined["reasoning_content"] == made.message.reasoning_content


def test_a_model_whose_template_knows_no_thoughts_has_their_marks_in_the_text(client):
    made, usage = whole(client, "plain", max_tokens=60)
    assert SCRIPTS["plain"][0].startswith(made.message.content)
    assert not hasattr(made.message, "reasoning_content")
    assert usage.completion_tokens_details is None
    assert streamed(client, "plain", max_tokens=60)[0]["content"] == made.message.content


STRICT = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("opened", {"tool_choice": "required", "parallel_tool_calls": False}),
        ("hermes", {"parallel_tool_calls": False}),
        ("opened", {"tools": STRICT}),
        ("listed", {"tools": STRICT}),
    ],
)
def test_calls_that_a_grammar_keeps_to_their_form_come_after_thoughts(client, name, fields):
    fields = {"tools": TOOLS, **fields}
    made, _ = whole(client, name, **fields)
    thoughts = made.message.reasoning_content
    assert thoughts.startswith("try ")
    assert thoughts.endswith("]" if name == "listed" else "好")
    assert (made.message.content or "One").rstrip(".") == "One"
    ((called, arguments),) = calls_of(made)
    assert called == "f"
    assert isinstance(json.loads(arguments).get("a", 1), int)
    joined, *_ = streamed(client, name, **fields)
    assert joined["calls"] == calls_of(made)
    assert joined["reasoning_content"] == thoughts


def test_an_answer_of_a_form_is_text_though_the_prompt_opens_thoughts(client):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": {"a": 1}}}}
    made, _ = whole(client, "opened", response_format=form)
    assert json.loads(made.message.content) == {"a": 1}
    made, _ = whole(client, "opened", extra_body={"regex": "[a-c]{4}"})
    assert len(made.message.content) == 4
    made, _ = whole(client, "opened", extra_body={"regex": "[a-c]{4}<\\/think>[a-c]{2}"})
    assert (len(made.message.reasoning_content), len(made.message.content)) == (4, 2)


def test_the_thoughts_of_a_history_reach_the_template(tmp_path):
    template = "{% for m in messages %}{{ m.content }}({{ m.reasoning_content }}){% endfor %}"
    folder = save_scripted_chat(
        tmp_path / "m", "yes", prompt="a()b(why)c()", template=template, special=()
    )
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "why"},
        {"role": "user", "content": "c"},
    ]
    with (
        serving({"m": load_model(folder, backend="ref")}) as (address, _),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        made, _ = whole(client, "m", messages=messages, max_tokens=20)
    assert made.message.content == "yes"
