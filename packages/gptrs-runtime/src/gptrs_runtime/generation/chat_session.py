"""A conversation with a model. Each answer reuses the cached keys and values of previous turns."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import ModelError, UsageError
from gptrs.quoting import shown_value
from gptrs_runtime.chat.answer_reader import (
    AnswerEvent,
    AnswerForm,
    AnswerReader,
    CallArguments,
    CallStart,
    TextDelta,
    ThoughtsDelta,
)
from gptrs_runtime.chat.messages import Message, call_family, shown_marks, thought_marks
from gptrs_runtime.generation.keyword_options import generation_options, tells_options
from gptrs_runtime.generation.keywords import OptionFields
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.stream import TextStream
from gptrs_runtime.images.image_prompts import about_images, shown_tokens
from gptrs_runtime.loaded_model import LoadedModel

if TYPE_CHECKING:
    from gptrs_runtime.generation.outcome import Generation
    from gptrs_runtime.loaded_model import LoadedModel


# How a model's answers are read, and reading of complete answers.


_TAIL: Final = 64
"""Number of tokens at the end of a prompt that can contain a mark."""


class Call(Struct, frozen=True):
    """A tool call: the tool's name, and the arguments as a JSON object in text."""

    name: str
    arguments: str


class Answer(Struct, frozen=True):
    """An answer: its text without thoughts and calls; `reasoning` is None without thoughts."""

    text: str
    reasoning: str | None
    calls: tuple[Call, ...]


def answer_form(
    model: LoadedModel,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    several: bool = True,
    certain: bool = False,
) -> AnswerForm:
    """Return the answer format of a model, from the marks in its chat template.

    `tools` are those passed to the template; `several` and `certain` are as in `AnswerForm`.
    Without a template, the whole answer is text. UsageError for malformed tools, ModelError for a
    model whose calls cannot be read.
    """
    needs = dict(map(_tool, tools))
    try:
        template = model.chat_template(with_tools=bool(needs)).source
    except ModelError:
        if needs:
            raise
        return AnswerForm()
    calls = call_family(template, model.name) if needs else None
    thoughts = thought_marks(template, model.tokenizer)
    shown = shown_marks(model.tokenizer.special_pieces(), thoughts, calls)
    return AnswerForm(thoughts, calls, needs, several, certain, shown)


def _tool(tool: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the name of a tool, and whether it needs arguments."""
    function: dict[str, Any] = dict(tool.get("function", tool))
    name: object = function.get("name")
    parameters: object = function.get("parameters") or {}
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise UsageError(
            f"a tool has a name and perhaps parameters, got {shown_value(function)}",
            hint='write {"type": "function", "function": {"name": ..., "parameters": {...}}}',
        )
    return name, bool(cast("Mapping[str, Any]", parameters).get("required"))


def opens_thoughts(model: LoadedModel, form: AnswerForm, prompt: Sequence[int]) -> bool:
    """Return whether a prompt ends with the start of thoughts, so that the answer starts within
    them."""
    if form.thoughts is None:
        return False
    # Only the end: decoding a long conversation would take longer than the first token.
    tail = model.tokenizer.decode(list(shown_tokens(prompt))[-_TAIL:], special=True)
    return tail.rstrip().endswith(form.thoughts.begin.rstrip())


def answer_reader(
    model: LoadedModel, prompt: Sequence[int], tools: Sequence[Mapping[str, Any]] = ()
) -> AnswerReader:
    """Return a reader of the answer to the tokens of a prompt, which takes its pieces.

    The pieces must show the special tokens in `form.shown` of the reader:
    `stream(model, prompt, special=reader.form.shown)`. Raises the same errors as `answer_form`.
    """
    form = answer_form(model, tools)
    return AnswerReader(form, opened=opens_thoughts(model, form, prompt))


def read_answer(
    model: LoadedModel,
    generation: Generation,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    opened: bool | None = None,
) -> Answer:
    """Return thoughts, text and calls of an answer, whether or not its text shows special tokens.

    `tools` are those passed to the template. `opened` says whether it starts within thoughts; None
    derives it from the prompt. Pass False for a constrained text, which has no thoughts. Raises the
    same errors as `answer_form`.
    """
    form = answer_form(model, tools)
    if opened is None:
        opened = opens_thoughts(model, form, generation.prompt_token_ids)
    text = generation.text
    # A text without special tokens has lost the marks between thoughts and answer.
    if form.shown and not any(mark in text for mark in form.shown):
        text = _with_marks(model, generation, form.shown)
    reader = AnswerReader(form, opened=opened)
    return joined([*reader.push(text), *reader.finish()])


def thought_tokens(model: LoadedModel, reader: AnswerReader, tokens: Sequence[int]) -> int:
    """Return how many tokens of an answer are thoughts, including their marks."""

    def length(count: int) -> int:
        # Lengths of decoded beginnings, found by bisection: tokens do not align with characters.
        return len(model.tokenizer.decode(tokens[:count], special=reader.form.shown))

    counts = range(len(tokens) + 1)
    return sum(
        bisect_left(counts, end, key=length) - max(0, bisect_right(counts, begin, key=length) - 1)
        for begin, end in reader.thought_spans
    )


def joined(events: Sequence[AnswerEvent]) -> Answer:
    """Return the answer composed of its events."""
    calls: list[tuple[str, list[str]]] = []
    for event in events:
        if isinstance(event, CallStart):
            calls.append((event.name, []))
        elif isinstance(event, CallArguments):
            calls[event.index][1].append(event.text)
    return Answer(
        "".join(event.text for event in events if isinstance(event, TextDelta)),
        "".join(event.text for event in events if isinstance(event, ThoughtsDelta)) or None,
        tuple(Call(name, "".join(parts)) for name, parts in calls),
    )


def _with_marks(model: LoadedModel, generation: Generation, shown: frozenset[str]) -> str:
    """Return the text of a generation including hidden special tokens.

    A stop string and everything after it are excluded.
    """
    whole = model.tokenizer.decode(generation.token_ids, special=shown)
    if generation.finish_reason != "stop":
        return whole
    # The visible text was cut at a stop string; the whole one is cut at the same character.
    parts, room = list[str](), len(generation.text)
    for part in re.split(f"({'|'.join(map(re.escape, shown))})", whole):
        if part in shown:
            parts.append(part)
        else:
            parts.append(part[:room])
            room -= len(parts[-1])
            if len(parts[-1]) < len(part):
                break
    return "".join(parts)


class ChatSession:
    """A conversation with `model`, which may begin with a `system` message.

    Options are as for `stream`, for each answer; special tokens that mark thoughts are shown.
    ModelError for a model without tokenizer or chat template.
    """

    @tells_options
    def __init__(
        self,
        model: LoadedModel,
        options: GenerationOptions | None = None,
        system: str | None = None,
        **fields: Unpack[OptionFields],
    ) -> None:
        self.messages: list[Message] = conversation(system)
        self._model = model
        _ = model.tokenizer  # which must be there, too
        model.chat_template()
        self.options = generation_options(model, options, fields)

    @property
    def options(self) -> GenerationOptions:
        """The options of the next answer; without `special`, the marks of thoughts are shown."""
        return self._options

    @options.setter
    def options(self, options: GenerationOptions) -> None:
        special = options.special or answer_form(self._model).shown
        self._options = replace(options, special=special)

    def ask(self, text: str, images: Sequence[object] = ()) -> TextStream:
        """Return the answer to `text`; `remember` makes it part of the conversation.

        `images` stand before the text, for models that read them: paths of files, or ui8 [H, W, 3].

        ChatTemplateError if the template refuses the conversation, ContextLengthError if it does
        not fit; the conversation is then unchanged.
        """
        message = {"role": "user", "content": about_images(text, images)}
        return self._answer([*self.messages, message])

    def ask_again(self) -> TextStream:
        """Return another answer to the last message of the user, in place of the one it has.

        UsageError if there is no such message; further errors as in `ask`.
        """
        return self._answer(self.messages[: self._last_question() + 1])

    def undo(self) -> None:
        """Forget the last message of the user and the answer to it; UsageError if there is none."""
        self.messages = self.messages[: self._last_question()]

    def _answer(self, messages: list[Message]) -> TextStream:
        prompt = self._model.conversation_tokens(messages)
        answer = TextStream(self._model, prompt, self._options.for_stream())
        # After everything that may fail, so that an error leaves the conversation as it was.
        self.messages = messages
        return answer

    def _last_question(self) -> int:
        for index in reversed(range(len(self.messages))):
            if self.messages[index]["role"] == "user":
                return index
        raise UsageError("the conversation has no message of yours yet")

    def remember(self, answer: TextStream) -> None:
        """Add `answer`, or the part generated so far, to the conversation.

        Its thoughts become `reasoning_content` of the message, which templates may omit.
        """
        # Stops a generation that is still running: the conversation goes on without the rest.
        answer.close()
        made = read_answer(self._model, answer.generation)
        thoughts = {} if made.reasoning is None else {"reasoning_content": made.reasoning}
        self.messages.append({"role": "assistant", "content": made.text, **thoughts})


def conversation(system: str | None, *texts: str) -> list[Message]:
    """Return messages: `system`, if given, then the user's."""
    history: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*history, *({"role": "user", "content": text} for text in texts)]
