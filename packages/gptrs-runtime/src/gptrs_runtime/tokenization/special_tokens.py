"""Tokens that the files beside tokenizer.json name, read as transformers reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol, cast

from tokenizers import AddedToken

from gptrs.errors import ModelError
from gptrs.quoting import shown_value

_CONFIG: Final = "tokenizer_config.json"
_MAP: Final = "special_tokens_map.json"
_ADDED: Final = "added_tokens.json"
_NAMED: Final = tuple(
    f"{word}_token" for word in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_EXTRA: Final = ("extra_special_tokens", "additional_special_tokens")
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


class JsonFiles(Protocol):
    """The folder of a model."""

    def read_json(self, name: str) -> dict[str, object] | None:
        """Return the object in a JSON file, None if there is none; ModelError if malformed."""
        ...


def named_tokens(files: JsonFiles) -> dict[str, str]:
    """Return the special tokens by the names that chat templates have for them.

    Those are `bos_token` and so on, whatever else ends in `_token`, and the ones that
    `extra_special_tokens` names.
    """
    settings = _settings(files)
    found = {name: value for name, value in settings.items() if name.endswith("_token")}
    extra = settings.get(_EXTRA[0])
    if isinstance(extra, Mapping):
        found |= cast("Mapping[str, object]", extra)
    texts = {name: _content(value) for name, value in found.items()}
    return {name: text for name, text in texts.items() if text is not None}


def added_tokens(files: JsonFiles) -> list[tuple[int | None, AddedToken]]:
    """Return tokens that these files add to the ones of tokenizer.json, with their numbers.

    First come those with a number, in its order, then special tokens without one. ModelError for
    malformed files.
    """
    settings = _settings(files)
    special = {text for name in _NAMED if (text := _content(settings.get(name))) is not None}
    special.update(_extra(settings))
    numbered = dict(_numbered(settings))
    if not numbered and "added_tokens_decoder" not in settings:
        numbered = dict(_from_old_file(files, special))
    known = {token.content for token in numbered.values()}
    rest = [text for text in _in_order(settings) if text not in known]
    return [
        *((number, numbered[number]) for number in sorted(numbered)),
        *((None, AddedToken(text, special=True)) for text in dict.fromkeys(rest)),
    ]


def _settings(files: JsonFiles) -> dict[str, object]:
    """Return tokenizer_config.json, in old folders with special_tokens_map.json put over it."""
    settings = files.read_json(_CONFIG) or {}
    if "added_tokens_decoder" in settings:
        return settings
    return {**settings, **(files.read_json(_MAP) or {})}


def _content(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = cast("Mapping[str, object]", value).get("content")
    return value if isinstance(value, str) and value else None


def _extra(settings: Mapping[str, object]) -> Iterator[str]:
    """Yield special tokens that have no name, or one of their own."""
    for key in _EXTRA:
        value = settings.get(key)
        if isinstance(value, Mapping):
            value = list(cast("Mapping[str, object]", value).values())
        for entry in cast("list[object]", value) if isinstance(value, list) else []:
            text = _content(entry)
            if text is not None:
                yield text


def _in_order(settings: Mapping[str, object]) -> Iterator[str]:
    for name in _NAMED:
        text = _content(settings.get(name))
        if text is not None:
            yield text
    yield from _extra(settings)


def _numbered(settings: Mapping[str, object]) -> Iterator[tuple[int, AddedToken]]:
    """Yield the tokens of `added_tokens_decoder`."""
    table = settings.get("added_tokens_decoder", {})
    if not isinstance(table, Mapping):
        raise _malformed("added_tokens_decoder", table)
    for number, entry in cast("Mapping[str, object]", table).items():
        text = _content(entry)
        if not number.isdecimal() or len(number) > 9 or text is None:
            raise _malformed(f"added_tokens_decoder.{number:.20}", entry)
        flags = cast("Mapping[str, object]", entry)
        yield int(number), AddedToken(text, **{flag: bool(flags.get(flag)) for flag in _FLAGS})


def _from_old_file(files: JsonFiles, special: set[str]) -> Iterator[tuple[int, AddedToken]]:
    """Yield the tokens of added_tokens.json."""
    for text, number in (files.read_json(_ADDED) or {}).items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 10**9:
            raise ModelError(
                f"`{text:.40}` in `{_ADDED}` must have a number >= 0, found {shown_value(number)}"
            )
        if text:
            is_special = text in special
            yield number, AddedToken(text, normalized=not is_special, special=is_special)


def _malformed(name: str, value: object) -> ModelError:
    return ModelError(
        f"`{name}` in `{_CONFIG}` must give tokens by number, found {shown_value(value)}"
    )
