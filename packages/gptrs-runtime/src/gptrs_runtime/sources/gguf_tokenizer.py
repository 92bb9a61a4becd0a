"""The tokenizer in the metadata of a GGUF file, converted to an equivalent `tokenizer.json`.

Two kinds are read: BPE of bytes (`gpt2`), whose pre-tokenizer `tokenizer.ggml.pre` names, and the
BPE of SentencePiece (`llama`), which merges by the scores of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.config_fields import Fields
from gptrs.checkpoint.formats.gguf_header import MetadataValue
from gptrs.errors import ModelError
from gptrs.quoting import listed, quoted

Part = dict[str, object]

WHOLE = "tokenizer.huggingface.json"
"""The key of a whole `tokenizer.json`."""
BYTE_BPE, SENTENCEPIECE, NO_TOKENIZER = "gpt2", "llama", "none"
"""Words of `tokenizer.ggml.model`."""
CUT_OTHERWISE = (
    "llama.cpp knows no such tokenizer and will cut texts otherwise; gptrs reads the whole one from"
    " the file"
)
MAX_TOKENS = 2**20
"""Most tokens of a vocabulary, four times the largest one in use."""
LONGEST_MERGED = 64
"""Most characters of a token that SentencePiece merges; by default it makes them of 16."""

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Numbers in `tokenizer.ggml.token_type`."""
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BAR = "\N{FULLWIDTH VERTICAL LINE}"
_END_MARKS = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>"),
        *("<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>"),
        f"<{_BAR}end{_SPACE}of{_SPACE}sentence{_BAR}>",
        *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<|tool_response>"),
        *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>"),
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|file_sep|>"),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>"),
    )
)
"""Tokens that end an answer wherever a vocabulary has them, as in llama.cpp: many files name only
the token that ends a whole text."""
_WITHIN_ANSWERS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
"""Marks beside which `<|end|>` only ends a part of an answer (gpt-oss, Solar Open)."""
_SPACES_KEPT = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of Phi 3 that leave the spaces after them; the others remove them."""
_SAMPLING: Mapping[str, str] = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}  # fmt: skip
"""Settings `general.sampling.*` under their names in generation_config.json."""
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _split(pattern: str) -> list[Part]:
    regex = {"Regex": pattern}
    split: Part = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    return [split, _byte_level(use_regex=False)]


def _byte_level(use_regex: bool) -> Part:
    options = {"add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "ByteLevel", **options}


_GPT2: list[Part] = [_byte_level(use_regex=True)]
_DIGITS: list[Part] = [{"type": "Digits", "individual_digits": True}, *_GPT2]
_LLAMA3 = _split(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_END}")
_QWEN2 = _split(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_END}")
_TEKKEN = _split(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = _split(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_FALCON: list[Part] = [
    {"type": "Punctuation", "behavior": "Contiguous"},
    *_GPT2,
    {"type": "Digits", "individual_digits": False},
    {
        "type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated",
        "invert": False,
    },
]  # fmt: skip
_BLOOM = _split(r" ?[^(\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+")


class PreTokenizer(Struct, frozen=True):
    """The `steps` that split a text before parts are merged; `nfc`: it is normalized first.

    Ones that add a token at the start do so unless the file says otherwise; they also accept a part
    that is a token without merging.
    """

    steps: list[Part]
    nfc: bool = False
    begins: bool = False


_LIKE_GPT2, _LIKE_LLAMA3 = PreTokenizer(_GPT2), PreTokenizer(_LLAMA3, begins=True)
_LIKE_SMOLLM, LIKE_QWEN2 = PreTokenizer(_DIGITS), PreTokenizer(_QWEN2, nfc=True)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": _LIKE_GPT2, "gpt2": _LIKE_GPT2, "phi-2": _LIKE_GPT2, "smollm": _LIKE_SMOLLM,
    "starcoder": _LIKE_SMOLLM, "refact": _LIKE_SMOLLM, "codeshell": _LIKE_SMOLLM,
    "command-r": PreTokenizer(_DIGITS, nfc=True),
    "llama-bpe": _LIKE_LLAMA3, "llama3": _LIKE_LLAMA3, "llama-v3": _LIKE_LLAMA3,
    "chatglm-bpe": PreTokenizer(_LLAMA3), "glm4": PreTokenizer(_LLAMA3),
    "qwen2": LIKE_QWEN2, "deepseek-r1-qwen": LIKE_QWEN2, "stablelm2": PreTokenizer(_QWEN2),
    "tekken": PreTokenizer(_TEKKEN, begins=True), "gpt-4o": PreTokenizer(_GPT4O),
    "olmo": PreTokenizer(_GPT2, nfc=True), "mpt": PreTokenizer(_GPT2, nfc=True),
    "falcon": PreTokenizer(_FALCON), "bloom": PreTokenizer(_BLOOM),
    **dict.fromkeys(("mellum", "a.x-4.0", "gigachat", "exaone4", "trillion", "jais"), _LIKE_GPT2),
    **dict.fromkeys(("exaone", "minerva-7b"), _LIKE_SMOLLM),
    **dict.fromkeys(("falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LIKE_LLAMA3),
    **dict.fromkeys(("megrez", "kormo", "hunyuan", "grok-2"), PreTokenizer(_QWEN2)),
    "llama4": PreTokenizer(_GPT4O),
}  # fmt: skip
"""Pre-tokenizers by `tokenizer.ggml.pre` (llama-vocab.cpp)."""


class GgufTokenizer:
    """The tokenizer in `metadata`; ModelError if its kind is not supported.

    `where` names the file in errors.
    """

    def __init__(self, metadata: Mapping[str, MetadataValue], where: str) -> None:
        self._metadata = metadata
        self._fields = Fields(metadata, where)
        self._where = where

    @property
    def is_there(self) -> bool:
        """Whether the file has a tokenizer."""
        return WHOLE in self._metadata or "tokenizer.ggml.tokens" in self._metadata

    def token(self, which: str) -> int | None:
        """Return the special token `tokenizer.ggml.{which}_token_id`, None if there is none."""
        key = f"tokenizer.ggml.{which}_token_id"
        return self._fields.integer(key, minimum=0) if key in self._metadata else None

    def tokenizer_json(self) -> bytes:
        """Return the content of a `tokenizer.json` for the library `tokenizers`.

        A file may also contain the original, beside the fields of llama.cpp.
        """
        # The original wins: the fields of llama.cpp state only part of it.
        whole = self._fields.text(WHOLE)
        if whole is not None:
            return whole.encode("utf-8")
        kind = self._fields.choice("tokenizer.ggml.model", (BYTE_BPE, SENTENCEPIECE), "")
        parts = self._byte_bpe() if kind == BYTE_BPE else self._sentencepiece()
        made = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added_tokens(),
            "post_processor": self._post_processor(kind),
            **parts,
        }
        return json.dumps(made, ensure_ascii=False).encode("utf-8")

    def tokenizer_config(self) -> Part:
        """Return the content of a `tokenizer_config.json`: chat templates and special tokens."""
        config: Part = {}
        template = self._fields.text("tokenizer.chat_template")
        start = "tokenizer.chat_template."
        named = {key.removeprefix(start): key for key in self._metadata if key.startswith(start)}
        if named:
            texts = {"default": template} if template is not None else {}
            texts |= {name: self._fields.text(key) for name, key in named.items()}
            config["chat_template"] = [
                {"name": name, "template": text} for name, text in texts.items()
            ]
        elif template is not None:
            config["chat_template"] = template
        for which in ("bos", "eos"):
            number = self.token(which)
            if number is not None and "tokenizer.ggml.tokens" in self._metadata:
                config[f"{which}_token"] = self._text_of(number)
        return config

    def generation_config(self) -> Part:
        """Return the content of a `generation_config.json`: the tokens that begin and end texts or
        are suppressed, and the sampling that the file recommends.
        """
        config: Part = {}
        if self._ends:
            config["eos_token_id"] = self._ends
        begin = self.token("bos")
        if begin is not None:
            config["bos_token_id"] = begin
        suppressed = self._metadata.get("tokenizer.ggml.suppress_tokens")
        if isinstance(suppressed, np.ndarray):
            config["suppress_tokens"] = [int(each) for each in suppressed if each >= 0]
        return {**config, **self._sampling()}

    def _sampling(self) -> Part:
        """Return the sampling of `general.sampling.*`; unsupported settings keep their names."""
        start = "general.sampling."
        found: Part = {
            _SAMPLING.get(key.removeprefix(start), key): value
            for key, value in self._metadata.items()
            if key.startswith(start)
        }
        chosen = found.keys() & {"temperature", "top_k", "top_p", "min_p"}
        if not chosen:
            return found
        top_k, warmth = (
            self._fields.number(f"{start}{name}", default, minimum=-1e30)
            for name, default in (("top_k", 0), ("temp", 1))
        )
        # As in llama.cpp, -1 are all tokens, and a temperature of 0 or less takes the likeliest.
        bounds: Part = {"top_k": 0} if top_k < 0 else {}
        return {**found, **bounds, "temperature": max(0.0, warmth), "do_sample": warmth > 0}

    @cached_property
    def _ends(self) -> list[int]:
        """The tokens that end texts: those that the file names, and those of `_END_MARKS`."""
        keys = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
        named = (self.token(which) for which in keys)
        return list(dict.fromkeys(each for each in (*named, *self._marks) if each is not None))

    @cached_property
    def _marks(self) -> list[int]:
        """The tokens of `_END_MARKS`."""
        if "tokenizer.ggml.tokens" not in self._metadata:
            return []
        found = {text: number for number, text in enumerate(self._tokens) if text in _END_MARKS}
        if any(found.keys() >= each for each in _WITHIN_ANSWERS):
            found.pop("<|end|>", None)
        return list(found.values())

    def _byte_bpe(self) -> Part:
        pre = self._fields.choice("tokenizer.ggml.pre", tuple(PRE_TOKENIZERS), "")
        merges = [_halves(each) for each in self._strings("tokenizer.ggml.merges")]
        cut = PRE_TOKENIZERS[pre]
        model = {
            "type": "BPE",
            "vocab": self._vocabulary(),
            "merges": merges,
            "ignore_merges": cut.begins,
        }
        return {
            "normalizer": {"type": "NFC"} if cut.nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": cut.steps},
            "decoder": _byte_level(use_regex=True),
            "model": model,
        }

    def _sentencepiece(self) -> Part:
        vocabulary = self._vocabulary()
        unknown = self.token("unknown")
        # SentencePiece puts a space before a text, and the decoder takes it away again.
        prefixed = self._fields.boolean("tokenizer.ggml.add_space_prefix", True)
        steps: list[Part] = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
        steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
        decoders: list[Part] = [
            {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if prefixed:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        model = {
            "type": "BPE",
            "unk_token": self._text_of(0 if unknown is None else unknown),
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary,
            "merges": _merges_of(vocabulary, self._scores(len(vocabulary))),
        }
        return {
            "normalizer": {"type": "Sequence", "normalizers": steps},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": model,
        }

    def _strings(self, key: str) -> Sequence[str]:
        found = self._metadata.get(key)
        if not isinstance(found, list):
            raise ModelError(f"{quoted(key)} {self._where} must be an array of strings")
        return found

    @cached_property
    def _tokens(self) -> Sequence[str]:
        # Fillers of a vocabulary may be empty, several times; llama.cpp calls them so.
        found = self._strings("tokenizer.ggml.tokens")
        return [text or f"[EMPTY_{number}]" for number, text in enumerate(found)]

    def _vocabulary(self) -> dict[str, int]:
        tokens = self._tokens
        # A damaged length must not lead to a dict of billions.
        if len(tokens) > MAX_TOKENS:
            raise ModelError(
                f"the vocabulary {self._where} has {len(tokens)} tokens, the limit is {MAX_TOKENS}"
            )
        vocabulary = {token: number for number, token in enumerate(tokens)}
        # The library would silently keep the last of equal tokens, and ids would shift.
        if len(vocabulary) < len(tokens):
            twice = [token for number, token in enumerate(tokens) if vocabulary[token] != number]
            raise ModelError(f"the vocabulary {self._where} has {listed(twice)} several times")
        return vocabulary

    def _text_of(self, number: int) -> str:
        tokens = self._tokens
        if number >= len(tokens):
            raise ModelError(f"there is no token {number} {self._where}, only {len(tokens)}")
        return tokens[number]

    def _scores(self, count: int) -> np.ndarray:
        return self._numbers("tokenizer.ggml.scores", count)

    def _numbers(self, key: str, count: int) -> np.ndarray:
        found = self._metadata.get(key)
        if not isinstance(found, np.ndarray) or len(found) != count:
            raise ModelError(f"{quoted(key)} {self._where} must be {count} numbers")
        return found

    def _added_tokens(self) -> list[Part]:
        """Return the tokens that are matched before a text is split."""
        tokens = self._tokens
        key = "tokenizer.ggml.token_type"
        types = self._numbers(key, len(tokens)) if key in self._metadata else np.empty(0)
        options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        matched = _indices_of(types, (_UNKNOWN, _CONTROL, _USER_DEFINED))
        added: list[Part] = []
        for number in sorted({*matched, *self._marks}):
            # Some files have the end of a turn as an ordinary token.
            special = number in self._marks or bool(types[number] != _USER_DEFINED)
            strips = {"rstrip": True} if self._strips_spaces_after(tokens[number]) else {}
            part = {"id": number, "content": tokens[number], "special": special}
            added.append({**part, **options, **strips})
        return added

    def _strips_spaces_after(self, token: str) -> bool:
        """Return whether an added token removes the spaces after it, which no key of a file says:
        llama.cpp goes by the model's name.
        """
        name = (self._fields.text("general.name") or "").lower()
        return ("phi-3" in name or "phi3" in name) and token not in _SPACES_KEPT

    def _post_processor(self, kind: str) -> Part | None:
        """Return the post-processor that adds special tokens."""
        cut = PRE_TOKENIZERS.get(self._fields.text("tokenizer.ggml.pre", "") or "")
        begins = kind == SENTENCEPIECE or (cut is not None and cut.begins)
        before = self._fields.boolean("tokenizer.ggml.add_bos_token", begins)
        after = self._fields.boolean("tokenizer.ggml.add_eos_token", False)
        around = {
            which: self.token(which)
            for which, wanted in (("bos", before), ("eos", after))
            if wanted and self.token(which) is not None
        }
        if not around:
            return None
        texts = {which: self._text_of(cast("int", number)) for which, number in around.items()}
        first, last = (
            [{"SpecialToken": {"id": texts[which], "type_id": 0}}] if which in texts else []
            for which in ("bos", "eos")
        )
        sequences = [[{"Sequence": {"id": name, "type_id": 0}}] for name in ("A", "B")]
        known = {
            text: {"id": text, "ids": [around[which]], "tokens": [text]}
            for which, text in texts.items()
        }
        return {
            "type": "TemplateProcessing",
            "single": [*first, *sequences[0], *last],
            "pair": [*first, *sequences[0], *sequences[1], *last],
            "special_tokens": known,
        }


def _indices_of(array: np.ndarray, values: Sequence[int]) -> list[int]:
    return [int(index) for index in np.flatnonzero(np.isin(array, values))]


def _halves(merge: str) -> list[str]:
    """Return the two tokens of a merge; the first one may begin with a space."""
    # From the second character on: the first token may itself be or begin with a space.
    cut = merge.find(" ", 1)
    return [merge[:cut], merge[cut + 1 :]]


def _merges_of(vocabulary: Mapping[str, int], scores: np.ndarray) -> list[list[str]]:
    """Return the merges that make each token of two others, those of the best token first.

    This is how transformers reads SentencePiece files (`generate_merges`).
    """
    merges: list[tuple[float, list[str]]] = []
    for token, number in vocabulary.items():
        # Each cut of a token is tried, so the work grows with the square of its length.
        if len(token) > LONGEST_MERGED:
            continue
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [cut for cut in cuts if cut[0] in vocabulary and cut[1] in vocabulary]
        # Among the cuts of one token, transformers goes by the ids of the halves.
        known.sort(key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))
        merges += [(float(scores[number]), list(cut)) for cut in known]
    # Stable: merges of equal score keep the order of the vocabulary.
    merges.sort(key=lambda merge: -merge[0])
    return [merge for _, merge in merges]
