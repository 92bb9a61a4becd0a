"""Incremental reader of answers: thoughts, text for the user, and tool calls. Text that only looks
like a call is kept verbatim, and reading continues after it. Thoughts contain no calls. The events
do not depend on how the text is split into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from msgspec import Struct, field

from gptrs_runtime.chat.call_text import CallText
from gptrs_runtime.chat.messages import CallFamily, ThoughtMarks


class ThoughtsDelta(Struct, frozen=True):
    """Thoughts, which are not part of the text; surrounding blanks are dropped."""

    text: str


class TextDelta(Struct, frozen=True):
    """Text that is not a call; blanks between it and a mark are dropped if no text follows."""

    text: str


class CallStart(Struct, frozen=True):
    """A call begins: its index, and the tool that it calls."""

    index: int
    name: str


class CallArguments(Struct, frozen=True):
    """More of the arguments of a call: a piece of JSON."""

    index: int
    text: str


AnswerEvent = ThoughtsDelta | TextDelta | CallStart | CallArguments


class AnswerForm(Struct, frozen=True):
    """The format of a model's answers.

    `tools` maps names to whether a tool needs arguments; without `calls` no calls are read. Without
    `several` all calls but the first are dropped. `certain` calls are constrained by a grammar, so
    their arguments are reported as they grow; others are reported when complete. `shown` are the
    special tokens that the text must include.
    """

    thoughts: ThoughtMarks | None = None
    calls: CallFamily | None = None
    tools: Mapping[str, bool] = field(default_factory=dict[str, bool])
    several: bool = True
    certain: bool = False
    shown: frozenset[str] = frozenset()

    @property
    def is_plain(self) -> bool:
        """Whether all of an answer is text."""
        return self.thoughts is None and self.calls is None


class AnswerReader:
    """Reads one answer; it starts within thoughts if the prompt has `opened` them.

    Thoughts start at the beginning of a line, otherwise their mark is text. Several thoughts are
    joined by an empty line. Blanks around removed calls are kept if text follows.
    """

    def __init__(self, form: AnswerForm, *, opened: bool = False) -> None:
        self.calls = 0
        self.thought_spans: list[tuple[int, int]] = []
        """Start and end of thoughts, marks included, in the text read so far."""
        self.form = form
        self._state: Literal["text", "thoughts", "call", "after"] = "text"
        self._held = ""
        """Text not processed yet."""
        self._read = 0
        """Number of characters before it."""
        self._blanks = ""
        """Blanks that belong to the text if more text follows."""
        self._thought_blanks = ""
        """Blanks that belong to the thoughts if more thoughts follow."""
        self._said = False
        """Whether there was any text."""
        self._in_line = False
        """Whether there is text in the line so far."""
        self._cut = False
        """Whether a mark, or the marked part, was removed after the last text."""
        self._is_marked = False
        """Whether the answer has marks of `ThoughtMarks`."""
        self._thought = False
        """Whether there were thoughts."""
        self._begun = False
        """Whether there was something in the thoughts that are read."""
        self._call = CallText(CallFamily(()), {}, 0, in_list=False)
        self._reported: int | None = None
        """How many characters of a growing call's arguments were reported."""
        self._was_call = False
        """Whether the object that ended is a call."""
        self._steps = {
            "text": self._in_text,
            "thoughts": self._in_thoughts,
            "call": self._in_call,
            "after": self._in_after,
        }
        self._marks = self._text_marks()
        self._pattern = _any_of(self._marks)
        if form.thoughts is not None and opened:
            self._open_thoughts()

    def push(self, text: str) -> list[AnswerEvent]:
        """Return the events that `text` adds."""
        self._held += text
        return self._events(final=False)

    def finish(self) -> list[AnswerEvent]:
        """Return the remaining events once the answer has ended."""
        found = self._events(final=True)
        if self._state == "thoughts":
            self._close_thoughts()
        elif self._blanks and not self._cut:
            found.append(TextDelta(self._blanks))
        return found

    def _events(self, *, final: bool) -> list[AnswerEvent]:
        found: list[AnswerEvent] = []
        while self._steps[self._state](found, final):
            pass
        if self.form.several:
            return found
        return [each for each in found if getattr(each, "index", 0) == 0]

    def _text_marks(self) -> tuple[str, ...]:
        form = self.form
        thoughts = () if form.thoughts is None else (form.thoughts.begin, *form.thoughts.around)
        return thoughts if form.calls is None else (*thoughts, form.calls.marks[0])

    def _take(self, count: int) -> str:
        """Consume and return this many of the held characters."""
        taken, self._held = self._held[:count], self._held[count:]
        self._read += count
        return taken

    # Text

    def _in_text(self, found: list[AnswerEvent], final: bool) -> bool:
        """Read up to a mark; like all steps, return whether there is more to do."""
        calls, thoughts = self.form.calls, self.form.thoughts
        if calls is not None and calls.bare and not self._said and not self.calls:
            blanks = len(self._held) - len(self._held.lstrip())
            self._say(self._take(blanks), found)
            if self._held.startswith("{"):
                return self._try_call(0)
        mark = self._pattern.search(self._held)
        if mark is None:
            kept = 0 if final else _begun_length(self._held, self._marks)
            self._say(self._take(len(self._held) - kept), found)
            return False
        self._say(self._take(mark.start()), found)
        if calls is not None and mark[0] == calls.marks[0]:
            return self._try_call(len(mark[0]))
        if thoughts is not None and mark[0] == thoughts.begin and not self._in_line:
            self._open_thoughts()
            self._take(len(mark[0]))
        elif mark[0] in self._marks[1:] and (self._is_marked or not self._said):
            self._take(len(mark[0]))
            self._leave_out()
            self._is_marked = True
        else:
            self._say(self._take(len(mark[0])), found)
        return True

    def _say(self, text: str, found: list[AnswerEvent]) -> None:
        if not text:
            return
        last = text[text.rfind("\n") + 1 :]
        self._in_line = bool(last.strip()) or (self._in_line and "\n" not in text)
        whole = self._blanks + text
        said = whole.rstrip()
        self._blanks = whole[len(said) :]
        if said:
            found.append(TextDelta(said.lstrip() if self._cut and not self._said else said))
            self._said, self._cut = True, False

    def _leave_out(self) -> None:
        """Record that a mark, or the marked part, is not in the text."""
        self._cut, self._in_line = True, False
        if not self._said:
            self._blanks = ""

    # Thoughts

    def _open_thoughts(self) -> None:
        self._state, self._begun, self._is_marked = "thoughts", False, True
        self._leave_out()
        self._thought_blanks = ""
        self.thought_spans.append((self._read, self._read))

    def _close_thoughts(self) -> None:
        self._state = "text"
        self.thought_spans[-1] = self.thought_spans[-1][0], self._read

    def _in_thoughts(self, found: list[AnswerEvent], final: bool) -> bool:
        assert self.form.thoughts is not None
        begin, end = self.form.thoughts.begin, self.form.thoughts.end
        if not self._begun:  # some models repeat the mark that their prompt ends in
            while (rest := self._held.lstrip()).startswith(begin):
                self._take(len(self._held) - len(rest) + len(begin))
            if begin.startswith(rest) and not final:
                return False
        at = self._held.find(end)
        kept = 0 if final else _begun_length(self._held, [end])
        self._think(self._take(len(self._held) - kept if at < 0 else at), found)
        if at < 0:
            return False
        self._take(len(end))
        self._close_thoughts()
        return True

    def _think(self, text: str, found: list[AnswerEvent]) -> None:
        whole = self._thought_blanks + text
        thought = whole.rstrip()
        self._thought_blanks = whole[len(thought) :]
        if not thought:
            return
        if not self._begun:
            thought = ("\n\n" if self._thought else "") + thought.lstrip()
            self._begun = self._thought = True
        found.append(ThoughtsDelta(thought))

    # Calls

    def _try_call(self, begin: int, *, in_list: bool = True) -> bool:
        calls = self.form.calls
        assert calls is not None
        in_list = in_list and bool(calls.end)
        self._call = CallText(calls, self.form.tools, begin, in_list=in_list)
        self._state, self._reported = "call", None
        return True

    def _in_call(self, found: list[AnswerEvent], final: bool) -> bool:
        call = self._call
        call.read(self._held)
        if call.state == "open" and not final:
            self._tell_begun(found)
            return False
        made = call.call(self._held) if call.state == "whole" else None
        if made is not None:
            self._tell(*made, found)
            self._end_call(call.end)
        elif self._reported is not None:  # its start was already reported
            self._tell_begun(found)
            self._end_call(len(self._held) if call.state == "open" else call.end)
        elif call.state == "whole":
            self._say(self._take(call.end), found)
            self._state, self._was_call = "after", False
        else:  # the mark is text, and the following characters are read as text
            self._state = "text"
            self._say(self._take(max(1, call.begin)), found)
        return True

    def _tell_begun(self, found: list[AnswerEvent]) -> None:
        made = self._call.begun(self._held) if self.form.certain else None
        if made is not None:
            self._tell(*made, found)

    def _tell(self, name: str, arguments: str, found: list[AnswerEvent]) -> None:
        """Report the new part of a call."""
        if self._reported is None:
            found.append(CallStart(self.calls, name))
            self._reported = 0
        if len(arguments) > self._reported:
            found.append(CallArguments(self.calls, arguments[self._reported :]))
            self._reported = len(arguments)

    def _end_call(self, end: int) -> None:
        self._take(end)
        self.calls += 1
        self._leave_out()
        self._state, self._was_call = "after", True

    def _in_after(self, found: list[AnswerEvent], final: bool) -> bool:
        """Read the tail after a call, or the continuation of a list of calls."""
        calls = self.form.calls
        assert calls is not None
        rest = self._held.lstrip()
        blanks = len(self._held) - len(rest)
        ends = [calls.closing.strip(), calls.end] if self._was_call else []
        marks = [mark for mark in (*ends, calls.between.strip()) if mark]
        mark = next((mark for mark in marks if rest.startswith(mark)), None)
        if mark is None and any(each.startswith(rest) for each in marks):
            if not final:
                return False
            if rest and self._was_call:  # the answer ended within the mark
                self._take(len(self._held))
        if mark is None:
            self._state = "text"
        elif mark in ends:
            self._take(blanks + len(mark))
            self._state = "text"
        else:
            return self._try_call(blanks + len(mark), in_list=False)
        return True


def _any_of(marks: Collection[str]) -> re.Pattern[str]:
    """Return a pattern of any of the marks, the longest where several fit."""
    by_length = sorted(marks, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, by_length)) or "(?!)")


def _begun_length(text: str, marks: Collection[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of a mark."""
    firsts = {mark[0] for mark in marks}
    longest = max(map(len, marks), default=1) - 1
    for at in range(max(0, len(text) - longest), len(text)):
        if text[at] in firsts:
            end = text[at:]
            if any(mark.startswith(end) for mark in marks if len(mark) > len(end)):
                return len(end)
    return 0
