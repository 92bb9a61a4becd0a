"""`gptrs tokenize`: a text as the tokens of a model, and tokens as text."""

from __future__ import annotations

import json
import sys
from typing import Annotated

from gptrs.errors import UsageError
from gptrs.quoting import counted
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import ModelOption, Settings
from gptrs_cli.options.text_input import TextInput, parse_integers
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import is_terminal, note_below, printable
from gptrs_cli.terminal.tables import print_table
from gptrs_runtime.content_digest import model_path
from gptrs_runtime.results import Tokenize, TokenPiece
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.tokenization.tokenizer import TextTokenizer, tokenizer_of


@command_options()
def tokenize(
    *,
    text: TextInput,
    model: ModelOption = None,
    tokens: Annotated[
        str | None,
        option("--tokens", "The other way: print the text of these tokens.", metavar="1,2,3"),
    ] = None,
    no_special: Annotated[
        bool,
        option("--no-special", "Add no special tokens around the text, and leave those out of it."),
    ] = False,
    settings: Settings,
) -> None:
    """Print the tokens of a text, or the text of tokens.

    No weights are read. In a pipe only the ids are printed, on one line.
    """
    if tokens is not None and text.is_given:
        raise UsageError("a text and `--tokens` exclude each other", hint="give one")
    source = find_model(model_path(model))
    tokenizer = tokenizer_of(source, source.name)
    if tokens is not None:
        ids = parse_integers(tokens, "--tokens")
        _require_known(tokenizer, ids)
        _print_text(tokenizer.decode(ids, special=not no_special), tokenizer, ids, settings)
        return
    content = text.read()
    ids = tokenizer.encode(content, special=not no_special)
    if settings.json:
        _print_json(content, tokenizer, ids)
    elif is_terminal(sys.stdout):
        rows = [
            [str(each), _piece(tokenizer, each), json.dumps(shown, ensure_ascii=False)]
            for each in ids
            for shown in (tokenizer.token_text(each) or "",)
        ]
        print_table(["id", "piece", "text"], rows)
        note_below(f"{counted(len(ids), 'token')} of {counted(len(content), 'character')}")
    else:
        print(*ids, sep=",")


def _print_text(text: str, tokenizer: TextTokenizer, ids: list[int], settings: Settings) -> None:
    if settings.json:
        _print_json(text, tokenizer, ids)
    else:
        print(printable(text) if is_terminal(sys.stdout) else text)


def _print_json(text: str, tokenizer: TextTokenizer, ids: list[int]) -> None:
    tokens = [
        TokenPiece(
            id=each,
            piece=_piece(tokenizer, each),
            text=tokenizer.token_text(each) or "",
            bytes=list(tokenizer.token_bytes(each) or b""),
        )
        for each in ids
    ]
    print_result(Tokenize(text=text, tokens=tokens))


def _piece(tokenizer: TextTokenizer, token: int) -> str:
    return tokenizer.piece(token) or ""


def _require_known(tokenizer: TextTokenizer, ids: list[int]) -> None:
    for token in ids:
        if tokenizer.piece(token) is None:
            raise UsageError(f"token {token} is not in the vocabulary")
