"""Tools: what templates are told, how calls are read, and that answers keep to what was asked."""

from __future__ import annotations

import json
import re

import pytest

from gptrs_runtime.load import load_model
from gptrs_serve.forms import MOST_SCHEMA
from gptrs_serve.problems import RequestError
from gptrs_serve.tools.families import GRANITE, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, family_of
from gptrs_serve.tools.parser import CallArguments, CallParser, CallStart, TextDelta
from runtime.tiny_chat import save_tiny_chat
from serve.conftest import serving

pytest.importorskip("llguidance", reason="llguidance is not installed")
openai = pytest.importorskip("openai", reason="the client of OpenAI is not installed")
jsonschema = pytest.importorskip("jsonschema")

ARGUMENTS = '{"city": "S\\u00e3o \\"P\\" }]", "days": [1, {"a": 2}]}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
OTHER = '{"arguments": {}, "name": "time"}'


def read(family, text, size=None, **settings):
    """The text and the calls of an answer that comes `size` characters at a time."""
    parser = CallParser(family, {"weather", "time"}, **settings)
    size = size or len(text)
    deltas = [d for at in range(0, len(text), size) for d in parser.push(text[at : at + size])]
    deltas += parser.finish()
    said = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    calls = [[delta.name, ""] for delta in deltas if isinstance(delta, CallStart)]
    for delta in deltas:
        if isinstance(delta, CallArguments):
            calls[delta.index][1] += delta.text
    return said, [(name, json.loads(text)) for name, text in calls]


BOTH = [("weather", json.loads(ARGUMENTS)), ("time", {})]


@pytest.mark.parametrize("size", [None, 1, 7])
@pytest.mark.parametrize(
    ("family", "text", "said"),
    [
        (HERMES, f"I see.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{OTHER}</tool_call>\n",
         "I see.\n"),
        (HERMES, f"\n<tool_call>{CALL}</tool_call><tool_call>\n {OTHER}\n</tool_call> Done.",
         " Done."),
        (LLAMA, f"<|python_tag|>{CALL.replace('arguments', 'parameters')}; {OTHER}", ""),
        (LLAMA, f" {CALL.replace('arguments', 'parameters')};{OTHER}", ""),
        (MISTRAL, f"[TOOL_CALLS] [{CALL[:-1]}, \"id\": \"a}}b\"}}, {OTHER}]", ""),
        (MISTRAL_NAMED, f"Yes[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]time[ARGS]{{}}",
         "Yes"),
        (GRANITE, f"<|tool_call|>[{CALL},{OTHER}]", ""),
    ],
)  # fmt: skip
def test_calls_of_each_family(family, text, said, size):
    found, calls = read(family, text, size)
    assert (found.strip(), calls) == (said.strip(), BOTH)
    assert read(family, text, size, several=False)[1] == BOTH[:1]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (HERMES, "a < b <tool_cal> {}"),
        (HERMES, '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "weather", "argu'),
        (HERMES, '<tool_call>{"name": "weather", "arguments": 3}</tool_call>'),
        (LLAMA, '{"answer": 42}'),
        (LLAMA, 'It is {"name": "time", "parameters": {}}'),
        (MISTRAL_NAMED, "[TOOL_CALLS]other[ARGS]{}"),
    ],
)
def test_what_is_no_call_stays_text(family, text):
    assert read(family, text, 3) == (text, [])


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{{ tools }} <tool_call>", HERMES),
        ('{{ tools }} {"name": function name, "parameters": dictionary of', LLAMA),
        ("{{ tools }} [TOOL_CALLS] [", MISTRAL),
        ("{{ tools }} [TOOL_CALLS]{{ name }}[ARGS]", MISTRAL_NAMED),
        ("{{ tools }} <|tool_call|>", GRANITE),
        ("{{ tools }} <tool_call><function=f>", "in a form that gptrs does not know"),
        ("{{ messages }}", "does not read them"),
    ],
)
def test_the_family_is_that_of_the_template(template, family):
    if isinstance(family, str):
        with pytest.raises(RequestError, match=family):
            family_of(template, "m")
    else:
        assert family_of(template, "m") is family


TEMPLATE = (
    "{{% if tools %}}tools: {{{{ tools | tojson }}}}\n{{% endif %}}"
    "{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}"
    "{{% for c in m.tool_calls or [] %}}{opening}"
    '{{{{ {{"name": c.function.name, "arguments": c.function.arguments}} | tojson }}}}'
    "{closing}{{% endfor %}}{{{{ '\\n' }}}}{{% endfor %}}assistant:"
)
CITY = {"type": "string", "enum": ["Rome", "Oslo"]}
SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["city", "days"],
    "properties": {"city": CITY, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
}  # fmt: skip
WEATHER = {"name": "weather", "description": "The weather.", "parameters": SCHEMA}
PLACE = {
    "type": "object", "additionalProperties": False, "required": ["city"],
    "properties": {"city": CITY},
}  # fmt: skip
TIME = {"name": "time", "parameters": PLACE}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": TIME}]
SCHEMAS = {"weather": SCHEMA, "time": PLACE}
ASKED = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS,
         "seed": 5, "temperature": 1.0, "max_tokens": 140}  # fmt: skip
DEEP = json.loads('{"items":' * 200 + "{}" + "}" * 200)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of each kind of mark: text, and a token that texts do not show."""
    made = {}
    for name, opening, closing in (
        ("hermes", "<tool_call>\n", "\n</tool_call>"),
        ("mistral", "[TOOL_CALLS] [", "]"),
    ):
        folder = tmp_path_factory.mktemp("tools") / name
        template = TEMPLATE.format(opening=opening, closing=closing)
        save_tiny_chat(folder, template=template, n_positions=1024, vocab_size=304)
        if name == "mistral":
            file = folder / "tokenizer_config.json"
            settings = json.loads(file.read_text("utf-8"))
            settings["additional_special_tokens"] = ["[TOOL_CALLS]"]
            file.write_text(json.dumps(settings), "utf-8")
        made[name] = load_model(folder, backend="ref")
    return made


@pytest.fixture(scope="module")
def client(models):
    with (
        serving(models, most_output=400) as (address, _),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def checked(calls):
    """The names of calls, whose arguments are as their schemas say."""
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        assert call.type == "function"
    assert len({call.id for call in calls}) == len(calls)
    return [call.function.name for call in calls]


@pytest.mark.parametrize("name", ["hermes", "mistral"])
@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"weather", "time"}),
        ({"tool_choice": {"type": "function", "function": {"name": "time"}}}, {"time"}),
    ],
)
def test_calls_that_are_asked_for(client, name, fields, names):
    made = client.chat.completions.create(model=name, n=3, **ASKED, **fields)
    for choice in made.choices:
        assert len(checked(choice.message.tool_calls)) == 1
        assert choice.message.content is None
        assert choice.finish_reason == "tool_calls"
    assert {choice.message.tool_calls[0].function.name for choice in made.choices} <= names


@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_a_stream_of_calls_joins_to_the_whole_answer(client, models, name):
    (close,) = models[name].tokenizer.encode("]")
    fields = {"model": name, "tool_choice": "required", **ASKED}
    fields |= {"logit_bias": {str(close): 3, "0": 3}, "max_tokens": 300}  # few calls
    whole = client.chat.completions.create(**fields).choices[0]
    assert checked(whole.message.tool_calls)
    with client.chat.completions.stream(**fields) as stream:  # the client's own joining
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    told = [(c.function.name, c.function.arguments) for c in final.message.tool_calls]
    assert told == [(c.function.name, c.function.arguments) for c in whole.message.tool_calls]
    assert final.finish_reason == whole.finish_reason
    deltas = [e.chunk.choices[0].delta for e in events if e.type == "chunk" and e.chunk.choices]
    first = [d.tool_calls[0] for d in deltas if d.tool_calls and d.tool_calls[0].index == 0]
    assert (first[0].function.name, bool(first[0].id)) in {("weather", True), ("time", True)}
    assert [each.id for each in first[1:]] == [None] * (len(first) - 1)
    assert len(first) > 4  # the arguments come in pieces


def test_strict_tools_are_called_as_they_say_after_any_text(client, models):
    strict = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    begin = models["mistral"].tokenizer.number("[TOOL_CALLS]")
    fields = {**ASKED, "tools": strict, "logit_bias": {str(begin): 9}, "n": 4}
    made = client.chat.completions.create(model="mistral", **fields)
    calls = [choice.message.tool_calls or [] for choice in made.choices]
    assert any(calls)
    for choice, called in zip(made.choices, calls, strict=True):
        if choice.finish_reason == "tool_calls":
            checked(called)
        assert "[TOOL_CALLS]" not in (choice.message.content or "")


def test_text_without_marks_may_be_written_beside_strict_tools(client):
    strict = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    made = client.chat.completions.create(model="hermes", **{**ASKED, "tools": strict})
    assert made.choices[0].message.content
    assert made.choices[0].message.tool_calls is None


def test_the_template_reads_tools_calls_and_what_they_gave(client, models):
    call = {"id": "call_1", "type": "function",
            "function": {"name": "time", "arguments": '{"city": "Rome"}'}}  # fmt: skip
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "noon"}]},
    ]
    made = client.chat.completions.create(
        model="hermes", messages=messages, tools=TOOLS[1:], max_tokens=1
    )
    told = json.dumps([{"type": "function", "function": TIME}])
    expected = (
        f"tools: {told}\nuser: hi\nassistant: <tool_call>\n"
        '{"name": "time", "arguments": {"city": "Rome"}}\n</tool_call>\ntool: noon\nassistant:'
    )
    tokens = models["hermes"].tokenizer.encode(expected, special=False)
    assert made.usage.prompt_tokens == len(tokens)
    quiet = client.chat.completions.create(
        model="hermes", messages=messages, tools=TOOLS, tool_choice="none", max_tokens=1
    )
    untold = expected.removeprefix(f"tools: {told}\n")
    tokens = models["hermes"].tokenizer.encode(untold, special=False)
    assert quiet.usage.prompt_tokens == len(tokens)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "not among the tools"),
        ({"tools": None, "tool_choice": "required"}, "there are no `tools`"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "two tools have the name `weather`"),
        ({"extra_body": {"grammar": "start: x\nx: /a/"}}, "cannot be the form of an answer with"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f",
          "arguments": "{"}}]}]}, "message 0 has a tool call that is not of the form"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}],
          "tool_choice": "required"}, "the grammar cannot be used"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}],
          "tool_choice": "required"}, "recursion limit exceeded"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters":
          {"required": ["x" * MOST_SCHEMA]}}}], "tool_choice": "required"}, "may have at most"),
    ],
)  # fmt: skip
def test_refusals(client, fields, message):
    asked = {key: value for key, value in {**ASKED, **fields}.items() if value is not None}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="hermes", **asked)
    assert message in caught.value.body["message"]


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_of_tools_that_the_model_knows_some_may_be_called(client, name):
    asked = {**ASKED, "model": name, "parallel_tool_calls": False}
    for seed in range(3):
        made = client.chat.completions.create(
            **{**asked, "seed": seed}, tool_choice=allowed("required", "time")
        )
        assert checked(made.choices[0].message.tool_calls) == ["time"]
    free = client.chat.completions.create(**asked, tool_choice=allowed("auto", "time"))
    told = client.chat.completions.create(**asked, tool_choice="auto")
    assert free.usage.prompt_tokens == told.usage.prompt_tokens
    with pytest.raises(openai.BadRequestError, match="`other`, which is not among the tools"):
        client.chat.completions.create(**asked, tool_choice=allowed("auto", "other"))


FORMS = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": PLACE}}},
    "object": {"response_format": {"type": "json_object"}},
    "regex": {"extra_body": {"regex": "[a-c]{2}/[0-9]"}},
    "choice": {"extra_body": {"guided_choice": ["a/b", 'the "c"']}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "form"), [*(("hermes", form) for form in FORMS), ("mistral", "schema")]
)
def test_an_answer_calls_tools_or_is_of_its_form(client, name, form):
    """Each of both comes among a few answers, nothing else does."""
    made = client.chat.completions.create(
        **{**ASKED, "model": name, "n": 6, "max_tokens": 160, "seed": 2}, **FORMS[form]
    )
    kinds = set()
    for choice in made.choices:
        if choice.finish_reason == "length":
            continue
        if choice.finish_reason == "tool_calls":
            checked(choice.message.tool_calls)
            assert not choice.message.content
        elif form in ("schema", "object"):
            found = json.loads(choice.message.content)
            assert isinstance(found, dict)
            if form == "schema":
                jsonschema.validate(found, PLACE)
        elif form == "regex":
            assert re.fullmatch("[a-c]{2}/[0-9]", choice.message.content)
        else:
            assert choice.message.content in ("a/b", 'the "c"')
        kinds.add(choice.finish_reason)
    assert kinds
    assert name == "mistral" or kinds == {"tool_calls", "stop"}
