"""`gptrs chat`: talks with a model."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import platformdirs
import typer
from msgspec import Struct, field

from gptrs.errors import UsageError
from gptrs.quoting import quoted
from gptrs_cli.chat.conversation import COMMANDS, Conversation, is_command
from gptrs_cli.generate.options import (
    AnswerFields,
    BatchOptions,
    ChoiceOptions,
    FormOptions,
    OutputOptions,
    PromptOptions,
    TemplateVariables,
)
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.loading import observed
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, AdapterOption, ModelOption, Settings
from gptrs_cli.terminal.streams import complain, has_colors, is_terminal, note


class ConversationOptions(Struct, frozen=True):
    """How a conversation begins, and whether figures follow each answer."""

    system: Annotated[
        str | None, option("--system", "Begin with this system message.", metavar="TEXT")
    ] = None
    load: Annotated[
        Path | None,
        option("--load", "Continue a conversation that /save wrote.", metavar="FILE"),
    ] = None
    image: Annotated[
        list[Path],
        option("--image", "Attach this image to the first message; repeatable.", metavar="FILE"),
    ] = field(default_factory=list[Path])
    template_var: TemplateVariables = field(default_factory=list[str])
    stats: Annotated[
        bool, option("--stats", "Show counts and speed after each answer, as /stats on does.")
    ] = False

    @property
    def prompt(self) -> PromptOptions:
        """Return the beginning of the first message, in the form of `gptrs generate`."""
        variables, images = self.template_var, self.image
        return PromptOptions(chat=True, system=self.system, template_var=variables, image=images)


@command_options(*MODEL)
def chat(
    *,
    ctx: typer.Context,
    named: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="A model with a chat template: a folder, a file (.gptrschk, .gguf), or"
            " ORG/NAME[@REVISION][:Q4_K_M] of the Hugging Face hub; `gptrs models list` shows those"
            " here.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    conversation: ConversationOptions,
    choice: ChoiceOptions,
    given: AnswerFields,
    form: FormOptions,
    settings: Settings,
) -> None:
    """Talk with a model, line by line.

    /help lists the commands of a conversation. Ctrl-C stops an answer, Ctrl-D ends the
    conversation. In a pipe, each line is a message. GPTRS_CHAT_HISTORY names the file that keeps
    the lines you type; `off` keeps none.
    """
    if settings.json:
        raise UsageError(
            "a conversation has no JSON form", hint="use `gptrs generate --chat --json`"
        )
    path = _one_model(named, model)
    prompt = conversation.prompt
    output = OutputOptions()
    request = GenerateRequest(
        path, prompt, BatchOptions(), given, output, form, choice.greedy, adapter
    )
    request.check(ctx, as_json=False)
    start = ChatStart(conversation.load, conversation.stats)
    with observed(settings):
        exit_code = converse(request, start, settings)
    if exit_code:
        raise typer.Exit(exit_code)


def _one_model(named: Path | None, model: Path | None) -> Path | None:
    if named is not None and model is not None:
        raise UsageError("`MODEL` and `--model` exclude each other", hint="give one")
    return named or model


# Messages from the user: edited lines with history and completion, or the lines of a pipe.


try:
    import readline
except ImportError:  # lines are then neither edited nor remembered
    readline = None

_PROMPT = "> "
_MORE = ". "
_BLOCK = '"""'
_MOST_LINES = 1000
_VARIABLE = "GPTRS_CHAT_HISTORY"


class Reader:
    """A reader of messages; use it as a context manager, which saves the history.

    On a terminal, a line that ends in a backslash continues on the next one, and lines between two
    lines of three quotation marks are one message. In a pipe, each line is a message.
    """

    def __init__(self, commands: Iterable[str]) -> None:
        self._is_terminal = is_terminal(sys.stdin)
        self._history = history_file() if self._is_terminal and readline is not None else None
        self._commands = [f"/{name}" for name in commands]
        self._known = 0

    def __enter__(self) -> Reader:
        if readline is not None and self._is_terminal:
            readline.set_completer(self._completion)
            # By default `/` ends a word, and no command would be completed.
            readline.set_completer_delims("")
            readline.parse_and_bind("tab: complete")
            if self._history is not None:
                # The first conversation has no history yet.
                with contextlib.suppress(OSError):
                    readline.read_history_file(self._history)
            readline.set_history_length(_MOST_LINES)
            # Only later lines are appended at the end: a conversation beside this one may write,
            # too.
            self._known = readline.get_current_history_length()
        return self

    def __exit__(self, *exception: object) -> None:
        if readline is not None and self._history is not None:
            try:
                _append(self._history, self._known)
            except OSError as error:
                shown = quoted(str(self._history), 200)
                complain("warning", f"the history is not kept in {shown}: {error.strerror}")

    def message(self) -> str | None:
        """Return the next message, "" after Ctrl-C, None at the end of the input."""
        if not self._is_terminal:
            # Not by `input`, which would write its prompt to standard output.
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            return _typed()
        except KeyboardInterrupt:
            print(flush=True)
            return ""
        except EOFError:
            print(flush=True)
            return None

    def _completion(self, text: str, number: int) -> str | None:
        found = [command for command in self._commands if text and command.startswith(text)]
        return found[number] if number < len(found) else None


def history_file() -> Path | None:
    """Return the file that keeps lines between conversations; None if there is none.

    `GPTRS_CHAT_HISTORY` names another file; `off` keeps nothing.
    """
    named = os.environ.get(_VARIABLE)
    if named == "off":
        return None
    folder = platformdirs.user_state_path("gptrs")
    return Path(named).expanduser() if named else folder / "chat_history"


def _typed() -> str:
    line = input(_shown(_PROMPT))
    if line.strip() == _BLOCK:
        return "\n".join(iter(lambda: input(_shown(_MORE)), _BLOCK))
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input(_shown(_MORE)))
    return "\n".join(lines)


def _shown(prompt: str) -> str:
    """Return the prompt, in colour if there is any; marks tell readline its printed width."""
    if not has_colors(sys.stdout):
        return prompt
    start, end = typer.style("|", fg="green", bold=True).split("|")
    left, right = ("\001", "\002") if readline is not None else ("", "")
    return f"{left}{start}{right}{prompt}{left}{end}{right}"


def _append(file: Path, known: int) -> None:
    """Append the lines after the first `known` ones to `file`, which only its owner can read."""
    assert readline is not None
    new = readline.get_current_history_length() - known
    if new > 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Created here, since readline would give it the permissions of the umask.
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
        readline.append_history_file(new, file)


# A conversation: a line is a message, Ctrl-C stops an answer, Ctrl-D ends the program.


class ChatStart(Struct, frozen=True):
    """A conversation to continue, and whether figures follow each answer."""

    load: Path | None
    stats: bool


def converse(request: GenerateRequest, start: ChatStart, settings: Settings) -> int:
    """Answer one message after another until the input ends; return the exit code.

    In a pipe, the exit code is that of the first message that cannot be answered.
    """
    talk = Conversation(request, settings, stats=start.stats)
    for image in request.prompt.image:
        talk.show(str(image))
    if start.load is not None:
        talk.load(str(start.load))
    on_terminal = is_terminal(sys.stdin)
    if on_terminal:
        note(f"{talk.model.name}: Ctrl-C ends an answer, Ctrl-D the conversation; /help lists more")
    with Reader(COMMANDS) as reader:
        while (text := reader.message()) is not None:
            if not text.strip():
                continue
            if on_terminal and is_command(text):
                if not talk.run(text):
                    break
            else:
                talk.answer(text, strict=not on_terminal)
            if on_terminal and not is_command(text):
                print(flush=True)
    return 0
