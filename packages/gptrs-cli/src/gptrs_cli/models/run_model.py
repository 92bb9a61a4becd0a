"""`gptrs run MODEL`: the command that a model is for, chat or a text, with its own options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gptrs.errors import ModelError, UsageError
from gptrs.plugins.descriptions import CommandPlugin
from gptrs.plugins.manager import manager
from gptrs.quoting import quoted
from gptrs_cli.command_group import command_of
from gptrs_cli.models.head import commands
from gptrs_cli.options.text_input import is_piped
from gptrs_runtime.chat.template import chat_template_of
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.hub import asked_once
from gptrs_runtime.sources.model_source import ModelSource

_PROMPTS: Final = ("text", "prompt", "prompt_ids", "prompt_file", "prompts")
"""Parameters of `generate` that give it something to continue."""


@asked_once()
def run_model(path: Path, arguments: Sequence[str], context: Any) -> None:
    """Run `chat` on a terminal without a prompt, else `generate`, with `arguments` of theirs.

    A prompt becomes a message if the model has a chat template. UsageError for a model of another
    task names its command.
    """
    source = find_model(model_path(path))
    known = commands(source)
    if known and "generate" not in known:
        raise UsageError(
            f"{quoted(str(path), 200)} is not a model that writes text",
            hint=f"it is one for `gptrs {known[0]} --model {path}`",
        )
    words = ["--model", str(path), *arguments]
    with _context_of("generate", words, context) as made:
        given = [name for name in _PROMPTS if made.params.get(name) is not None]
        if given or is_piped():
            in_chat = made.params["chat"] or given in (["prompt_ids"], ["prompts"])
            if in_chat or not _has_template(source):
                made.command.invoke(made)
                return
    name = "generate" if given or is_piped() else "chat"
    more = ["--chat"] if name == "generate" else []
    with _context_of(name, [*words, *more], context) as made:
        made.command.invoke(made)


def _context_of(name: str, words: list[str], context: Any) -> Any:
    command = command_of(manager().factory(CommandPlugin, name), name)
    return command.make_context(context.info_name, list(words), parent=context.parent)


def _has_template(source: ModelSource) -> bool:
    try:
        chat_template_of(source, source.name)
    except ModelError:
        return False
    return True
