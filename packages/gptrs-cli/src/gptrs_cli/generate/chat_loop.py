"""A conversation on a terminal: a line is a message, Ctrl-C ends an answer, Ctrl-D the program."""

from __future__ import annotations

import contextlib

from gptrs.errors import ModelError, UsageError
from gptrs.runtime.generation.chat_session import ChatSession
from gptrs.runtime.generation.options import Generation
from gptrs.runtime.load import LoadedModel
from gptrs_cli.generate.chat_commands import ChatCommands, is_command
from gptrs_cli.generate.generation_options import generation_options
from gptrs_cli.generate.page import Page, write_stream
from gptrs_cli.generate.request import GenerateRequest
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.model import model_shown
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_cli.terminal.stderr import complain, note
from gptrs_cli.terminal.waiting import Waiting

with contextlib.suppress(ImportError):
    import readline as readline  # `input` then edits lines and remembers them

_PROMPT = "> "
_MORE = ". "
_BLOCK = '"""'


def converse(request: GenerateRequest, settings: Settings) -> int:
    """Answer one message after another until the input ends; return the exit code."""
    with Waiting(f"loading {model_shown(request.model)}"):
        model = loaded_model(request.model, settings)
        session = ChatSession(model, generation_options(request, model), request.prompt.system)
    note("Ctrl-C ends an answer, Ctrl-D the conversation; /help lists more")
    commands = ChatCommands(session, model)
    while (text := _read_message()) is not None:
        if not text.strip():
            continue
        if not is_command(text):
            commands.last = _answer(session, model, text) or commands.last
        elif not commands.run(text):
            break
    return 0


def _read_message() -> str | None:
    """Return the next message, "" after Ctrl-C, None at the end of the input.

    A line that ends in a backslash goes on in the next; so do all between two lines of three
    quotation marks.
    """
    try:
        line = input(_PROMPT)
        if line.strip() == _BLOCK:
            return "\n".join(iter(lambda: input(_MORE), _BLOCK))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input(_MORE))
        return "\n".join(lines)
    except KeyboardInterrupt:
        print(flush=True)
        return ""
    except EOFError:
        print(flush=True)
        return None


def _answer(session: ChatSession, model: LoadedModel, text: str) -> Generation | None:
    """Show the answer and return it; report what prevents it without ending the conversation."""
    try:
        with Waiting("reading the prompt") as waiting, compilation_shown(model.backend, waiting):
            answer = session.ask(text)
            write_stream(Page(), answer, model, waiting)
            session.remember(answer)
            return answer.generation
    except (UsageError, ModelError) as error:
        complain("error", str(error))
    except KeyboardInterrupt:  # before the first piece of the answer
        print(flush=True)
    return None
