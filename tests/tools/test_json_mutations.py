"""Mutations of JSON are repeatable, whatever was mutated before, and are always text."""

from fuzzing import json_mutations
from gptrs_conformance.program_generator.dice import Dice

TEXT = '{"a": [1, {"b": "f32[2]"}], "c": null}'


def test_mutations_do_not_depend_on_those_before() -> None:
    def mutations() -> list[str]:
        return [json_mutations.mutated(Dice(seed), TEXT, TEXT) for seed in range(3000)]

    before = repr(json_mutations.VALUES)
    assert mutations() == mutations()
    assert repr(json_mutations.VALUES) == before
