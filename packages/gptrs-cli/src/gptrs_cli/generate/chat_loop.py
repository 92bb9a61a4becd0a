"""A conversation on a terminal: a line is a message, Ctrl-C ends an answer, Ctrl-D the program."""

from __future__ import annotations

import contextlib

from gptrs.errors import ModelError, UsageError
from gptrs.runtime.generation.chat_session import ChatSession
from gptrs.runtime.load import LoadedModel
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


def converse(request: GenerateRequest, settings: Settings) -> int:
    """Answer one message after another until the input ends; return the exit code."""
    with Waiting(f"loading {model_shown(request.model)}"):
        model = loaded_model(request.model, settings)
        session = ChatSession(model, generation_options(request, model), request.prompt.system)
    note("Ctrl-C ends an answer, Ctrl-D the conversation")
    while (text := _read_message()) is not None:
        if text.strip():
            _answer(session, model, text)
    return 0


def _read_message() -> str | None:
    """Return the next line, "" after Ctrl-C, None at the end of the input."""
    try:
        return input(_PROMPT)
    except KeyboardInterrupt:
        print(flush=True)
        return ""
    except EOFError:
        print(flush=True)
        return None


def _answer(session: ChatSession, model: LoadedModel, text: str) -> None:
    """Show the answer; report an error or an interrupt without ending the conversation."""
    try:
        with Waiting("reading the prompt") as waiting, compilation_shown(model.backend, waiting):
            answer = session.ask(text)
            write_stream(Page(), answer, model, waiting)
            session.remember(answer)
    except (UsageError, ModelError) as error:
        complain("error", str(error))
    except KeyboardInterrupt:  # before the first piece of the answer
        print(flush=True)
