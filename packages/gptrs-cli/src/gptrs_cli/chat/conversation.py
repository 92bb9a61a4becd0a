"""A conversation on a terminal: its messages, and the commands that change it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import GptrsError, ModelError, NoTokenError, UsageError
from gptrs.quoting import counted, did_you_mean, quoted
from gptrs.strict_json import parse_object
from gptrs_cli.generate.generation_options import generation_options
from gptrs_cli.generate.options import template_variables
from gptrs_cli.generate.page import WrappedPage, figures
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.generate.run import write_stream
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.settings import Settings, model_shown
from gptrs_cli.terminal.failures import InputFileError, Waiting
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.streams import complain, is_terminal, note
from gptrs_runtime.chat.messages import checked_messages
from gptrs_runtime.generation.chat_session import ChatSession, answer_reader, conversation
from gptrs_runtime.generation.options import all_options
from gptrs_runtime.generation.outcome import Generation
from gptrs_runtime.generation.stream import TextStream
from gptrs_runtime.images.decoding import read_image
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.option_fields import OptionField

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
    # `/usr/bin` is a message, `/help` a command.
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
            # Only after `ask` has accepted them: a message that is refused keeps its images for the
            # next try.
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
        # Messages, not tokens: the other model renders them by its own template.
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
        # Never overwritten: a conversation cannot be made again.
        if path.exists():
            raise UsageError(f"{quoted(name, 200)} exists", hint="choose another name")
        # The form of requests, so the file can also be sent to a server or trained on.
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
