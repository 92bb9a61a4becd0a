"""Streamed text on standard output, and the figures after it."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from msgspec import UNSET
from typing_extensions import override

from gptrs.lazy_module import lazy_module
from gptrs.quoting import counted
from gptrs.spans import span
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.terminal.streams import has_colors, is_terminal, printable
from gptrs_runtime.chat.answer_reader import AnswerEvent, TextDelta, ThoughtsDelta
from gptrs_runtime.generation.chat_session import Answer, read_answer
from gptrs_runtime.generation.generate import Generation
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.results import GeneratedText, Guesses

if TYPE_CHECKING:
    from rich import cells
else:
    cells = lazy_module("rich.cells")  # only terminals need it

_PIECES = re.compile(r"\n|[^\S\n]+|[\u1100-\U0010ffff]|[^\s\u1100-\U0010ffff]+")
"""Line breaks, spaces, and words; a character that may be wide is one by itself."""
_FEWEST_FOR_RATE = 32
"""Least prompt tokens whose speed is shown: fewer take as long as one."""
_PRECISIONS = {
    "f32": "",
    "bf16": " in bf16 (`--precision f32` does not round products)",
    "int8": " in int8 (rounds activations to 8 bits; `--precision f32` does not)",
}


class Page:
    """Standard output while text arrives: unbuffered, and safe for a terminal.

    A pipe gets the text as it is; a terminal gets control characters escaped.
    """

    def __init__(self) -> None:
        self.is_terminal = is_terminal(sys.stdout)
        self._last = ""
        self._thinks = False

    def write(self, text: str, *, dim: bool = False) -> None:
        """Write more text; `dim` has an effect if the output has colors."""
        if text:
            with span("write text"):
                # A model may write escape sequences, which could rewrite the screen or the
                # clipboard.
                shown = printable(text) if self.is_terminal else text
                dim = dim and has_colors(sys.stdout)
                sys.stdout.write(typer.style(shown, dim=True) if dim else shown)
                # Each piece at once: into a pipe, Python would otherwise collect a buffer of some
                # KiB first.
                sys.stdout.flush()
            self._last = text[-1]

    def write_answer(self, events: Sequence[AnswerEvent]) -> None:
        """Write more of an answer; thoughts appear on terminals only, dim, before the text."""
        for event in events:
            if isinstance(event, ThoughtsDelta) and self.is_terminal:
                self.write(event.text, dim=True)
                self._thinks = True
            elif isinstance(event, TextDelta):
                self.write("\n\n" if self._thinks else "")
                self.write(event.text)
                self._thinks = False

    def end_line(self) -> None:
        """End the line, unless the text ended with a line break."""
        if self._last != "\n":
            sys.stdout.write("\n")
            sys.stdout.flush()


class WrappedPage(Page):
    """A page whose lines a terminal breaks between words instead of within one.

    The word that is still growing is held until it is whole: its length is not known before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._column = 0
        self._spaces, self._word, self._dim = "", "", False

    @override
    def write(self, text: str, *, dim: bool = False) -> None:
        """Write the whole words of more text."""
        if not self.is_terminal:
            super().write(text, dim=dim)
            return
        if dim != self._dim:
            self._finish_word()
            self._dim = dim
        for piece in _PIECES.findall(text):
            if piece == "\n":
                self._finish_word()
                self._put("\n")
                self._column = 0
            elif piece.isspace():
                self._finish_word()
                self._spaces += piece
            else:
                self._word += piece
                # Scripts without spaces would be one endless word, held back until the end of the
                # answer.
                if cells.cell_len(piece) > len(
                    piece
                ):  # wide characters: lines may break after each
                    self._finish_word()

    @override
    def end_line(self) -> None:
        self._finish_word()
        super().end_line()
        self._column = 0

    def _finish_word(self) -> None:
        spaces, word, self._spaces, self._word = self._spaces, self._word, "", ""
        if not word:
            self._spaces = spaces
            return
        # Tabs stop at multiples of 8 columns, so they are expanded behind what is on the line.
        before = len((" " * self._column + spaces).expandtabs(8))
        after = before + cells.cell_len(word)
        # At the start of a line a word stays, however long: a break before it would gain nothing.
        # The width is read for each word, since users resize the window while text arrives.
        if self._column and after > shutil.get_terminal_size().columns:
            self._put("\n")
            spaces, after = "", after - before
        self._put(spaces + word)
        self._column = after

    def _put(self, text: str) -> None:
        super().write(text, dim=self._dim)


def generated_text(result: Generation, answer: Answer | None = None) -> GeneratedText:
    """Return a text for JSON; for an `answer`, its content."""
    scores, guesses = result.logprobs, result.guesses
    thoughts = None if answer is None else answer.reasoning
    return GeneratedText(
        text=result.text if answer is None else answer.text,
        token_ids=result.token_ids,
        finish_reason=result.finish_reason,
        reasoning_content=UNSET if thoughts is None else thoughts,
        error=UNSET if result.error is None else result.error,
        logprobs=UNSET if scores is None else [each.told() for each in scores],
        guesses=UNSET if guesses is None else Guesses(guesses.proposed, guesses.accepted),
    )


def answer_of(request: GenerateRequest, model: LoadedModel, result: Generation) -> Answer:
    """Return the text of a conversation as an answer.

    With special tokens shown, all of it is content; a text of a form has no thoughts begun by the
    prompt.
    """
    if request.shows_special:
        return Answer(result.text, None, ())
    return read_answer(model, result, opened=False if request.form.given else None)


def shown_text(result: Generation, model: LoadedModel) -> str:
    """Return the text, or the tokens of a model without a tokenizer."""
    return result.text if model.has_tokenizer else as_numbers(result.token_ids)


def as_numbers(tokens: tuple[int, ...]) -> str:
    """Return the tokens as decimal numbers, each followed by a space."""
    return "".join(f"{token} " for token in tokens)


def figures(result: Generation, model: LoadedModel) -> str:
    """Return the counts of prompt and new tokens, and their speed, in one line."""
    timings = result.timings
    prompt = len(result.prompt_token_ids)
    parts = [f"prompt {counted(prompt, 'token')}"]
    if timings.prompt_tokens_per_s is not None and timings.first_token_s is not None:
        if prompt >= _FEWEST_FOR_RATE:
            parts[0] += f" at {timings.prompt_tokens_per_s:.0f} tok/s"
        parts.append(f"first token {timings.first_token_s * 1000:.0f} ms")
    decoded = f"{counted(len(result.token_ids), 'new token')}"
    if timings.decode_tokens_per_s is not None:
        decoded += f" at {timings.decode_tokens_per_s:.0f} tok/s"
    if result.finish_reason == "length":
        decoded += ", cut there (--max-tokens)"
    if result.guesses is not None and result.guesses.proposed:
        decoded += f", {result.guesses.accepted} of {result.guesses.proposed} guessed ones right"
    parts += [
        decoded,
        f"backend {model.backend.name}{_PRECISIONS[model.precision]}",
        f"loaded in {timings.load_s:.2f} s",
    ]
    return ", ".join(parts)
