"""`--template-var`: variables of the chat template from the command line."""

from __future__ import annotations

import json

import pytest

import gptrs as library
from gptrs.errors import UsageError
from gptrs_cli.generate.options import template_variables
from runtime.tiny_chat import save_tiny_chat

TEMPLATE = "{{ messages[0]['content'] }}{% if not thinking %} dog{% endif %}{{ mood }}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("variables") / "tiny", TEMPLATE)


def test_values_are_json_or_text():
    found = template_variables(["a=false", "b=[1]", "c=x=y", "d=", 'e="7"', "f=NaN"])
    assert found == {"a": False, "b": [1], "c": "x=y", "d": "", "e": "7", "f": "NaN"}
    for wrong in (["a"], ["=3"], ["a b=3"], ["a=1", "a=2"]):
        with pytest.raises(UsageError, match="takes NAME=VALUE, each name once"):
            template_variables(wrong)


def test_the_template_reads_them(gptrs, folder):
    short = ("--max-tokens", "1", "--greedy", "--ignore-eos", "--backend", "ref", "--json")
    asked = ("generate", "the cat", "--chat", "--model", folder, *short)
    told = ("--template-var", "thinking=true", "--template-var", "mood= the")
    plain, changed = gptrs(*asked).json, gptrs(*asked, *told).json
    model = library.load_model(folder, backend="ref")
    assert plain["prompt_token_ids"] == model.tokenizer.encode("the cat dog")
    assert changed["prompt_token_ids"] == model.tokenizer.encode("the cat the")
    model.template_variables["thinking"] = True
    messages = [{"role": "user", "content": "the cat"}]
    assert model.prompt_tokens(messages) == model.tokenizer.encode("the cat")


def test_a_prompt_of_many_is_rendered_with_them(gptrs, folder, tmp_path):
    lines = json.dumps({"messages": [{"role": "user", "content": "the"}]}) + "\n"
    (tmp_path / "p.jsonl").write_text(lines)
    asked = ("generate", "--prompts", tmp_path / "p.jsonl", "--model", folder, "--max-tokens", "1")
    more = ("--backend", "ref", "--json", "--template-var", "thinking=1")
    (record,) = gptrs(*asked, *more).json_lines
    assert len(record["prompt_token_ids"]) == 1


def test_without_a_conversation_they_are_refused(gptrs, folder):
    result = gptrs("generate", "a", "--model", folder, "--template-var", "x=1")
    assert result.code == 2
    assert "`--template-var` belongs to a conversation" in result.err
