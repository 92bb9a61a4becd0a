"""Mutations of program text, from single characters to parts of two programs put together."""

from __future__ import annotations

import re
from collections.abc import Callable

from gptrs.ir import OPS, dtypes
from gptrs_conformance.program_generator.dice import Dice

Mutation = Callable[[Dice, str, str], str]
"""Makes a text of a text, and of another one from which it may take parts."""

_TOKEN = re.compile(r'"[^"\n]*"|[%@]?[A-Za-z0-9_.]+|-?[0-9][0-9.e+-]*|->|\s+|.', re.DOTALL)
_NUMBER = re.compile(r"(?<![%@\w.])-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
_WORD = re.compile(r"[a-z_]+")

NUMBERS = (
    "0", "1", "-1", "2", "3", "7", "-0.0", "0.5", "255", "256", "65536", "2147483647",
    "2147483648", "4294967296", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "281474976710656", "1000000007", "1e308", "1e999", "1e-400", "inf",
    "-inf", "nan", "-nan",
    "0x10", "?0", "?0*2+1", "00", "1_000", "99999999999999999999",
)  # fmt: skip
CHARACTERS = '%@[](){}=:,->."/\\?+*-0aé\t\0\x7f\u2028\U0001f600 \n\r'
WORDS = (
    *sorted(OPS), *(dtype.name for dtype in dtypes.ALL), "true", "false", "none", "func", "return",
    "sum", "prod", "max", "min", "and", "or", "lt", "eq", "ne", "add", "mul", "replace", "splat",
    "hex", "then", "else", "condition", "body", "ptir.v0.5", "ptir.v0.4", "f8", "axis", "@main",
    "value", "dtype", "%0", "%1", "->",
)  # fmt: skip


def change_character(dice: Dice, text: str, other: str) -> str:
    """A character inserted, taken away or replaced."""
    at, kept = dice.below(len(text) + 1), dice.below(2)
    inserted = dice.pick(("", dice.pick(CHARACTERS)))
    return text[:at] + inserted + text[at + kept :]


def change_token(dice: Dice, text: str, other: str) -> str:
    """A token taken away, doubled, exchanged with another, or replaced by any."""
    tokens = _TOKEN.findall(text)
    if len(tokens) < 2:
        return text
    a, b = dice.below(len(tokens)), dice.below(len(tokens))
    action = dice.below(4)
    if action == 0:
        del tokens[a]
    elif action == 1:
        tokens.insert(b, tokens[a])
    elif action == 2:
        tokens[a], tokens[b] = tokens[b], tokens[a]
    else:
        tokens[a] = dice.pick(_TOKEN.findall(other) or [""])
    return "".join(tokens)


def change_line(dice: Dice, text: str, other: str) -> str:
    """A line taken away, doubled, moved, or taken from the other text."""
    lines = text.split("\n")
    at, to = dice.below(len(lines)), dice.below(len(lines))
    action = dice.below(4)
    if action == 0:
        del lines[at]
    elif action == 1:
        lines.insert(to, lines[at])
    elif action == 2:
        lines.insert(to, lines.pop(at))
    else:
        lines.insert(to, dice.pick(other.split("\n")))
    return "\n".join(lines)


def splice(dice: Dice, text: str, other: str) -> str:
    """The beginning of the one and the end of the other."""
    first, second = text.split("\n"), other.split("\n")
    return "\n".join(first[: dice.below(len(first) + 1)] + second[dice.below(len(second) + 1) :])


def change_number(dice: Dice, text: str, other: str) -> str:
    """A number exchanged for one at some edge."""
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    at = dice.pick(found)
    return text[: at.start()] + dice.pick(NUMBERS) + text[at.end() :]


def change_equal_numbers(dice: Dice, text: str, other: str) -> str:
    """A number exchanged wherever it stands, so that dims that agree still do."""
    found = _NUMBER.findall(text)
    if not found:
        return text
    old, new = (
        dice.pick(found),
        dice.pick(("0", "1", "2", "5", "64", "1000", "100000", "?0", "2*?1+1")),
    )
    return re.sub(rf"(?<![%@\w.-]){re.escape(old)}(?![\w.])", new, text)


def change_dtype(dice: Dice, text: str, other: str) -> str:
    """An element type exchanged for another, here or wherever it stands."""
    names = [dtype.name for dtype in dtypes.ALL]
    found = [match for match in re.finditer(r"\b[a-z0-9]+(?=\[)", text) if match.group() in names]
    if not found:
        return text
    at, new = dice.pick(found), dice.pick(names)
    if dice.chance(0.3):
        return text[: at.start()] + new + text[at.end() :]
    return re.sub(rf"\b{at.group()}\b", new, text)


def change_word(dice: Dice, text: str, other: str) -> str:
    """A word, such as the name of an op, an attribute or a kind, exchanged for another."""
    found = list(_WORD.finditer(text))
    if not found:
        return text
    at = dice.pick(found)
    return text[: at.start()] + dice.pick(WORDS) + text[at.end() :]


def nest(dice: Dice, text: str, other: str) -> str:
    """A token in many brackets, or many times over."""
    tokens = _TOKEN.findall(text)
    if not tokens:
        return text
    at, depth = dice.below(len(tokens)), dice.pick((1, 2, 33, 65, 300, 3000))
    opening, closing = dice.pick((("[", "]"), ("(", ")"), ("{", "}"), ("splat(", ")"), ("", ", 1")))
    tokens[at] = opening * depth + tokens[at] + closing * depth
    return "".join(tokens)


def repeat_lines(dice: Dice, text: str, other: str) -> str:
    """A few lines many times over."""
    lines = text.split("\n")
    at, length = dice.below(len(lines)), dice.between(1, 3)
    chunk = lines[at : at + length]
    return "\n".join(lines[:at] + chunk * dice.pick((2, 10, 300)) + lines[at + length :])


MUTATIONS: tuple[Mutation, ...] = (
    change_character, change_token, change_line, splice, change_number, change_number,
    change_equal_numbers, change_equal_numbers, change_dtype, change_dtype, change_word,
    change_word, nest, repeat_lines,
)  # fmt: skip


def mutated(dice: Dice, text: str, other: str) -> str:
    """`text` after a few mutations, none at all included."""
    for _ in range(dice.weighted(range(5), (1, 6, 4, 2, 1))):
        text = dice.pick(MUTATIONS)(dice, text, other)
    return text
