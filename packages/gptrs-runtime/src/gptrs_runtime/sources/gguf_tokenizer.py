"""The tokenizer in the metadata of a GGUF file, converted to an equivalent `tokenizer.json`.

Five kinds are read: BPE of bytes (`gpt2`), whose pre-tokenizer `tokenizer.ggml.pre` names, the BPE
of SentencePiece (`llama`), which merges by the scores of tokens, and one with merges (`gemma4`);
WordPiece (`bert`) and the unigrams of SentencePiece (`t5`), mostly of encoders.
"""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.config_fields import Fields
from gptrs.checkpoint.formats.gguf_header import MetadataValue
from gptrs.errors import ModelError
from gptrs.quoting import listed, quoted

Part = dict[str, object]

WHOLE = "tokenizer.huggingface.json"
"""The key of a whole `tokenizer.json`."""
BYTE_BPE, SENTENCEPIECE, GEMMA4, NO_TOKENIZER = "gpt2", "llama", "gemma4", "none"
WORDPIECE, UNIGRAM = "bert", "t5"
"""Words of `tokenizer.ggml.model`."""
_MODEL = "tokenizer.ggml.model"
_USUAL = {
    SENTENCEPIECE: {"unknown": 0, "bos": 1, "eos": 2},
    WORDPIECE: {"unknown": 100, "bos": 101, "seperator": 102},
    UNIGRAM: {"unknown": 2, "eos": 1},
}
"""Special tokens of tokenizers unless a file names others."""
CUT_OTHERWISE = (
    "llama.cpp knows no such tokenizer and will cut texts otherwise; gptrs reads the whole one from"
    " the file"
)
MAX_TOKENS = 2**20
"""Most tokens of a vocabulary, four times the largest one in use."""
LONGEST_MERGED = 64
"""Most characters of a token that SentencePiece merges; by default it makes them of 16."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
"""Numbers in `tokenizer.ggml.token_type`."""
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_CONTINUES = "##"
"""Begins tokens within a word in BERT's vocabularies."""
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


def _split(*patterns: str) -> list[Part]:
    """Return the steps that split at the matches of each pattern in turn."""
    steps: list[Part] = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in patterns
    ]
    return [*steps, _byte_level(use_regex=False)]


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
_FALCON: list[Part] = [
    {"type": "Punctuation", "behavior": "Contiguous"},
    *_GPT2,
    {"type": "Digits", "individual_digits": False},
    {
        "type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated",
        "invert": False,
    },
]  # fmt: skip
_BLOOM_WORDS = r" ?[^(\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = _split(
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _ASIAN,
    r"\p{N}+",
)
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_DEEPSEEK3 = _split(r"\p{N}{1,3}", _CJK, rf"{_DEEPSEEK_WORDS}[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_SPARK = _split(r"\p{N}{1,3}", _CJK, rf"{_DEEPSEEK_WORDS}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
_DEEPSEEK_CODER = _split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN, r"\p{N}")
_SEED_CODER = _split(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BAILING = _split(
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_QWEN35 = _split(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_JAIS2 = _split(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)"
    r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
_EXAONE_MOE = _split(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MINICPM5 = _split(
    r"\p{N}{1,3}", rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}+|{_END}"
)
_LAGUNA = _split(r"[^\n]+|[\n]+", rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_END}")
_UFAKZEKA = _split(rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_END}")
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
)
_AFTER_WORDS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = _split(rf"{_CASED_WORDS}|\p{{N}}{{1,3}}{_AFTER_WORDS}")
_TINY_AYA = _split(r"\d{1,3}(?=(?:\d{3})*\b)", rf"{_CASED_WORDS}|\p{{N}}{{1,3}}{_AFTER_WORDS}")
_YOUTU = _split(
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"{_CASED_WORDS}|\p{{N}}{_AFTER_WORDS}",
)
_NO_HAN = r"&&[^\p{Han}]]"
_KIMI = _split(
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER[:-1]}{_NO_HAN}*{_LOWER[:-1]}{_NO_HAN}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER[:-1]}{_NO_HAN}+{_LOWER[:-1]}{_NO_HAN}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_END}"
)
_THREES = r"(?=(\d{3})+(?!\d))"
_SUPERBPE = _split(r"\p{N}+", _THREES)
_DEFAULT = _split(
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    "[0-9][0-9][0-9]",
)


class PreTokenizer(Struct, frozen=True):
    """The `steps` that split a text before parts are merged; `nfc`: it is normalized first.

    Ones that add a token at the start (`begins`) do so unless the file says otherwise. These, and
    ones of `whole` parts, accept a part that is a token without merging.
    """

    steps: list[Part]
    nfc: bool = False
    begins: bool = False
    whole: bool = False


_LIKE_GPT2, _LIKE_LLAMA3 = PreTokenizer(_GPT2), PreTokenizer(_LLAMA3, begins=True)
_LIKE_SMOLLM, LIKE_QWEN2 = PreTokenizer(_DIGITS), PreTokenizer(_QWEN2, nfc=True)
_LIKE_BLOOM, _LIKE_DEEPSEEK3 = PreTokenizer(_split(_BLOOM_WORDS)), PreTokenizer(_DEEPSEEK3)
_LIKE_GPT4O, _LIKE_TINY_AYA = PreTokenizer(_GPT4O), PreTokenizer(_TINY_AYA)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": _LIKE_GPT2, "gpt2": _LIKE_GPT2, "phi-2": _LIKE_GPT2, "smollm": _LIKE_SMOLLM,
    "starcoder": _LIKE_SMOLLM, "refact": _LIKE_SMOLLM, "codeshell": _LIKE_SMOLLM,
    "command-r": PreTokenizer(_DIGITS, nfc=True),
    "llama-bpe": _LIKE_LLAMA3, "llama3": _LIKE_LLAMA3, "llama-v3": _LIKE_LLAMA3,
    "chatglm-bpe": PreTokenizer(_LLAMA3), "glm4": PreTokenizer(_LLAMA3),
    "qwen2": LIKE_QWEN2, "deepseek-r1-qwen": LIKE_QWEN2, "stablelm2": PreTokenizer(_QWEN2),
    "tekken": PreTokenizer(_TEKKEN, begins=True), "gpt-4o": _LIKE_GPT4O,
    "olmo": PreTokenizer(_GPT2, nfc=True), "mpt": PreTokenizer(_GPT2, nfc=True),
    "falcon": PreTokenizer(_FALCON), "bloom": _LIKE_BLOOM,
    **dict.fromkeys(("mellum", "a.x-4.0", "gigachat", "exaone4", "trillion", "jais"), _LIKE_GPT2),
    **dict.fromkeys(("exaone", "minerva-7b"), _LIKE_SMOLLM),
    **dict.fromkeys(("falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LIKE_LLAMA3),
    **dict.fromkeys(("megrez", "kormo", "hunyuan", "grok-2"), PreTokenizer(_QWEN2)),
    **dict.fromkeys(("llama4", "kanana2", "talkie", "minimax-m2"), _LIKE_GPT4O),
    **dict.fromkeys(("granite-docling", "jina-es", "jina-de", "modern-bert"), _LIKE_GPT2),
    "roberta-bpe": _LIKE_GPT2,
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer(_LLAMA3)),
    **dict.fromkeys(("poro-chat", "gpt3-finnish"), _LIKE_BLOOM), "mellum2": _LIKE_SMOLLM,
    **dict.fromkeys(("solar-open", "f2llmv2"), PreTokenizer(_QWEN2)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _LIKE_DEEPSEEK3),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM), "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "spark2_5": PreTokenizer(_SPARK), "seed-coder": PreTokenizer(_SEED_CODER),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer(_BAILING)),
    "qwen35": PreTokenizer(_QWEN35, nfc=True), "jais-2": PreTokenizer(_JAIS2),
    "exaone-moe": PreTokenizer(_EXAONE_MOE), "laguna": PreTokenizer(_LAGUNA),
    "minicpm5": PreTokenizer(_MINICPM5, whole=True), "youtu": PreTokenizer(_YOUTU, whole=True),
    "viking": PreTokenizer(_split(_BLOOM_WORDS, r"\p{N}")), "ufakzeka": PreTokenizer(_UFAKZEKA),
    "kimi-k2": PreTokenizer(_KIMI), "superbpe": PreTokenizer(_SUPERBPE),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _LIKE_TINY_AYA), "default": PreTokenizer(_DEFAULT),
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
        """Return the special token `tokenizer.ggml.{which}_token_id`, None if there is none.

        As in llama.cpp, some tokenizers have default tokens that files need not name.
        """
        key = f"tokenizer.ggml.{which}_token_id"
        if key in self._metadata:
            return self._fields.integer(key, minimum=0)
        usual = _USUAL.get(str(self._metadata.get(_MODEL)), {}).get(which)
        return usual if usual is not None and usual < len(self._tokens) else None

    def tokenizer_json(self) -> bytes:
        """Return the content of a `tokenizer.json` for the library `tokenizers`.

        A file may also contain the original, beside the fields of llama.cpp.
        """
        # The original wins: the fields of llama.cpp state only part of it.
        whole = self._fields.text(WHOLE)
        if whole is not None:
            return whole.encode("utf-8")
        makers = {
            BYTE_BPE: self._byte_bpe, SENTENCEPIECE: self._sentencepiece,
            GEMMA4: self._sentencepiece, WORDPIECE: self._wordpiece, UNIGRAM: self._unigram,
        }  # fmt: skip
        kind = self._fields.choice(_MODEL, tuple(makers), "")
        parts = makers[kind]()
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
        """Return the content of a `tokenizer_config.json`: chat templates and special tokens.

        The class is the one that leaves the steps of `tokenizer_json` as they are.
        """
        config: Part = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if self._metadata.get(_MODEL) == WORDPIECE:
            config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
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
            "ignore_merges": cut.begins or cut.whole,
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
        merged = self._metadata.get(_MODEL) == GEMMA4
        prefixed = self._fields.boolean("tokenizer.ggml.add_space_prefix", not merged)
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
            "merges": [_halves(each) for each in self._strings("tokenizer.ggml.merges")]
            if merged
            else _merges_of(vocabulary, self._scores(len(vocabulary))),
        }
        return {
            "normalizer": {"type": "Sequence", "normalizers": steps},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": model,
        }

    def _wordpiece(self) -> Part:
        unknown = self.token("unknown")
        lowers = self._fields.boolean("tokenizer.ggml.normalizer.lowercase", not self._is_cased)
        model = {
            "type": "WordPiece",
            "unk_token": self._text_of(0 if unknown is None else unknown),
            "continuing_subword_prefix": _CONTINUES,
            "max_input_chars_per_word": 100,
            "vocab": self._vocabulary(),
        }
        return {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": self._fields.boolean(
                    "tokenizer.ggml.normalizer.strip_accents", lowers
                ),
                "lowercase": lowers,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": _CONTINUES, "cleanup": True},
            "model": model,
        }

    @property
    def _is_cased(self) -> bool:
        """Whether a vocabulary of words has all capital letters: older files do not say whether
        texts are lowercased.
        """
        return {*string.ascii_uppercase} <= {*self._tokens}

    def _unigram(self) -> Part:
        tokens, unknown = self._tokens, self.token("unknown")
        self._vocabulary()
        types, scores = self._types(), self._scores(len(tokens)).astype(np.float64)
        # Fillers have the score -10000, from which the library would derive that of unknown tokens.
        if (types == _NORMAL).any():
            scores[types == _UNUSED] = scores[types == _NORMAL].min()
        prefixed = self._fields.boolean("tokenizer.ggml.add_space_prefix", True)
        space: Part = {
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": "always" if prefixed else "never",
        }
        steps = [{"type": "WhitespaceSplit"}, space]
        if not self._fields.boolean("tokenizer.ggml.remove_extra_whitespaces", True):
            steps = [space]
        return {
            "normalizer": self._characters(),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "decoder": space,
            "model": {
                "type": "Unigram",
                "unk_id": 0 if unknown is None else unknown,
                "vocab": [[token, float(scores[at])] for at, token in enumerate(tokens)],
            },
        }

    def _characters(self) -> Part | None:
        """Return the normalizer of the file's map of characters, if it has one."""
        found = self._metadata.get("tokenizer.ggml.precompiled_charsmap")
        if found is None:
            return None
        if not isinstance(found, np.ndarray) or found.dtype.itemsize != 1:
            raise self._fields.error("tokenizer.ggml.precompiled_charsmap", "must be bytes")
        content = base64.b64encode(found.tobytes()).decode("ascii")
        return {"type": "Precompiled", "precompiled_charsmap": content}

    def _strings(self, key: str) -> Sequence[str]:
        found = self._metadata.get(key)
        if not isinstance(found, list):
            raise ModelError(f"{quoted(key)} {self._where} must be an array of strings")
        return found

    @cached_property
    def _tokens(self) -> Sequence[str]:
        # Fillers of a vocabulary may be empty, several times; llama.cpp calls them so.
        found = self._strings("tokenizer.ggml.tokens")
        named = [text or f"[EMPTY_{number}]" for number, text in enumerate(found)]
        if self._metadata.get(_MODEL) != WORDPIECE:
            return named
        # Files mark the tokens that begin a word, BERT those that continue one.
        types = self._types()
        special = {*_indices_of(types, (_UNKNOWN, _CONTROL, _USER_DEFINED))}
        return [text if number in special else _of_bert(text) for number, text in enumerate(named)]

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

    def _types(self) -> np.ndarray:
        """Return the type of each token; empty if the file does not state them."""
        key, tokens = "tokenizer.ggml.token_type", self._strings("tokenizer.ggml.tokens")
        return self._numbers(key, len(tokens)) if key in self._metadata else np.empty(0)

    def _added_tokens(self) -> list[Part]:
        """Return the tokens that are matched before a text is split."""
        tokens, types = self._tokens, self._types()
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
        numbers = self._around(kind)
        if not any(number is not None for number in numbers):
            return None
        texts = [None if number is None else self._text_of(number) for number in numbers]

        def marks(types: int, *which: int) -> list[Part]:
            named = (texts[at] for at in which)
            return [{"SpecialToken": {"id": each, "type_id": types}} for each in named if each]

        # Encoders were trained with pairs: BERT with a type for each text, RoBERTa with two marks.
        second, between = int(kind == WORDPIECE), (1,) if kind == WORDPIECE else ()
        if kind == UNIGRAM and texts[0] is not None:
            between = (1, 1)
        sequences = [
            {"Sequence": {"id": name, "type_id": types}}
            for name, types in (("A", 0), ("B", second))
        ]
        known = {
            text: {"id": text, "ids": [number], "tokens": [text]}
            for text, number in zip(texts, numbers, strict=True)
            if text is not None
        }
        pair = [*marks(0, 0), sequences[0], *marks(0, *between), sequences[1], *marks(second, 1)]
        return {
            "type": "TemplateProcessing",
            "single": [*marks(0, 0), sequences[0], *marks(0, 1)],
            "pair": pair,
            "special_tokens": known,
        }

    def _around(self, kind: str) -> tuple[int | None, int | None]:
        """Return the tokens before and after a text."""
        cut = PRE_TOKENIZERS.get(self._fields.text("tokenizer.ggml.pre", "") or "")
        begins = kind in (SENTENCEPIECE, GEMMA4, WORDPIECE) or (cut is not None and cut.begins)
        before = self._fields.boolean("tokenizer.ggml.add_bos_token", begins)
        if kind == WORDPIECE:
            first = self.token("cls")
            ends = self._fields.boolean("tokenizer.ggml.add_sep_token", True)
            return (
                (self.token("bos") if first is None else first) if before else None,
                self.token("seperator") if ends else None,  # as the key is spelled
            )
        after = self._fields.boolean("tokenizer.ggml.add_eos_token", kind == UNIGRAM)
        return (self.token("bos") if before else None, self.token("eos") if after else None)


def _indices_of(array: np.ndarray, values: Sequence[int]) -> list[int]:
    return [int(index) for index in np.flatnonzero(np.isin(array, values))]


def _of_bert(token: str) -> str:
    """Return a token of words as BERT has it; older files leave unused ones in brackets as is."""
    if token.startswith(_SPACE) and len(token) > 1:
        return token[1:]
    bracketed = len(token) > 2 and token.startswith("[") and token.endswith("]")
    return token if bracketed else _CONTINUES + token


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
