"""Chat templates: what transformers renders, where they stand, hostile ones are bounded."""

from __future__ import annotations

import json

import pytest

import gptrs
from gptrs.errors import ModelError, UsageError
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.chat.template import ChatTemplate, ChatTemplateError, chat_template_of
from gptrs_runtime.converting.convert import convert
from gptrs_runtime.load import load_model
from runtime.tiny_chat import TEMPLATE, save_tiny_chat
from runtime.tiny_gpt2 import END, save_tiny_gpt2

SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße <b>& 'x'</b>\n  {{ 1 }}"},
    {"role": "assistant", "content": "Hi.", "reasoning": "Greet.", "tool_calls": None},
    {"role": "user", "content": "你好"},
]

TEMPLATES = {
    "plain": TEMPLATE,
    "chatml": "{%- for m in messages %}\n  {{- '<|im_start|>' + m.role + '\\n' + m.content"
    " + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}",
    "blocks": "{% if messages[0]['role'] == 'system' %}\n"
    "    {% set system = messages[0].content %}\n"
    "{% else %}\n    {% set system = '' %}\n{% endif %}\n[{{ system | trim }}]\n  {# note #}\n"
    "{% for m in messages[1:] %}\n  {% if loop.first %}{% continue %}{% endif %}\n"
    "{{ loop.index0 }} {{ m.content }}\n{% endfor %}\n",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }} {{ tools is none }}",
    "tokens": "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ unknown }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% set x = 1 %}"
    "{% endgeneration %}{{ x }}"
    "{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }} {{ dict(a=1) }} {{ strftime_now('%Y') | length }}",
    "macro": "{% macro say(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}"
    "{% for m in messages %}{{ say(m) }}{% endfor %}",
    "keys": "{% for m in messages %}{{ m.keys() | list }}{{ m.reasoning_content }}{% endfor %}",
}


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", [True, False])
def test_a_conversation_is_rendered_as_transformers_does_it(tmp_path, name, answer):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    folder = save_tiny_chat(tmp_path / "chat", TEMPLATES[name])
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    expected = theirs.apply_chat_template(SAID, tokenize=False, add_generation_prompt=answer)
    model = load_model(folder, "ref")
    text = chat_template_of(model.files, "chat").render(
        Conversation(SAID, add_generation_prompt=answer)
    )
    assert text == expected
    tokens = theirs.apply_chat_template(SAID, add_generation_prompt=answer)["input_ids"]
    assert model.tokenizer.encode(text, special=False) == tokens


def test_a_developer_is_the_system_where_the_template_knows_none():
    said = [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]
    shown = "{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}"
    assert ChatTemplate(shown, {}).render(said) == "system:a user:b "
    assert ChatTemplate(shown + "{# developer #}", {}).render(said) == "developer:a user:b "


def test_several_conversations_are_rendered_at_once():
    template = ChatTemplate(TEMPLATE, {"eos_token": END})
    conversations = [SAID[:2], SAID[3:], SAID]
    expected = [template.render(messages) for messages in conversations]
    assert template.render_all(conversations) == expected


SPECIAL = {"bos_token": END, "eos_token": END, "unk_token": "<|endoftext|>"}
"""Of the files, and of the class of GPT-2's tokenizer."""


def found(folder) -> ChatTemplate:
    return chat_template_of(load_model(folder, "ref").files, "chat")


def test_a_file_of_its_own_comes_first(tmp_path):
    folder = save_tiny_chat(tmp_path / "chat", "of the settings")
    assert found(folder).source == "of the settings"
    (folder / "chat_template.jinja").write_text("of the file", encoding="utf-8")
    assert found(folder) == ChatTemplate("of the file", SPECIAL)


def test_a_model_reads_its_template_once(tmp_path):
    folder = save_tiny_chat(tmp_path / "chat", [{"name": "default", "template": "first"}])
    model = load_model(folder, "ref")
    assert model.chat_template().source == "first"
    (folder / "chat_template.jinja").write_text("second", encoding="utf-8")
    model.template_variables["x"] = 1
    assert model.chat_template() == ChatTemplate("first", SPECIAL, {"x": 1})
    assert model.chat_template(with_tools=True).source == "second"  # nobody had asked for that


def test_the_file_of_processors_comes_last(tmp_path):
    folder = save_tiny_chat(tmp_path / "chat", None)
    (folder / "chat_template.json").write_text('{"chat_template": "{{ 1 + 1 }}"}')
    assert load_model(folder, "ref").chat_template().render(SAID) == "2"
    (folder / "chat_template.jinja").write_text("{{ 1 + 2 }}")
    assert load_model(folder, "ref").chat_template().render(SAID) == "3"


def test_of_several_templates_the_default_is_taken(tmp_path):
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert found(save_tiny_chat(tmp_path / "chat", named)).source == "d"
    with pytest.raises(ModelError, match=r"none of the chat templates .* is called `default`"):
        found(save_tiny_chat(tmp_path / "other", named[:1]))


def test_conversations_with_tools_have_a_file_of_their_own(tmp_path):
    folder = save_tiny_chat(tmp_path / "chat", "{{ 1 }}")
    (folder / "chat_template.jinja").write_text("{{ 2 }}")
    model = load_model(folder, "ref")
    assert model.chat_template(with_tools=True).source == "{{ 2 }}"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ 3 }}{{ tools }}")
    convert(folder, tmp_path / "m.gptrschk")
    gptrs.quantize(folder, tmp_path / "m.gguf", "f32")
    for made in (folder, tmp_path / "m.gptrschk", tmp_path / "m.gguf"):
        model = load_model(made, "ref")
        assert model.chat_template().source == "{{ 2 }}"
        assert model.chat_template(with_tools=True).source == "{{ 3 }}{{ tools }}"


def test_models_without_a_template_say_so(tmp_path):
    with pytest.raises(ModelError, match="`chat` has no chat template"):
        found(save_tiny_gpt2(tmp_path / "bare"))
    with pytest.raises(ModelError, match="must be text, found `7`"):
        found(save_tiny_chat(tmp_path / "number", 7))
    broken = save_tiny_gpt2(tmp_path / "broken")
    (broken / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(ModelError, match="not UTF-8: byte 2"):
        found(broken)
    (broken / "chat_template.jinja").unlink()
    (broken / "chat_template.jinja").symlink_to("/etc/hostname")
    with pytest.raises(ModelError, match="outside the model folder"):
        found(broken)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ("hello", "at least one message"),
        (["hello"], "message 0 must be an object with a `role`"),
        ([{"role": "user"}, {"content": "x"}], "message 1 must be"),
        ([{"role": 3}], "message 0 must be"),
    ],
)
def test_malformed_messages_are_refused(messages, message):
    with pytest.raises(UsageError, match=message):
        ChatTemplate("x", {}).render(messages)


HOSTILE = {
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "unsafe",
    "{{ messages.append(1) }}": "unsafe",
    "{{ messages[0].update({'a': 1}) }}": "unsafe",
    "{{ raise_exception.__globals__['os'].system('id') }}": "unsafe",
    "{{ cycler.__init__.__globals__.os }}": "unsafe",
    "{{ ('%s' | attr('format')).__self__.x }}": "no attribute",
    "{% set n = namespace(__init__=1) %}": "keeps no attribute",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}": "keeps no attribute",
    "{% include '/etc/passwd' %}": "no loader",
    "{% import 'os' as os %}": "no loader",
    "{% for i in range(10**9) %}x{% endfor %}": "Range too big",
    "{{ 'a' * 10**10 }}": "too much memory",
    "{{ [0] * 10**10 }}": "too much memory",
    "{{ '%1000000000d' % 1 }}": "too much memory",
    "{{ '{:>1000000000}'.format(1) }}": "too much memory",
    "{{ 'x' | center(10**9) }}": "too much memory",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
    "{{ n.x }}": "too much memory",
    "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}": "too long",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}": "nested too deeply",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "nested too deeply",
    "{{ raise_exception('users only') }}": "users only",
    "{% bad": "unknown tag",
    "{{ messages[7].content.x }}": "no element 7",
}


@pytest.mark.sample(16)
@pytest.mark.parametrize("source", HOSTILE, ids=lambda source: source[:40])
def test_hostile_templates_are_bounded(source):
    with pytest.raises(ChatTemplateError, match=HOSTILE[source]) as caught:
        ChatTemplate(source, {}).render(SAID)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ (3 ** 9999999) % 7 }}",
    ],
)
@pytest.mark.exhaustive
def test_templates_that_compute_for_hours_are_stopped(source):
    with pytest.raises(ChatTemplateError, match="takes too long"):
        ChatTemplate(source * 50, {}).render(SAID)


def test_the_conversation_that_is_refused_is_named():
    source = "{% if messages | length > 2 %}{{ raise_exception('too many') }}{% endif %}"
    with pytest.raises(ChatTemplateError, match="too many") as caught:
        ChatTemplate(source, {}).render_all([SAID[:1], SAID, SAID[:2]])
    assert caught.value.conversation == 1


def test_settings_that_are_no_json_are_refused(tmp_path):
    folder = save_tiny_chat(tmp_path / "chat")
    (folder / "tokenizer_config.json").write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(ModelError, match="not usable JSON"):
        found(folder)


def test_variables_reach_the_template():
    source = "{{ enable_thinking }} {{ tools[0].function.name }} {{ documents | length }}"
    source += " {{ bos_token }}"
    template = ChatTemplate(source, {"bos_token": "<s>"})
    given = {"enable_thinking": False, "documents": ["a", "b"]}
    told = Conversation(SAID, tools=[{"function": {"name": "add"}}], variables=given)
    assert template.render(told) == "False add 2 <s>"
    for wrong in ({"x": {1, 2}}, {"x": float("nan")}):
        with pytest.raises(UsageError, match="must be JSON values"):
            template.render(Conversation(SAID, variables=wrong))


PARTS_ONLY = (
    "{% for m in messages %}{{ m.role }}: {% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}\n{% endfor %}"
)
"""What LLaVA's folders have: it reads lists of parts, and of a text each letter as a part."""


def test_templates_that_read_parts_only_get_them():
    talks = [[{"role": "user", "content": "hello"}], [{"role": "user", "content": "bye"}]]
    texts = ChatTemplate(PARTS_ONLY, {}).render_all(talks)
    assert texts == ["user: hello", "user: bye"]


def test_templates_that_drop_texts_of_the_user_are_left_alone():
    talk = [{"role": "user", "content": "hello"}]
    assert ChatTemplate("just {{ messages | length }}", {}).render(talk) == "just 1"
    assert ChatTemplate("{{ 'x' + messages[0].content[:2] }}", {}).render(talk) == "xhe"
