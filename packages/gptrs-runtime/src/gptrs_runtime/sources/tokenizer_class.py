"""The class of transformers that a model's tokenizer has, and the defaults that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gptrs.lazy_module import lazy_module
from gptrs_runtime.sources.model_source import ModelSource

if TYPE_CHECKING:
    from gptrs_runtime.sources import format_kinds
else:
    format_kinds = lazy_module("gptrs_runtime.sources.format_kinds")

TOKENIZER_CONFIG: Final = "tokenizer_config.json"
_KEY: Final = "tokenizer_class"
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_NAMES: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def _special(texts: str) -> Mapping[str, str]:
    """Return the tokens of `texts` by the names in `_NAMES`, `-` for none."""
    pairs = zip(_NAMES, texts.split(), strict=True)
    return MappingProxyType({f"{name}_token": text for name, text in pairs if text != "-"})


_ROBERTA: Final = _special("<s> </s> <unk> </s> <pad> <s> <mask>")
_BERT: Final = _special("- - [UNK] [SEP] [PAD] [CLS] [MASK]")
_DEBERTA: Final = _special("[CLS] [SEP] [UNK] [SEP] [PAD] [CLS] [MASK]")
_GPT2: Final = _special("<|endoftext|> <|endoftext|> <|endoftext|> - - - -")
_QWEN2: Final = _special("- <|endoftext|> <|endoftext|> - <|endoftext|> - -")
_SPECIAL: Final[Mapping[str, Mapping[str, str]]] = {
    "AlbertTokenizer": _special("[CLS] [SEP] <unk> [SEP] <pad> [CLS] [MASK]"),
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "MobileBertTokenizer": _BERT,
    "ConvBertTokenizer": _BERT,
    "BartTokenizer": _ROBERTA,
    "CamembertTokenizer": _ROBERTA,
    "CLIPTokenizer": _special("<|startoftext|> <|endoftext|> <|endoftext|> - <|endoftext|> - -"),
    "CodeGenTokenizer": _GPT2,
    "DebertaTokenizer": _DEBERTA,
    "DebertaV2Tokenizer": _DEBERTA,
    "FunnelTokenizer": _special("<s> </s> <unk> <sep> <pad> <cls> <mask>"),
    "GemmaTokenizer": _special("<bos> <eos> <unk> - <pad> - <mask>"),
    "GPT2Tokenizer": _GPT2,
    "GPTNeoXTokenizer": _special("<|endoftext|> <|endoftext|> <|endoftext|> - <|padding|> - -"),
    "LlamaTokenizer": _special("<s> </s> <unk> - - - -"),
    "MBartTokenizer": _ROBERTA,
    "MPNetTokenizer": _special("<s> </s> [UNK] </s> <pad> <s> <mask>"),
    "NllbTokenizer": _ROBERTA,
    "Qwen2Tokenizer": _QWEN2,
    "RobertaTokenizer": _ROBERTA,
    "T5Tokenizer": _special("- </s> <unk> - <pad> - -"),
    "XLMRobertaTokenizer": _ROBERTA,
}


def tokenizer_class(files: ModelSource) -> str | None:
    """Return the class of the tokenizer, without `Fast` at its end; None if nothing tells it.

    tokenizer_config.json names it, else config.json, as in older folders, else the kind of model
    does. ModelError for a malformed file.
    """
    named = named_class(files)
    if named is not None:
        return named
    kind = format_kinds.kind_named(files.config.get("model_type"))
    return None if kind is None else kind.tokenizer


def named_class(files: ModelSource) -> str | None:
    """Return the class that a file names, as `tokenizer_class` does, without asking the plugins."""
    settings = files.read_json(TOKENIZER_CONFIG) or {}
    named = settings.get(_KEY) or files.config.get(_KEY)
    return named.removesuffix("Fast") if isinstance(named, str) else None


def default_special(name: str | None) -> Mapping[str, str]:
    """Return the special tokens that a class has unless files say otherwise: `bos_token`, ..."""
    return _NONE if name is None else _SPECIAL.get(name, _NONE)
