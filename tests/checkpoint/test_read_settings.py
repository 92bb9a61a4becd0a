"""Settings know which of them were looked at, however that was done."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptrs.checkpoint.config_fields import ConfigFields, ReadSettings

NAMES = st.sampled_from("abcdef")
TABLES = st.dictionaries(NAMES, st.integers() | st.dictionaries(NAMES, st.integers()))


@given(TABLES, st.sets(NAMES))
def test_what_was_asked_for_is_seen(settings, asked):
    read = ReadSettings(copy.deepcopy(settings))
    assert read.unseen() == list(settings)
    for name in asked:
        assert read.get(name, 7) == settings.get(name, 7)
    assert read.unseen() == [name for name in settings if name not in asked]


@given(TABLES, st.dictionaries(NAMES, st.integers()), st.dictionaries(NAMES, st.integers()))
def test_a_changed_copy_and_its_source_see_alike(settings, over, under):
    read = ReadSettings(copy.deepcopy(settings))
    changed = ConfigFields(read, "m").overlaid(over, under)
    assert dict(changed) == {**under, **settings, **over}
    assert read.unseen() == []
    plain = ConfigFields(settings, "m").overlaid(over, under)
    assert plain == {**under, **settings, **over}


def test_a_setting_that_is_read_of_a_changed_copy():
    read = ReadSettings({"a": 1, "b": {"c": 2, "d": 3}, "e": 4})
    changed = ConfigFields(read, "m").overlaid({"e": 5})
    assert read.unseen() == ["a", "b", "e"]
    assert changed["e"] == 5
    table = changed["b"]
    assert isinstance(table, dict)
    assert read.unseen() == ["a"]
    assert table["c"] == 2
    assert read.unseen() == ["a", "b.d"]
    assert "a" in changed
    assert read.unseen() == ["b.d"]


@pytest.mark.parametrize(
    "walk",
    [dict, list, lambda s: {**s}, lambda s: s.keys(), lambda s: s.values(), lambda s: s.items()],
)
def test_who_walks_over_all_has_seen_all(walk):
    read = ReadSettings({"a": 1, "b": 2})
    walk(read)
    assert read.unseen() == []


def test_settings_without_effect_are_seen():
    read = ReadSettings({"a": 1, "b": 2, "c": 3})
    ConfigFields(read, "m").without_effect("a", "c", "z")
    assert read.unseen() == ["b"]
