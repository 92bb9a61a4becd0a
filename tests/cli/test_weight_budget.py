"""`--weight-budget`: the same output in less memory, and a line that says so."""

from __future__ import annotations

import pytest

GENERATE = ("generate", "--prompt-ids", "5,7,9", "--max-tokens", "4", "--greedy")
FORWARD = ("forward", "--tokens", "5,7,9")
ON = "weight streaming is on: "


@pytest.mark.parametrize("command", [GENERATE, FORWARD])
def test_the_output_is_the_same(gptrs, command):
    whole = gptrs(*command, "--backend", "ref")
    streamed = gptrs(*command, "--backend", "ref", "--weight-budget", "60%")
    assert streamed.code == whole.code == 0
    assert streamed.out == whole.out
    assert ON in streamed.err
    assert ON not in whole.err


def test_other_ways_of_generating_keep_to_it(gptrs, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n', encoding="utf-8")
    arguments = ("--prompts", prompts, "--max-tokens", "2", "--backend", "ref")
    assert ON in gptrs("generate", *arguments, "--weight-budget", "60%").err


def test_a_wrong_size_is_named(gptrs):
    result = gptrs(*GENERATE, "--weight-budget", "2 parsecs")
    assert result.code == 2
    assert "`weight_budget` must be a size above 0" in result.err
    assert "'2 parsecs'" in result.err


def test_too_little_says_how_much_it_takes(gptrs):
    result = gptrs(*GENERATE, "--backend", "ref", "--weight-budget", "1kB")
    assert result.code == 3
    assert "a weight budget of 1000 bytes is too small" in result.err
