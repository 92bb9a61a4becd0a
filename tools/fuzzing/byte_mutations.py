"""Mutations of binary files: bytes lost, doubled and changed, numbers at their edges, parts cut."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzing import json_mutations
from gptrs_conformance.program_generator.dice import Dice

NUMBERS = (
    0, 1, 2, 3, 7, 31, 32, 33, 127, 128, 255, 256, 4095, 4096, 65535, 2**31 - 1, 2**31, 2**32 - 1,
    2**32, 2**47, 2**48, 2**48 + 1, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1,
)  # fmt: skip


def mutated(dice: Dice, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    """`data` after a few mutations, with parts of `other` and of `words`, mostly near its start."""
    result = bytearray(data)
    for _ in range(dice.weighted(range(1, 5), (6, 4, 2, 1))):
        _change(dice, result, other, words)
    return bytes(result)


def _change(dice: Dice, result: bytearray, other: bytes, words: Sequence[bytes]) -> None:
    limit = len(result) if dice.chance(0.4) else min(len(result), 64)
    at = dice.below(limit) if limit else 0
    action = dice.below(8)
    if action == 0:
        result[at : at + 1] = bytes([dice.below(256)])
    elif action == 1:
        del result[dice.below(len(result) + 1) :]
    elif action == 2:
        del result[at : at + dice.between(1, 9)]
    elif action == 3:
        result[at : at + dice.below(2) * 4] = dice.pick(words)
    elif action == 4:
        start = dice.below(len(other) + 1)
        result[at:at] = other[start : start + dice.between(1, 60)]
    elif action == 5:
        result += bytes(dice.pick((1, 8, 4000, 5000)))
    else:
        _set_number(dice, result, at)


def _set_number(dice: Dice, result: bytearray, at: int) -> None:
    """A little-endian number put in place of another one, or a little added to it."""
    size = dice.pick((1, 4, 4, 8, 16))
    before = int.from_bytes(result[at : at + size], "little")
    change = dice.pick((1, -1, 8, -8, before, 64))
    value = before + change if dice.chance(0.5) else dice.pick(NUMBERS)
    result[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")


def mutated_json(dice: Dice, text: bytes, other: bytes) -> bytes:
    """JSON text after mutations of its values or its characters."""
    changed = json_mutations.mutated(dice, text.decode(), other.decode())
    return changed.encode("utf-8", "replace" if dice.chance(0.9) else "surrogatepass")


def with_length(text: bytes, size: int) -> bytes:
    """The length of `text` as a little-endian number of `size` bytes, and `text`."""
    return len(text).to_bytes(size, "little") + text
