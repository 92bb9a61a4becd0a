"""Training data: rows of chats, prompts with completions, or texts; plain text; tokens."""

from __future__ import annotations

import logging
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from msgspec import Struct

from gptrs.api import GptrsError, UsageError
from gptrs.progress import Progress
from gptrs.quoting import listed, quoted
from gptrs.strict_json import parse_object
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.tokenization.tokenizer import TextTokenizer
from gptrs_train.chat_rows import (
    TURNS,
    Chat,
    DataError,
    Example,
    chat_examples,
    chat_of,
    ends_with_answer,
    shared,
    text_of,
)

_logger = logging.getLogger("gptrs")
FORMS: Final = "`messages`, `prompt` with `completion`, or `text`"
ROWS: Final = ".jsonl"
"""The suffix of files with rows."""
TRAIN: Final = "train"
VALID: Final = ("valid", "validation", "val")
TEST: Final = "test"
"""The names of files in a folder of data, without their suffixes; those of tests are not read."""
_SUFFIXES: Final = (".jsonl", ".txt", ".bin")
_MOST_LINE: Final = 50_000_000
"""Bytes of a line."""
_ROWS: Final = 500
"""Rows that are tokenized at once."""
_PIECE: Final = 1 << 20
"""Characters of a plain text that are tokenized at once; pieces end with a line."""


class Source(Struct, frozen=True):
    """The content of a file: a stream of tokens, an array [N], or separate texts."""

    path: Path
    stream: np.ndarray | None = None
    examples: Sequence[Example] = ()


class Texts(Protocol):
    """Tokenizes texts and conversations."""

    name: str
    begin: int | None
    """The token before each text, if the model has one."""
    end: int | None
    """The token behind each text, if the model has one."""
    templated: bool
    """Whether prompts and completions are messages of a chat."""
    ends: Sequence[int]
    """The tokens that end a text when the model generates one."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with the tokens that begin a text."""
        ...

    def encode_part(self, text: str) -> list[int]:
        """Return the tokens of a text, without tokens that begin or end a text."""
        ...

    def encode_chats(self, chats: Sequence[Conversation]) -> list[list[int]]:
        """Return the tokens of conversations as the model's template renders them."""
        ...


class ModelTexts:
    """The tokenizer and the chat template of a model, or a tokenizer alone."""

    def __init__(
        self,
        name: str,
        tokenizer: TextTokenizer,
        ends: Collection[int],
        model: LoadedModel | None = None,
    ) -> None:
        self.name = name
        self.ends: Sequence[int] = sorted(ends)
        self.end = min(ends, default=None)
        self.begin = None if model is None else model.bos_token
        self._tokenizer = tokenizer
        self._model = model
        self.templated = model is not None and _has_template(model)
        self._unread: set[str] = set()

    @classmethod
    def of_model(cls, model: LoadedModel, *, templated: bool = True) -> ModelTexts:
        """Return those of a model; without `templated` completions are appended to prompts."""
        made = cls(model.name, model.tokenizer, model.eos_tokens, model)
        made.templated = made.templated and templated
        return made

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with the tokens that begin a text."""
        return self._tokenizer.encode(text)

    def encode_part(self, text: str) -> list[int]:
        """Return the tokens of a text, without tokens that begin or end a text."""
        return self._tokenizer.encode(text, special=False)

    def encode_chats(self, chats: Sequence[Conversation]) -> list[list[int]]:
        """Return the tokens of conversations; ModelError for a model without a chat template."""
        if self._model is None or not _has_template(self._model):
            raise DataError(
                f"{quoted(self.name)} has no chat template to read `messages` with",
                hint="write rows of `prompt` and `completion`, or take one that is tuned to chat",
            )
        self._note_unread(self._model, chats)
        return self._model.all_conversation_tokens(chats)

    def _note_unread(self, model: LoadedModel, chats: Sequence[Conversation]) -> None:
        """Warn once if the template leaves out tools, or calls of them, that a chat has."""
        for chat in chats:
            called = any("tool_calls" in each for each in chat.messages)
            for name, given in (("tools", bool(chat.tools)), ("tool_calls", called)):
                if not given or name in self._unread:
                    continue
                if name not in model.chat_template(with_tools=bool(chat.tools)).source:
                    self._unread.add(name)
                    _logger.warning(
                        "the chat template of %s reads no `%s`: those of the rows are not learnt",
                        quoted(self.name), name,
                    )  # fmt: skip


def _has_template(model: LoadedModel) -> bool:
    try:
        model.chat_template()
    except GptrsError:
        return False
    return True


def files_of(data: Path, valid: Path | None) -> tuple[Path, Path | None]:
    """Return the files to learn from and to evaluate on; UsageError where there are none.

    `data` is a file, or a folder with `train.jsonl`, `train.txt` or `train.bin` and maybe one that
    is called `valid`, `validation` or `val`.
    """
    if not data.exists():
        raise UsageError(f"there is no data at {quoted(str(data), 200)}")
    if valid is not None and not valid.is_file():
        raise UsageError(f"there is no file {quoted(str(valid), 200)} to evaluate on")
    if data.is_file():
        return data, valid
    train = _in_folder(data, (TRAIN,))
    if train is None:
        names = ", ".join(f"`{TRAIN}{suffix}`" for suffix in _SUFFIXES)
        others = sorted(each.name for each in data.iterdir())
        hints = (_how_to_read(Path(name).suffix.lower()) for name in others)
        raise UsageError(
            f"the folder {quoted(str(data), 200)} needs {names}, found"
            f" {listed(others, 6) or 'nothing'}",
            hint=next(filter(None, hints), None),
        )
    return train, valid or _in_folder(data, VALID)


def note_unread(data: Path) -> None:
    """Note that the file of tests in a folder of data, which mlx-lm has, is not read."""
    test = _in_folder(data, (TEST,))
    if test is not None:
        _logger.info("%s is not read; --valid names a file to evaluate on", quoted(str(test), 200))


def _in_folder(folder: Path, names: Sequence[str]) -> Path | None:
    paths = (folder / f"{name}{suffix}" for name in names for suffix in _SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


_TABLES: Final = {
    ".json": "read_json", ".csv": "read_csv", ".tsv": "read_table", ".parquet": "read_parquet",
    ".arrow": "read_feather", ".feather": "read_feather", ".xlsx": "read_excel",
}  # fmt: skip
"""Suffixes of files with rows in formats that are not read, and what of pandas reads them."""
_PACKED: Final = frozenset({".gz", ".bz2", ".xz", ".zip", ".zst"})
_LINES: Final = frozenset({".ndjson", ".jsonlines", ".jl"})
"""Other suffixes of files that are called .jsonl here."""


def read_source(
    path: Path,
    texts: Callable[[], Texts],
    vocabulary: int,
    *,
    mask_prompt: bool = False,
    progress: Progress | None = None,
) -> Source:
    """Return what a file holds: rows of JSON in .jsonl, uint16 tokens in .bin, else plain text.

    `texts` is called only if there are texts. With `mask_prompt` only the completions and the
    messages of the assistant are learnt. UsageError for tables in other formats. DataError names
    the file and the line that is wrong.
    """
    suffix = path.suffix.lower()
    _require_read(path, suffix)
    if mask_prompt and suffix != ROWS:
        raise UsageError(
            f"{quoted(str(path), 200)} is not a .jsonl file: it has no prompts to mask",
            hint="write prompts and completions as rows of a .jsonl file",
        )
    if suffix == ".bin":
        stream = _token_file(path)
    elif suffix == ROWS:
        rows = list(read_rows(path))
        if not rows:
            raise DataError(f"{quoted(str(path), 200)} has no rows")
        examples = _examples(path, rows, texts(), mask_prompt, progress)
        _note_endless(path, examples, texts())
        _require_known(path, (each.tokens for each in examples), vocabulary)
        return Source(path, examples=examples)
    else:
        stream = _text_file(path, texts())
    _require_known(path, (stream,), vocabulary)
    return Source(path, stream=stream)


def _require_read(path: Path, suffix: str) -> None:
    """Refuse files of rows in other formats: as text, the model would learn braces and commas."""
    if hint := _how_to_read(suffix):
        shown = quoted(str(path), 200)
        raise UsageError(f"{shown}: rows are not read from {suffix} files", hint=hint)


def _how_to_read(suffix: str) -> str:
    """Return what to do with rows in a file of another format, empty for none of these formats."""
    if suffix in _LINES:
        return "call it .jsonl"
    if suffix in _PACKED:
        return "unpack it"
    if suffix not in _TABLES:
        return ""
    return (
        f"`pandas.{_TABLES[suffix]}(FILE).to_json('train.jsonl', orient='records', lines=True)`"
        " writes each row as a JSON object on a line; for text of this form, name the file .txt"
    )


def _note_endless(path: Path, examples: Sequence[Example], texts: Texts) -> None:
    """Warn if no text teaches the model to end, as with templates that end no answer."""
    if not texts.ends:
        _logger.warning(
            "%s has no `eos_token_id`, so that its texts never end: it learns no end of those in"
            " %s; state it in its config.json",
            quoted(texts.name), quoted(str(path), 200),
        )  # fmt: skip
        return
    learnt = (each.tokens[each.learnt] for each in examples)
    if not any(np.isin(tokens, texts.ends).any() for tokens in learnt):
        _logger.warning(
            "no text of %s has a token that ends texts of %s (%s): it learns no end; check its chat"
            " template, and `eos_token_id` in its generation_config.json",
            quoted(str(path), 200), quoted(texts.name), ", ".join(map(str, texts.ends)),
        )  # fmt: skip


def _token_file(path: Path) -> np.ndarray:
    size = path.stat().st_size
    if size % 2 or not size:
        raise DataError(
            f"{quoted(str(path), 200)} has {size} bytes: a .bin file is tokens of two bytes each,"
            " uint16 as nanoGPT writes them"
        )
    # Mapped, not read: OpenWebText is 17 GB in this form, and a batch touches a few pages.
    return np.memmap(path, np.dtype("<u2"), "r")


def _text_file(path: Path, texts: Texts) -> np.ndarray:
    try:
        text = path.read_bytes().removeprefix(BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{quoted(str(path), 200)} is not text in UTF-8: {error.reason} at byte {error.start}",
            hint="rows are read from .jsonl, tokens from .bin, anything else is plain text",
        ) from None
    tokens: list[int] = []
    start = 0
    while start < len(text):
        # Pieces end after a newline, where most tokenizers split anyway, so their tokens are those
        # of the whole text. Tokenizing everything at once takes memory of many times the text.
        cut = text.rfind("\n", start, start + _PIECE) + 1
        end = len(text) if start + _PIECE >= len(text) else cut or start + _PIECE
        end = end if end > start else start + _PIECE
        tokens += texts.encode_part(text[start:end])
        start = end
    if not tokens:
        raise DataError(f"{quoted(str(path), 200)} is empty")
    return np.array(tokens, np.int32)


def _require_known(path: Path, parts: Iterator[np.ndarray] | Sequence[np.ndarray], most: int):
    for part in parts:
        for start in range(0, len(part), _PIECE):
            # In pieces, as the stream may be mapped and larger than memory. An id out of range
            # would read a wrong row of the embedding instead of failing.
            largest = int(part[start : start + _PIECE].max())
            if largest >= most:
                raise DataError(
                    f"{quoted(str(path), 200)} has the token {largest}, the model has {most}",
                    hint="the tokens are those of another model",
                )


_Row = tuple[str, Mapping[str, object]]
"""The name of a line in messages, and its object."""


def read_rows(path: Path) -> Iterator[_Row]:
    """Yield the objects of a .jsonl file, each with the name of its line in messages."""
    with path.open("rb") as file:
        # A bounded readline: a file without newlines would be read into one string.
        for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE + 1), b""), 1):
            line = line.removeprefix(BOM_UTF8) if number == 1 else line  # Windows writes one
            where = f"{path}:{number}"
            if len(line) > _MOST_LINE:
                raise DataError(f"{where} has more than {_MOST_LINE // 10**6} MB")
            if line.strip():
                row = parse_object(line, where, DataError, hint="each line is an object")
                # Tables of rows of several forms have a null for each column of the other forms.
                yield where, {name: each for name, each in row.items() if each is not None}


def _examples(
    path: Path, rows: list[_Row], texts: Texts, mask_prompt: bool, progress: Progress | None
) -> list[Example]:
    found: list[Example] = []
    for start in range(0, len(rows), _ROWS):
        found += _tokenized(rows[start : start + _ROWS], texts, mask_prompt)
        if progress is not None:
            progress(len(found), len(rows))
    return found


def _tokenized(rows: Sequence[_Row], texts: Texts, mask_prompt: bool) -> list[Example]:
    """Return the examples of some rows; all chats among them are rendered together."""
    chats: list[Chat] = []
    found: list[Example | None] = []
    for where, row in rows:
        _require_known_form(where, row)
        if (chat := chat_of(where, row, templated=texts.templated)) is not None:
            chats.append(chat)
        found.append(_plain(where, row, texts, mask_prompt) if chat is None else None)
    made = iter(chat_examples(chats, texts.encode_chats, mask_prompt=mask_prompt) if chats else ())
    return [next(made) if each is None else each for each in found]


_PREFERENCES: Final = (
    frozenset({"chosen", "rejected"}),
    frozenset({"preferred_output", "non_preferred_output"}),
)
"""Columns of a better and a worse answer."""
_ELSEWHERE: Final[Sequence[tuple[frozenset[str], str, str]]] = (
    (frozenset({"instruction", "output"}), "templates of prompts differ",
     "call the instruction, with the `input` behind it, `prompt`, and the `output` `completion`"),
    (frozenset({"input_ids"}), "rows are texts",
     "give the texts, or tokens in a .bin file: uint16, as nanoGPT writes them"),
)  # fmt: skip
"""Columns of rows that are not read, why not, and what to do."""


def _require_known_form(where: str, row: Mapping[str, object]) -> None:
    """Refuse rows of known forms that would be misread, or cannot be read, with what to do."""
    if "text" in row:
        return
    answered = "messages" in row or TURNS in row or row.keys() >= {"prompt", "completion"}
    if isinstance(row.get("label"), bool) and answered:
        raise DataError(
            f"{where} has a `label` that says whether its answer is good: preferences are not"
            " learnt",
            hint="keep the rows whose `label` is true, without this column",
        )
    for columns in _PREFERENCES:
        # Tables for several purposes have the preferred answer in `messages`, too.
        if row.keys() >= columns and not ends_with_answer(row.get("messages")):
            raise DataError(
                f"{where} has {_named(row, columns)}: preferences are not learnt",
                hint="keep only the preferred answers, as `completion` or in `messages`",
            )
    if "messages" in row:
        return
    for columns, reason, hint in _ELSEWHERE:
        if row.keys() >= columns:
            raise DataError(f"{where} has {_named(row, columns)}: {reason}", hint=hint)


def _named(row: Mapping[str, object], columns: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in row if name in columns)


def _plain(where: str, row: Mapping[str, object], texts: Texts, mask_prompt: bool) -> Example:
    if "text" in row:
        if mask_prompt:
            raise DataError(f"{where} has `text`, and no prompt to mask", hint="--no-mask-prompt")
        return _ended(texts, text_of(where, row, "text"), 0)
    if "prompt" not in row or "completion" not in row:
        raise DataError(f"{where} has {listed(list(row), 6) or 'no columns'}; a row needs {FORMS}")
    prompt, completion = text_of(where, row, "prompt"), text_of(where, row, "completion")
    return _ended(texts, prompt + completion, len(prompt) if mask_prompt else 0)


def _ended(texts: Texts, text: str, masked: int) -> Example:
    """Return a text and the end behind it, less its first characters."""
    tokens = _begun(texts, text)
    if texts.end is not None and tokens[-1:] != [texts.end]:
        tokens = [*tokens, texts.end]
    whole = np.array(tokens, np.int32)
    learnt = np.ones(len(whole), np.bool_)
    if masked:
        # Not the length of the prompt's tokens: its last token may merge with the first characters
        # of the completion, and the merged token is learnt.
        learnt[: shared(whole, np.array(_begun(texts, text[:masked]), np.int32))] = False
    return Example(whole, learnt)


def _begun(texts: Texts, text: str) -> list[int]:
    """Return the tokens of a text, whose first one is not repeated if the text states it, too."""
    tokens = texts.encode(text)
    # Texts that a chat template has rendered begin with it: the model never sees two of them.
    twice = texts.begin is not None and tokens[:2] == [texts.begin] * 2
    return tokens[1:] if twice else tokens
