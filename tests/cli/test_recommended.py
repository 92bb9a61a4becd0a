"""Recommended models: each is of a kind that gptrs has, and its example is a command."""

from __future__ import annotations

import shlex

import pytest

import recommended_models
from gptrs.errors import ModelError
from gptrs.plugins.manager import manager
from gptrs_cli.command_group import HELP_ORDER, command_of
from gptrs_cli.main import app
from gptrs_cli.options.settings import Settings
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.hub import HubModel
from gptrs_runtime.sources.recommended import recommended

TASKS = {"text", "chat", "code", "embedding", "reranking", "vision", "speech"}
OPEN = {"apache-2.0", "mit"}


@pytest.mark.parametrize("model", recommended(), ids=lambda each: each.name)
def test_a_recommended_model_can_be_tried(model):
    assert HubModel.parse(model.name) is not None
    assert model_path(model.short) == model_path(model.short.upper()) == model.name
    assert model.license in OPEN
    assert model.bits in {16, 32}
    assert model.nbytes * 8 == model.bits * model.parameters < 32e9
    assert manager().model_plugin(model.kind)
    assert model.command in HELP_ORDER
    root = command_of(app, "gptrs").make_context("gptrs", [], obj=Settings())
    command = root.command.get_command(root, model.command)
    command.make_context(model.command, shlex.split(model.example)[2:], parent=root)


def test_short_names_differ_and_a_folder_of_that_name_comes_first(monkeypatch, tmp_path):
    shorts = [each.short for each in recommended()]
    assert len(set(shorts)) == len(shorts)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whisper").mkdir()
    assert model_path("whisper") == "whisper"
    assert model_path("./smollm2") == "./smollm2"
    with pytest.raises(ModelError, match="`smolm2` does not exist; did you mean `smollm2`"):
        find_model("smolm2")


def test_each_task_has_one(gptrs):
    assert {each.task for each in recommended()} == TASKS
    shown = gptrs("models", "recommended", "speech")
    assert (shown.code, "openai/whisper-tiny" in shown.out) == (0, True)
    assert "SmolLM2" not in shown.out
    assert "try one: gptrs transcribe whisper:tiny talk.wav" in shown.err
    wrong = gptrs("models", "recommended", "poetry")
    assert wrong.code == 2
    assert "tasks: chat, text, code, " in wrong.err


def test_the_page_is_up_to_date():
    text = recommended_models.PAGE.read_text(encoding="utf-8")
    assert text == recommended_models.page_text(), "run tools/recommended_models.py"
