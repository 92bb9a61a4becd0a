"""Tokenizers in `vocab.json` and `merges.txt`, converted to an equivalent `tokenizer.json`.

The two files do not say how texts are split and which special tokens surround them: that follows
from the class of transformers; see `CLASSES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, cast

from msgspec import Struct, field

from gptrs.errors import ModelError
from gptrs.quoting import quoted, shown_value
from gptrs.strict_json import parse_object
from gptrs_runtime.sources.gguf_tokenizer import LIKE_QWEN2, PRE_TOKENIZERS, Part
from gptrs_runtime.sources.tokenizer_class import TOKENIZER_CONFIG, default_special

VOCABULARY: Final = "vocab.json"
MERGES: Final = "merges.txt"
_OLD_MAP: Final = "special_tokens_map.json"
_OLD_ADDED: Final = "added_tokens.json"
_DECODER: Final = "added_tokens_decoder"
_FLAGS: Final = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
_ORDER: Final = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
"""The order in which transformers adds special tokens without a number in the files."""

ReadFile = Callable[[str], bytes | None]
"""Returns the content of a file of the model by name; None if it is missing."""


class TokenizerClass(Struct, frozen=True):
    """The behaviour of a tokenizer class of transformers, besides merging.

    `around` names the special tokens before and after a text (the latter is doubled between two
    texts).
    """

    pre_tokenizer: Part
    normalizer: Part | None = None
    around: tuple[str, str] | None = None
    trims_offsets: bool = True
    model: Mapping[str, object] = field(default_factory=dict[str, object])


def _sequence(kind: str, parts: list[Part]) -> Part:
    return {"type": "Sequence", kind: parts}


_BYTES: Final[Part] = PRE_TOKENIZERS["gpt-2"].steps[0]
_CLIP_WORDS: Final = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
_GPT2: Final = TokenizerClass(_BYTES)
_ROBERTA: Final = TokenizerClass(_BYTES, around=("cls_token", "sep_token"))
_QWEN2: Final = TokenizerClass(
    _sequence("pretokenizers", LIKE_QWEN2.steps), normalizer={"type": "NFC"}
)
_CLIP: Final = TokenizerClass(
    _sequence(
        "pretokenizers",
        [
            {
                "type": "Split",
                "pattern": {"Regex": _CLIP_WORDS},
                "behavior": "Removed",
                "invert": True,
            },
            _BYTES,
        ],
    ),
    normalizer=_sequence(
        "normalizers",
        [
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Lowercase"},
        ],
    ),
    around=("bos_token", "eos_token"),
    trims_offsets=False,
    model={"end_of_word_suffix": "</w>", "unk_token": "unk_token"},
)
CLASSES: Final[Mapping[str, TokenizerClass]] = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "Qwen2Tokenizer": _QWEN2,
    "CLIPTokenizer": _CLIP,
}
"""By the result of `tokenizer_class`."""


def tokenizer_json(read: ReadFile, name: str) -> bytes:
    """Return the content of a `tokenizer.json`, by the class called `name` in `CLASSES`.

    ModelError for malformed files.
    """
    kind = CLASSES[name]
    vocabulary, settings = _vocabulary(read), tokenizer_settings(read)
    numbered = _numbered(read, settings)
    special = _special(default_special(name), settings, keeps_all=kind.around is not None)
    added = _added(special, vocabulary, numbered)
    ids = {**vocabulary, **{str(part["content"]): cast("int", part["id"]) for part in added}}
    texts = {name: str(part["content"]) for name, part in special.items()}
    model: Part = {
        "type": "BPE",
        "vocab": vocabulary,
        "merges": _merges(read),
        "continuing_subword_prefix": "",
        "end_of_word_suffix": kind.model.get("end_of_word_suffix", ""),
        "unk_token": texts.get(str(kind.model.get("unk_token"))),
    }
    around = _added_around(settings, texts, ids)
    if kind.around is not None:
        first, last = (texts[name] for name in kind.around)
        around = {
            "type": "RobertaProcessing",
            "sep": [last, ids[last]],
            "cls": [first, ids[first]],
            "trim_offsets": kind.trims_offsets,
            "add_prefix_space": False,
        }
    made = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda part: cast("int", part["id"])),
        "normalizer": kind.normalizer,
        "pre_tokenizer": kind.pre_tokenizer,
        "post_processor": around,
        "decoder": _BYTES,
        "model": model,
    }
    return json.dumps(made, ensure_ascii=False).encode("utf-8")


def _added_around(
    settings: Mapping[str, object], texts: Mapping[str, str], ids: Mapping[str, int]
) -> Part | None:
    """Return the step that adds the tokens before and after each text that the settings ask for."""
    asked = [settings.get(f"add_{name}_token") is True for name in ("bos", "eos")]
    first, last = (
        [texts[name]] if wanted and name in texts else []
        for name, wanted in zip(("bos_token", "eos_token"), asked, strict=True)
    )
    if not (first or last):
        return None

    def parts(text: str, kind: int) -> list[Part]:
        own: list[Part] = [
            {"SpecialToken": {"id": token, "type_id": kind}} for token in (*first, *last)
        ]
        return [*own[: len(first)], {"Sequence": {"id": text, "type_id": kind}}, *own[len(first) :]]

    return {
        "type": "TemplateProcessing",
        "single": parts("A", 0),
        "pair": [*parts("A", 0), *parts("B", 1)],
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]}
            for token in (*first, *last)
        },
    }


def _object(read: ReadFile, name: str) -> dict[str, object]:
    data = read(name)
    return {} if data is None else parse_object(data, name)


def tokenizer_settings(read: ReadFile) -> dict[str, object]:
    """Return tokenizer_config.json; in old folders, special_tokens_map.json takes precedence."""
    settings = _object(read, TOKENIZER_CONFIG)
    return settings if _DECODER in settings else {**settings, **_object(read, _OLD_MAP)}


def _vocabulary(read: ReadFile) -> dict[str, int]:
    found = _object(read, VOCABULARY)
    for token, number in found.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ModelError(
                f"{quoted(VOCABULARY)} must number its tokens, found {shown_value(number)} for"
                f" {quoted(token)}"
            )
    return cast("dict[str, int]", found)


def _merges(read: ReadFile) -> list[list[str]]:
    data = read(MERGES) or b""
    try:
        # Not `splitlines`: tokens contain other characters that it takes for line breaks.
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"{quoted(MERGES)} is not UTF-8: byte {error.start}") from error
    merges: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        parts = line.removesuffix("\r").split(" ")
        if line.startswith("#version") or parts == [""]:
            continue
        if len(parts) != 2:
            raise ModelError(f"line {number} of {quoted(MERGES)} must be two tokens and a space")
        merges.append(parts)
    return merges


def _numbered(read: ReadFile, settings: Mapping[str, object]) -> dict[str, int]:
    """Return the tokens with a number in other files; their reader refuses malformed ones."""
    decoder = settings.get(_DECODER)
    if isinstance(decoder, Mapping):
        entries = cast("Mapping[str, object]", decoder).items()
        found = {_content(entry): number for number, entry in entries if number.isdecimal()}
        return {text: int(number) for text, number in found.items() if text is not None}
    old = _object(read, _OLD_ADDED).items()
    return {text: number for text, number in old if isinstance(number, int)}


def _special(
    usual: Mapping[str, str], settings: Mapping[str, object], *, keeps_all: bool
) -> dict[str, Part]:
    """Return the special tokens of the class by name, in the order in which they are added.

    One that the settings say is null is left out, unless the class `keeps_all`.
    """
    found: dict[str, Part] = {}
    for name in _ORDER:
        stated = settings.get(name, usual.get(name))
        if name in usual and (stated is not None or keeps_all):
            text = _content(stated) or usual[name]
            flags: Mapping[str, object] = {}
            if isinstance(stated, Mapping):
                flags = cast("Mapping[str, object]", stated)
            kept = {flag: bool(flags.get(flag, value)) for flag, value in _FLAGS.items()}
            found[name] = {"content": text, "special": True, **kept}
    return found


def _added(
    special: Mapping[str, Part], vocabulary: Mapping[str, int], numbered: Mapping[str, int]
) -> list[Part]:
    """Return tokens that other files number, then special ones without a number."""
    usual = {**_FLAGS, "special": False}
    added: dict[str, Part] = {
        text: {"id": number, "content": text, **usual}
        for text, number in numbered.items()
        if text not in vocabulary
    }
    following = len(vocabulary) + len(added)
    for part in special.values():
        text = str(part["content"])
        if text in added:
            continue
        if text not in vocabulary:
            added[text] = {"id": following, **part}
            following += 1
        else:
            added[text] = {"id": vocabulary[text], **part}
    return list(added.values())


def _content(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = cast("Mapping[str, object]", value).get("content")
    return value if isinstance(value, str) and value else None
