"""`gptrs chat`: talks with a model."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import platformdirs
import typer

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import GptrsError, ModelError, NoTokenError, UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import counted, did_you_mean, quoted
from gptrs.strict_json import parse_object
from gptrs_cli.generate.generation_options import generation_options
from gptrs_cli.generate.options import (
    AnswerFields,
    BatchOptions,
    ChoiceOptions,
    FormOptions,
    OutputOptions,
    PromptOptions,
    TemplateVariables,
    template_variables,
)
from gptrs_cli.generate.page import WrappedPage, figures, write_stream
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import MODEL, AdapterOption, ModelOption, Settings, model_shown
from gptrs_cli.terminal.failures import InputFileError, Waiting
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.streams import complain, has_colors, is_terminal, note
from gptrs_runtime.chat.messages import checked_messages
from gptrs_runtime.generation.chat_session import ChatSession, answer_reader, conversation
from gptrs_runtime.generation.options import all_options
from gptrs_runtime.generation.outcome import Generation
from gptrs_runtime.generation.stream import TextStream
from gptrs_runtime.images.decoding import read_image
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.option_fields import OptionField


@dataclass(frozen=True)
class ConversationOptions:
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
        option(
            "--image", "Attach this image to the first message; can be repeated.", metavar="FILE"
        ),
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
    # Imported late: the help and usage errors need nothing that runs models.
    loop = importlib.import_module("gptrs_cli.commands.chat")
    start = loop.ChatStart(conversation.load, conversation.stats)
    observed = importlib.import_module("gptrs_cli.loading").observed
    with observed(settings):
        exit_code = loop.converse(request, start, settings)
    if exit_code:
        raise typer.Exit(exit_code)


def _one_model(named: Path | None, model: Path | None) -> Path | None:
    if named is not None and model is not None:
        raise UsageError("`MODEL` and `--model` exclude each other", hint="give one")
    return named or model


# Commands of a conversation on a terminal: lines that begin with `/`.


_HELP = """\
/help             show this
/set NAME VALUE   change an option of the next answers: /set temperature 0.7; without VALUE, back
                  to the default of the model; without NAME, show those that are set
/regenerate       answer the last message again
/undo             forget the last message and its answer
/model NAME       go on with another model; without NAME, show the one that answers
/system TEXT      forget the conversation and begin one with this system message; without TEXT, none
/reset            forget the conversation, except the system message
/save FILE        write the conversation to a new JSON file
/load FILE        go on with the conversation of such a file
/image FILE       show an image with the next message
/stats            show counts and speed of the last answer; `/stats on` after each, `/stats off`
/exit             end, as Ctrl-D does
A line that ends in \\ goes on in the next. Lines between two of three quotation marks are one."""
COMMANDS = tuple(line.split()[0][1:] for line in _HELP.splitlines() if line.startswith("/"))
"""The names of all commands."""


def is_command(text: str) -> bool:
    """Return whether a line begins with `/` and a word, and not with a path."""
    word = text.partition(" ")[0]
    return word.startswith("/") and word[1:].isalpha()


class Conversation:
    """A conversation and the commands that change it; `last` is its last answer.

    `images` go with the next message; `stats`: show figures after each answer.
    """

    def __init__(self, request: GenerateRequest, settings: Settings, *, stats: bool) -> None:
        """Load the model of the request; raise what `load_model` and the options raise."""
        self.last: Generation | None = None
        self.stats = stats
        self.images: list[str] = []
        self._request, self._settings = request, settings
        self.model, self.session = self._begun(request, request.prompt.system)
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "set": self._set,
            "undo": self._undo,
            "model": self._model,
            "system": self._system,
            "reset": self._reset,
            "save": self._save,
            "load": self.load,
            "image": self._image,
            "stats": self._stats,
        }

    def _begun(
        self, request: GenerateRequest, system: str | None
    ) -> tuple[LoadedModel, ChatSession]:
        with Waiting(f"loading {model_shown(request.model)}"):
            model = loaded_model(request.model, self._settings, request.adapter)
            model.template_variables.update(template_variables(request.prompt.template_var))
            options = generation_options(request, model, self._settings)
            return model, ChatSession(model, options, system)

    def run(self, line: str) -> bool:
        """Run a command line and print its errors; return whether the conversation goes on."""
        name, _, argument = line[1:].partition(" ")
        if name in ("exit", "quit"):
            return False
        command = self._commands.get(name)
        try:
            if name == "regenerate":
                self._show_answer(self._regenerated)
            elif command is None:
                guess = did_you_mean(name, COMMANDS)
                raise UsageError(
                    f"there is no command {quoted('/' + name)}", hint=f"{guess}/help lists them"
                )
            else:
                command(argument.strip())
        except GptrsError as error:
            complain("error", str(error))
        return True

    def answer(self, text: str, *, strict: bool = False) -> None:
        """Show the answer to a message; print the error that prevents it, or raise it if `strict`.

        Ctrl-C ends an answer; if `strict`, it is raised.
        """

        def asked() -> TextStream:
            answer = self.session.ask(text, self.images)
            self.images = []
            return answer

        try:
            self._show_answer(asked, strict=strict)
        except (UsageError, ModelError) as error:
            if strict:
                raise
            complain("error", str(error))

    def _show_answer(self, ask: Callable[[], TextStream], *, strict: bool = False) -> None:
        made = self._streamed(ask, strict)
        self.last = made or self.last
        if made is None:
            return
        if made.error is not None:
            if strict:
                raise NoTokenError(made.error)
            complain("error", made.error)
        if self.stats:
            note(figures(made, self.model))
        elif made.finish_reason == "length":
            count = counted(len(made.token_ids), "token")
            how = "/set max_tokens N" if is_terminal(sys.stdin) else "--max-tokens N"
            note(f"the answer was cut after {count}: `{how}` allows more")

    def _streamed(self, ask: Callable[[], TextStream], strict: bool) -> Generation | None:
        """Write an answer as it comes and remember it; None if Ctrl-C came before it began."""
        model = self.model
        try:
            with Waiting("reading the prompt") as waiting:
                with compilation_shown(model.backend, waiting):
                    answer = ask()
                    reader = answer_reader(model, answer.generation.prompt_token_ids)
                    interrupted = write_stream(WrappedPage(), answer, model, waiting, reader=reader)
                    self.session.remember(answer)
                if interrupted and strict:
                    raise KeyboardInterrupt
                return answer.generation
        except KeyboardInterrupt:
            if strict:
                raise
            print(flush=True)
            return None

    def _regenerated(self) -> TextStream:
        answer = self.session.ask_again()
        sampling = self.session.options.sampling
        if sampling is not None and (sampling.temperature == 0 or sampling.seed is not None):
            note("without chance the same text comes again: `/set temperature 0.8`, `/set seed`")
        return answer

    def _help(self, _: str) -> None:
        for line in _HELP.splitlines():
            note(line)

    def _set(self, words: str) -> None:
        name, _, value = words.partition(" ")
        given = dict(self._request.given)
        greedy = self._request.greedy
        if not name:
            shown = [f"{each} {value}" for each, value in given.items()]
            shown += ["greedy"] if greedy else []
            note(", ".join(shown) or "nothing is set: the defaults of the model hold")
            return
        name = name.removeprefix("--").replace("-", "_")
        field = _settable().get(name)
        if field is None:
            names = ", ".join(_settable())
            raise UsageError(
                f"there is no option {quoted(name)} to set",
                hint=f"{did_you_mean(name, _settable())}there are {names}",
            )
        given.pop(name, None)
        if value.strip():
            given[name] = _parsed(field, value.strip())
            greedy = greedy and not field.option.samples
        self._change(replace(self._request, given=given, greedy=greedy))
        note(f"{name} {given.get(name, 'is left to the model')}")

    def _change(self, request: GenerateRequest) -> None:
        self.session.options = generation_options(request, self.model, self._settings)
        self._request = request

    def _undo(self, _: str) -> None:
        self.session.undo()
        count = counted(len(self.session.messages), "message")
        note(f"forgot the last message and its answer; {count} left")

    def _model(self, name: str) -> None:
        if not name:
            note(self.model.name)
            return
        request = replace(self._request, model=Path(name), adapter=None)
        model, session = self._begun(request, None)
        session.messages = self.session.messages
        self.model, self.session, self._request = model, session, request
        note(f"{model.name} answers from here on")

    def _system(self, text: str) -> None:
        self.session.messages = conversation(text or None)
        note("a new conversation" + (" with this system message" if text else ""))

    def _reset(self, _: str) -> None:
        told = [each for each in self.session.messages[:1] if each["role"] == "system"]
        self.session.messages = told
        note("a new conversation")

    def _save(self, name: str) -> None:
        path = _named(name)
        if path.exists():
            raise UsageError(f"{quoted(name, 200)} exists", hint="choose another name")
        text = json.dumps({"messages": self.session.messages}, ensure_ascii=False, indent=2)
        with atomic_file(path) as file:
            file.write(text.encode())
        note(f"wrote {counted(len(self.session.messages), 'message')} to `{path}`")

    def load(self, name: str) -> None:
        """Continue the conversation in a file; raise an error if it cannot be read."""
        path = _named(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputFileError(f"cannot read {quoted(name, 200)}: {error.strerror}") from error
        hint = '/save wrote it as {"messages": [...]}'
        record = parse_object(data, quoted(name, 200), InputFileError, hint=hint)
        self.session.messages = checked_messages(record.get("messages"))
        note(f"read {counted(len(self.session.messages), 'message')}")

    def show(self, name: str) -> None:
        """Attach an image to the next message; raise an error if it cannot be used."""
        self.model.image_lm()  # raises if the model reads no images
        path = _named(name)
        read_image(path)
        self.images.append(str(path))

    def _image(self, name: str) -> None:
        self.show(name)
        note(f"the next message has {counted(len(self.images), 'image')}")

    def _stats(self, setting: str) -> None:
        if setting in ("on", "off"):
            self.stats = setting == "on"
            return
        if setting:
            raise UsageError(f"`/stats` is on or off, got {quoted(setting)}")
        note("there is no answer yet" if self.last is None else figures(self.last, self.model))


def _settable() -> dict[str, OptionField]:
    """Return the options of an answer that a line of text can set."""
    return {
        name: field
        for name, field in all_options().items()
        if field.flag is not None and (name == "stop" or field.type in (int, float, bool))
        if name != "logprobs"
    }


def _parsed(field: OptionField, text: str) -> Any:
    if field.name == "stop":
        return [text]
    try:
        return field.or_off(msgspec.convert(text.lower(), field.type, strict=False))
    except msgspec.ValidationError as error:
        raise UsageError(f"`{field.name}` must be {field.kind[0]}, got {quoted(text)}") from error


def _named(name: str) -> Path:
    if not name:
        raise UsageError("a file must be named", hint="/save FILE, /load FILE, /image FILE")
    return Path(name).expanduser()


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
            readline.set_completer_delims("")
            readline.parse_and_bind("tab: complete")
            if self._history is not None:
                with contextlib.suppress(OSError):
                    readline.read_history_file(self._history)
            readline.set_history_length(_MOST_LINES)
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
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
        readline.append_history_file(new, file)


# A conversation: a line is a message, Ctrl-C stops an answer, Ctrl-D ends the program.


@dataclass(frozen=True)
class ChatStart:
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
