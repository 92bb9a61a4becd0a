"""The pages about kinds say what the table of kinds has, and the table names each kind once."""

from __future__ import annotations

import model_kinds
from gptrs.api import ModelPlugin
from gptrs.plugins.manager import manager
from gptrs_models import llama_kinds, text_parts
from gptrs_models.kinds import KINDS


def test_each_kind_stands_in_the_table_once_and_runs():
    names = [name for family in KINDS for name in family.kinds]
    assert len(names) == len(set(names))
    ours = [r for r in manager().records(ModelPlugin) if r.distribution == "gptrs-models"]
    assert {record.name for record in ours if record.state.usable} == set(names)
    assert not {near for family in KINDS for each in family.relatives.values() for near in each} & {
        *names
    }
    for family in KINDS:
        assert family.relatives.keys() <= family.kinds.keys()


def test_kinds_of_a_table_of_settings_are_kinds_of_its_module():
    def of(module: str) -> set[str]:
        return {name for family in KINDS if family.module == module for name in family.kinds}

    assert of("llama_tasks") == llama_kinds.KINDS.keys()
    assert of("text_parts") == text_parts.TEXT_KINDS.keys()


def test_the_pages_are_up_to_date():
    pages = {
        model_kinds.PAGE: model_kinds.page_text(),
        model_kinds.README: model_kinds.readme_text(),
    }
    for page, text in pages.items():
        assert page.read_text(encoding="utf-8") == text, "run tools/model_kinds.py"
