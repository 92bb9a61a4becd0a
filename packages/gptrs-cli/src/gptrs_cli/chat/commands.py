"""Commands of a conversation on a terminal: lines that begin with `/`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.errors import GptrsError, UsageError
from gptrs.quoting import counted, did_you_mean, quoted
from gptrs.strict_json import parse_object
from gptrs_cli.generate.page import figures
from gptrs_cli.terminal.failures import InputFileError
from gptrs_cli.terminal.stderr import complain, note
from gptrs_runtime.chat.messages import checked_messages
from gptrs_runtime.generation.chat_session import ChatSession, conversation
from gptrs_runtime.generation.outcome import Generation
from gptrs_runtime.images.decoding import read_image
from gptrs_runtime.loaded_model import LoadedModel

_HELP = """\
/help         show this
/system TEXT  forget the conversation and begin one with this system message; without TEXT, none
/reset        forget the conversation, but for the system message
/save FILE    write the conversation to a new JSON file
/load FILE    go on with the conversation of such a file
/image FILE   show an image with the next message
/stats        show counts and speed of the last answer; `/stats on` after each, `/stats off`
/exit         end, as Ctrl-D does
A line that ends in \\ goes on in the next. Lines between two of three quotation marks are one."""
COMMANDS = tuple(line.split()[0].removeprefix("/") for line in _HELP.splitlines()[:-1])
"""The names of all commands."""


def is_command(text: str) -> bool:
    """Return whether a line begins with `/` and a word, and not with a path."""
    word = text.partition(" ")[0]
    return word.startswith("/") and word[1:].isalpha()


class ChatCommands:
    """The commands of one conversation; `last` is the last answer.

    The next message has `images`. `stats` says whether its figures follow each answer.
    """

    def __init__(self, session: ChatSession, model: LoadedModel, *, stats: bool) -> None:
        self.last: Generation | None = None
        self.stats = stats
        self._session = session
        self.model = model
        self.images: list[str] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "system": self._system,
            "reset": self._reset,
            "save": self._save,
            "load": self.load,
            "image": self._image,
            "stats": self._stats,
        }

    def run(self, line: str) -> bool:
        """Obey a line and report what is wrong with it; return whether the conversation goes on."""
        name, _, argument = line[1:].partition(" ")
        if name in ("exit", "quit"):
            return False
        command = self._commands.get(name)
        try:
            if command is None:
                guess = did_you_mean(name, self._commands)
                raise UsageError(
                    f"there is no command {quoted('/' + name)}", hint=f"{guess}/help lists them"
                )
            command(argument.strip())
        except GptrsError as error:
            complain("error", str(error))
        return True

    def _help(self, _: str) -> None:
        for line in _HELP.splitlines():
            note(line)

    def _system(self, text: str) -> None:
        self._session.messages = conversation(text or None)
        note("a new conversation" + (" with this system message" if text else ""))

    def _reset(self, _: str) -> None:
        told = [each for each in self._session.messages[:1] if each["role"] == "system"]
        self._session.messages = told
        note("a new conversation")

    def _save(self, name: str) -> None:
        path = _named(name)
        if path.exists():
            raise UsageError(f"{quoted(name, 200)} exists", hint="choose another name")
        text = json.dumps({"messages": self._session.messages}, ensure_ascii=False, indent=2)
        with atomic_file(path) as file:
            file.write(text.encode())
        note(f"wrote {counted(len(self._session.messages), 'message')} to `{path}`")

    def load(self, name: str) -> None:
        """Go on with the conversation in a file; raise what is wrong with it."""
        path = _named(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputFileError(f"cannot read {quoted(name, 200)}: {error.strerror}") from error
        hint = '/save wrote it as {"messages": [...]}'
        record = parse_object(data, quoted(name, 200), InputFileError, hint=hint)
        self._session.messages = checked_messages(record.get("messages"))
        note(f"read {counted(len(self._session.messages), 'message')}")

    def show(self, name: str) -> None:
        """Show an image with the next message; raise what is wrong with it."""
        self.model.image_lm()  # or the model reads none
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
        note("nothing was answered yet" if self.last is None else figures(self.last, self.model))


def _named(name: str) -> Path:
    if not name:
        raise UsageError("a file must be named", hint="/save FILE, /load FILE, /image FILE")
    return Path(name).expanduser()
