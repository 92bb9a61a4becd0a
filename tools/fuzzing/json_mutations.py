"""Mutations of the JSON form of programs: of the values that it holds, and of its text."""

from __future__ import annotations

import json
from copy import deepcopy

from fuzzing import text_mutations
from gptrs_conformance.program_generator.dice import Dice

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
Place = tuple[dict[str, Json] | list[Json], str | int]
"""A container and the key or index at which a value is in it."""

DEEP = "many brackets"
"""Stands for a list in a list, and so on."""
VALUES: tuple[Json, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, "", "x",
    "0", "main", "f32[2]", "f32[?0]", "f32[-1]", "si4[3]", "AAAA", "=", "\0", "\U0001f600", [], {},
    [[]], [0, 0], ["%0"], {"splat": 1}, {"base64": ""}, "ptir.v0.4", "inf", "nan", DEEP,
)  # fmt: skip


def places(value: Json) -> list[Place]:
    """Every place at which a value is, the outermost apart."""
    found: list[Place] = []
    pending = [value]
    while pending:
        container = pending.pop()
        if isinstance(container, dict):
            entries: list[tuple[str | int, Json]] = list(container.items())
        elif isinstance(container, list):
            entries = list(enumerate(container))
        else:
            continue
        found.extend((container, key) for key, _ in entries)
        pending.extend(inner for _, inner in entries)
    return found


def change_value(dice: Dice, value: Json, other: Json) -> None:
    """One value replaced, taken away, doubled, renamed, nested or exchanged with another."""
    inside = places(value)
    if not inside:
        return
    (container, key), (source, source_key) = dice.pick(inside), dice.pick(places(other) or inside)
    copy: Json = json.loads(json.dumps(source[source_key]))
    action = dice.below(6)
    if action == 0:
        container[key] = deepcopy(dice.pick(VALUES))
    elif action == 1:
        del container[key]
    elif action == 2:
        container[key] = copy
    elif action == 3 and isinstance(container, list):
        container.insert(dice.below(len(container) + 1), copy)
    elif action == 3:
        container[dice.pick((str(key) + "2", "op", "regions", "attributes"))] = copy
    elif action == 4:
        container[key] = nested(container[key], dice.pick((1, 4, 40, 200)))
    else:
        container[key] = _edge(dice, container[key])


def nested(value: Json, depth: int) -> Json:
    """`value` in that many lists."""
    for _ in range(depth):
        value = [value]
    return value


def _edge(dice: Dice, value: Json) -> Json:
    """A value of the same kind, but at some edge."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return dice.pick((0, 1, -1, 2, 5, 2**31, 2**47, 2**63, -(2**63), 1.5, value + 1))
    if isinstance(value, str):
        return text_mutations.mutated(dice, value, "f32[2, 3] %0 @main sum")
    if isinstance(value, list):
        return value * dice.pick((0, 2, 50))
    return {**value, **{f"{key} ": entry for key, entry in value.items()}}


def mutated(dice: Dice, text: str, other: str) -> str:
    """The JSON text `text` after a few mutations of its values, or of its characters."""
    if dice.chance(0.2):
        return text_mutations.mutated(dice, text, other)
    value, second = json.loads(text), json.loads(other)
    for _ in range(dice.weighted(range(5), (1, 6, 4, 2, 1))):
        change_value(dice, value, second)
    # Deeper than the encoder goes.
    return json.dumps(value).replace(json.dumps(DEEP), "[" * 3000 + "]" * 3000)
