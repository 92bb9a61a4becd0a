"""Random answers of models, and what a reader is to find in them: an oracle that reads nothing."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import dataclass, field

from gptrs_runtime.chat.answer_reader import AnswerForm, AnswerReader
from gptrs_runtime.chat.messages import CallFamily, ThoughtMarks
from gptrs_runtime.generation.chat_session import Answer, Call, joined

TOOLS = {"now": False, "f": False, "find.it-2": True}
"""Tools by name, and whether they need arguments."""
_CUT = "\0"
_WORDS = (
    *("see", "a < b", 'say "x"', "{}", '{"a": [1]}', "naïve 你好", "```\n", "]", "\n", "\n\n", " "),
    *("\\", "</", "<tool", "[TOOL", "<thin", "<|", "tool_call", "  ", "it; is, so"),
)


@dataclass
class Script:
    """An answer as it is written, with what it is made of."""

    text: str = ""
    shown: str = ""
    """The text for the user, with a mark where something is taken out."""
    thoughts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.text += text
        self.shown += text

    def take_out(self, text: str) -> None:
        self.text += text
        self.shown += _CUT

    @property
    def answer(self) -> Answer:
        """What a reader is to find: no blanks at an end where something was taken out."""
        shown = self.shown
        first, last = (re.search(p, shown)[0] for p in (rf"^[\s{_CUT}]*", rf"[\s{_CUT}]*$"))
        if _CUT in first:
            shown = shown[len(first) :]
        if _CUT in last and shown:
            shown = shown[: -len(last)]
        thoughts = "\n\n".join(filter(None, map(str.strip, self.thoughts)))
        return Answer(shown.replace(_CUT, ""), thoughts or None, tuple(self.calls))


def random_answer(
    rng: random.Random, family: CallFamily, thoughts: ThoughtMarks | None, *, opened: bool
) -> Script:
    """Prose, stray marks, thoughts with drafts of calls in them, calls, and what is nearly one."""
    made = Script()
    writer = _Writer(rng, family)
    if thoughts is not None and opened:
        inner = writer.draft()
        made.thoughts.append(inner)
        made.take_out(inner + thoughts.end)
    for _ in range(rng.randrange(8)):
        kind = rng.choice(["prose", "prose", "stray", "thoughts", "call", "call", "wrong"])
        if kind == "thoughts" and thoughts is not None:
            _think(made, writer.draft(), thoughts, rng)
        elif kind == "call":
            text, calls = writer.calls()
            made.take_out(text)
            made.calls.extend(calls)
        elif kind == "wrong":
            made.say(f"x{rng.choice(['', ' '])}{writer.wrong()}{rng.choice(['.', ' y', chr(10)])}")
        elif kind == "stray":
            made.say(f"a {rng.choice(writer.strays(thoughts))} b")
        else:
            made.say(rng.choice(["", "Well", "\n"]) + writer.prose())
    if rng.random() < 0.2:
        made.say("z" + writer.endless())
    return made


def _think(made: Script, inner: str, marks: ThoughtMarks, rng: random.Random) -> None:
    """Add thoughts, which begin on a line of their own."""
    line = made.text[made.text.rfind("\n") + 1 :]
    if line.strip() and not made.shown.endswith(_CUT):
        made.say("\n")
    made.thoughts.append(inner)
    made.take_out(f"{marks.begin}{inner}{marks.end}")
    made.say(rng.choice(["", "\n", "\n\n"]))


class _Writer:
    """Writes what models of a family write."""

    def __init__(self, rng: random.Random, family: CallFamily) -> None:
        self.rng, self.family = rng, family
        self.mark = family.marks[0]

    def prose(self) -> str:
        words = self.rng.choices(_WORDS, k=self.rng.randrange(5))
        return "w " + " ".join(words) if words else ""

    def strays(self, thoughts: ThoughtMarks | None) -> list[str]:
        within = [] if thoughts is None else [thoughts.begin.strip(), thoughts.end]
        found = [self.mark, f"{self.mark} [", f"`{self.mark}`", *within]
        return [mark for mark in found if mark not in ("<|end|>", "<|channel|>")]

    def draft(self) -> str:
        parts = [self.prose, lambda: f" {self.mark} ", lambda: self.calls()[0], self.wrong]
        return "".join(self.rng.choice(parts)() for _ in range(self.rng.randrange(4)))

    def value(self) -> object:
        text = f'}} ]}} "{self.mark}" \\ é \n </tool_call> <think>'
        return self.rng.choice([1, -2.5e3, None, True, text, [], {"b": [{}, text]}, ""])

    def json(self, value: object) -> str:
        separators = self.rng.choice([(",", ":"), (", ", ": "), (" ,\n", " :\t")])
        ascii_only = self.rng.random() < 0.5
        return json.dumps(value, ensure_ascii=ascii_only, separators=separators)

    def arguments(self) -> str:
        keys = self.rng.sample(["a", 'q"', "name", "arguments"], self.rng.randrange(3))
        return self.json({key: self.value() for key in keys})

    def call(self) -> tuple[str, Call]:
        """One call, in one of the ways in which models write it."""
        name, given = self.rng.choice(list(TOOLS)), self.arguments()
        if not self.family.arguments_key:
            return f"{name}{self.family.name_end}{given}", Call(name, given)
        stated = given
        key = self.rng.choice(["arguments", "parameters"])
        way = self.rng.random()
        if way < 0.15:
            stated = json.dumps(given)
        elif way < 0.3 and not TOOLS[name]:
            stated, given = "null", "{}"
        parts = [f'"name": {json.dumps(name)}', f'"{key}": {stated}', '"id": "}{"']
        if way < 0.2 and stated == "null":
            del parts[1]
        self.rng.shuffle(parts)
        return "{" + ", ".join(parts[: self.rng.choice([3, 3, len(parts)])]) + "}", Call(
            name, given
        )

    def calls(self) -> tuple[str, list[Call]]:
        """Calls from the mark to what ends them."""
        family, blank = self.family, self.rng.choice(["", " ", "\n"])
        made = [self.call() for _ in range(self.rng.randint(1, 3) if family.between.strip() else 1)]
        text = f"{blank}{family.between.strip()} ".join(text for text, _ in made)
        if family.end:
            text = f"[{blank}{text}{blank}{family.end}"
        elif family.closing and self.rng.random() < 0.9:
            text += f"{blank}{family.closing.strip()}"
        named = not family.arguments_key
        return f"{self.mark}{'' if named else blank}{text}", [call for _, call in made]

    def wrong(self) -> str:
        """Text that begins like a call, and is none."""
        if not self.family.arguments_key:
            return self.rng.choice([
                f"{self.mark}zzz{self.family.name_end}{self.arguments()}",
                f"{self.mark}f {{}}",
                f"{self.mark}{self.family.name_end}{{}}",
                f'{self.mark}f{self.family.name_end}{{"a" 1}}',
                f"{self.mark}f{self.family.name_end}[]",
            ])  # fmt: skip
        opening = f"{self.mark}{self.rng.choice(['', ' ', chr(10)])}"
        opening += self.family.begin[-1:] if self.family.end else ""
        closing = self.family.closing or self.family.end
        bodies = [
            f'{{"name": "zzz", "arguments": {self.arguments()}}}',
            '{"name": "find.it-2", "arguments": null}',
            '{"name": "find.it-2"}',
            '{"name": "f", "arguments": 3}',
            '{"name": "f", "arguments": "no JSON"}',
            '{"name": "f", "arguments": "[1]"}',
            '{"name": ["f"], "arguments": {}}',
            '{"arguments": {}}',
            "{'name': 'f'}",
            '{"name": "f", "arguments": {"a": 1,}}',
            '{"name": "f", "arguments": {"a": tru}}',
            '{"name": "f", "arguments": {"a": 01}}',
            '{"name": "f", "arguments": {"a": "\\x"}}',
            '{"name": "f", "arguments": {"a": "\n"}}',
            '{"name": "f", "arguments": {"a": 1}]',
            '{"name": "f" "arguments": {}}',
            "{}",
            "[[]]",
            "f()",
        ]
        return opening + self.rng.choice(bodies) + closing

    def endless(self) -> str:
        """The beginning of a call that the answer ends in."""
        text = f"{self.mark}{self.call()[0]}"
        return text[: self.rng.randrange(len(self.mark), text.rindex("}"))]


def cut(text: str, places: list[int]) -> list[str]:
    """The text in pieces that begin at these places, which may be equal."""
    begins = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(begins)]


def read(form: AnswerForm, pieces: list[str], *, opened: bool = False) -> Answer:
    """What a reader finds in an answer that comes in pieces."""
    reader = AnswerReader(form, opened=opened)
    events = [event for piece in pieces for event in reader.push(piece)]
    return joined([*events, *reader.finish()])
