"""A conversation: a line is a message, Ctrl-C ends an answer, Ctrl-D the program."""

from __future__ import annotations

import sys
from pathlib import Path

from gptrs.errors import ModelError, NoTokenError, UsageError
from gptrs.quick_dataclass import dataclass
from gptrs_cli.chat.commands import COMMANDS, ChatCommands, is_command
from gptrs_cli.chat.reading import Reader
from gptrs_cli.generate.generation_options import generation_options
from gptrs_cli.generate.options import template_variables
from gptrs_cli.generate.page import Page, figures, write_stream
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.model import model_shown
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.stderr import complain, is_terminal, note
from gptrs_cli.terminal.waiting import Waiting
from gptrs_runtime.generation.chat_answers import answer_reader
from gptrs_runtime.generation.chat_session import ChatSession
from gptrs_runtime.generation.outcome import Generation


@dataclass(frozen=True)
class ChatStart:
    """A conversation to go on with, and whether figures follow each answer."""

    load: Path | None
    stats: bool


def converse(request: GenerateRequest, start: ChatStart, settings: Settings) -> int:
    """Answer one message after another until the input ends; return the exit code.

    In a pipe the code is that of the first message that cannot be answered.
    """
    with Waiting(f"loading {model_shown(request.model)}"):
        model = loaded_model(request.model, settings, request.adapter)
        model.template_variables.update(template_variables(request.prompt.template_var))
        options = generation_options(request, model, settings)
        session = ChatSession(model, options, request.prompt.system)
    commands = ChatCommands(session, model, stats=start.stats)
    for image in request.prompt.image:
        commands.show(str(image))
    if start.load is not None:
        commands.load(str(start.load))
    on_terminal = is_terminal(sys.stdin)
    if on_terminal:
        note(f"{model.name}: Ctrl-C ends an answer, Ctrl-D the conversation; /help lists more")
    with Reader(COMMANDS) as reader:
        while (text := reader.message()) is not None:
            if not text.strip():
                continue
            if on_terminal and is_command(text):
                if not commands.run(text):
                    break
                continue
            answer = _answer(session, commands, text, strict=not on_terminal)
            commands.last = answer or commands.last
            if answer is not None and commands.stats:
                note(figures(answer, model))
            if on_terminal:
                print(flush=True)
    return 0


def _answer(
    session: ChatSession, commands: ChatCommands, text: str, *, strict: bool
) -> Generation | None:
    """Show the answer and return it; report what prevents it, or raise that if `strict`."""
    try:
        model = commands.model
        with Waiting("reading the prompt") as waiting, compilation_shown(model.backend, waiting):
            answer = session.ask(text, commands.images)
            commands.images = []
            reader = answer_reader(model, answer.generation.prompt_token_ids)
            interrupted = write_stream(Page(), answer, model, waiting, reader=reader)
            session.remember(answer)
            if interrupted and strict:
                raise KeyboardInterrupt
            made = answer.generation
            if made.error is not None:
                if strict:
                    raise NoTokenError(made.error)
                complain("error", made.error)
            return made
    except (UsageError, ModelError) as error:
        if strict:
            raise
        complain("error", str(error))
    except KeyboardInterrupt:  # before the first piece of the answer
        if strict:
            raise
        print(flush=True)
    return None
