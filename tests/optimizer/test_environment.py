"""Variables of the environment are what they are now, however they were changed."""

from __future__ import annotations

import os

import pytest

from gptrs.variables import Variables

NAMES = ("GPTRS_TEST_ONE", "GPTRS_TEST_TWO")


def test_values_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = Variables(*NAMES)
    assert variables.values() == (None, None)
    monkeypatch.setenv(NAMES[1], "größer")
    assert variables.values() == (None, "größer")
    monkeypatch.setenv(NAMES[0], "")
    assert variables.values() == ("", "größer")
    monkeypatch.delenv(NAMES[1])
    assert variables.values() == ("", None)
    os.environ.pop(NAMES[0])
    assert variables.values() == (None, None)


def test_an_environment_in_the_place_of_that_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = Variables(*NAMES)
    monkeypatch.setattr(os, "environ", {NAMES[0]: "1"})
    assert variables.values() == ("1", None)
