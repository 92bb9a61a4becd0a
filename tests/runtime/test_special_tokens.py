"""Tokens that stand beside tokenizer.json are read as transformers reads them."""

from __future__ import annotations

import inspect
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gptrs.errors import ModelError
from gptrs_runtime.chat.template import chat_template_of
from gptrs_runtime.generation.text_stream import IncrementalDecoder
from gptrs_runtime.sources.find_model import find_model
from gptrs_runtime.sources.model_source import ModelSource
from gptrs_runtime.text_classes.fill import mask_of
from gptrs_runtime.tokenization.special_tokens import named_tokens
from gptrs_runtime.tokenization.tokenizer import tokenizer_of

CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    "{{ image_token }}"
)
TEXT = "a<new>b <img> c<end>"


def save(folder: Path, beside: dict[str, Any]) -> ModelSource:
    """Save a tokenizer of bytes with an end token, and files beside it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate([*alphabet, "<end>"])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", special=True)])
    folder.mkdir()
    return saved(made, folder, beside)


def saved(made: Tokenizer, folder: Path, beside: dict[str, Any]) -> ModelSource:
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    for name, content in beside.items():
        (folder / name).write_text(json.dumps(content))
    return find_model(folder)


DECODER = {"257": {"content": "<new>", "special": False, "normalized": True}}
CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "added_tokens_decoder": {"tokenizer_config.json": {"added_tokens_decoder": DECODER}},
    "flags": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "257": {"content": "<new>", "lstrip": True, "rstrip": True, "special": True}
            }
        }
    },
    "added_tokens": {"added_tokens.json": {"<img>": 258, "<new>": 257}},
    "additional": {"tokenizer_config.json": {"additional_special_tokens": ["<new>", "<img>"]}},
    "extra by name": {"tokenizer_config.json": {"extra_special_tokens": {"image_token": "<img>"}}},
    "a name of its own": {"tokenizer_config.json": {"image_token": "<img>"}},
    "flags without a number": {
        "tokenizer_config.json": {
            "additional_special_tokens": [
                {"__type": "AddedToken", "content": "<img>", "lstrip": True, "rstrip": True}
            ]
        }
    },
    "extra before additional": {
        "tokenizer_config.json": {
            "extra_special_tokens": ["<img>"],
            "additional_special_tokens": ["<new>"],
        }
    },
    "the map": {"special_tokens_map.json": {"bos_token": "<new>", "eos_token": "<end>"}},
    "the map over the config": {
        "tokenizer_config.json": {"bos_token": "<img>", "eos_token": "<end>"},
        "special_tokens_map.json": {"bos_token": {"content": "<new>", "lstrip": False}},
    },
    "a prefix space": {"tokenizer_config.json": {"add_prefix_space": True}},
    "a prefix space without a class": {"tokenizer_config.json": {"add_prefix_space": True}},
    "special tokens as texts": {"tokenizer_config.json": {"split_special_tokens": True}},
}


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_transformers(tmp_path, name):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    beside = {key: dict(value) for key, value in CASES[name].items()}
    made = "GPT2Tokenizer" if name == "a prefix space" else "PreTrainedTokenizerFast"
    beside.setdefault("tokenizer_config.json", {})["tokenizer_class"] = made
    folder = tmp_path / "m"
    files = save(folder, beside)
    theirs = getattr(transformers, made).from_pretrained(folder)
    assert tokenizer_of(files, "m").encode(TEXT) == theirs(TEXT)["input_ids"]


def test_a_prefix_space_behind_a_split(tmp_path):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = transformers.Qwen2Tokenizer({piece: i for i, piece in enumerate(alphabet)}, [])
    made.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    beside = {"tokenizer_config.json": {**settings, "add_prefix_space": True}}
    files = saved(made.backend_tokenizer, tmp_path, beside)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_of(files, "m").encode("a b\nc") == theirs("a b\nc")["input_ids"]
    assert theirs("a b\nc")["input_ids"] != made("a b\nc")["input_ids"]


@pytest.mark.parametrize("made", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars", None])
def test_texts_are_cleaned_as_the_file_beside_the_tokenizer_says(tmp_path, made, key):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "caf\xe9", "cafe", "Cafe", "\u4e2d"]
    own = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    usual = key is not None
    own.normalizer = normalizers.BertNormalizer(lowercase=usual, handle_chinese_chars=usual)
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    settings = {"tokenizer_class": made, "truncation_side": "left", **({key: False} if key else {})}
    ours = tokenizer_of(saved(own, tmp_path, {"tokenizer_config.json": settings}), "m")
    theirs = getattr(transformers, made).from_pretrained(tmp_path)
    text = "Caf\xe9 \u4e2d\u4e2d cafe"
    assert ours.encode(text, special=False) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode_within("cafe \u4e2d cafe", 2)[0] == ours.encode("\u4e2d cafe", special=False)


@pytest.mark.parametrize("made", ["BertTokenizer", "PreTrainedTokenizerFast", None])
def test_texts_are_cleaned_by_the_class_that_config_json_names_or_implies(tmp_path, made):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe", "Cafe"]
    own = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    own.normalizer = normalizers.BertNormalizer(lowercase=False)
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    named = {"config.json": {"model_type": "bert", **({"tokenizer_class": made} if made else {})}}
    ours = tokenizer_of(saved(own, tmp_path, named), "m")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (
        ours.encode("Cafe", special=False) == theirs("Cafe", add_special_tokens=False)["input_ids"]
    )


def test_a_class_puts_no_space_before_a_text_although_the_file_would(tmp_path):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    made = Tokenizer(models.BPE({"a": 0, "\u0120": 1, "<|endoftext|>": 2}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    files = saved(made, tmp_path, {"config.json": {"model_type": "gpt2"}})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_of(files, "m").encode("a a") == theirs("a a")["input_ids"] == [0, 1, 0]


def test_the_mask_token_of_a_class_must_be_in_the_vocabulary(tmp_path):
    made = Tokenizer(models.WordLevel({"<mask>": 0, "a": 1}, "a"))
    files = saved(made, tmp_path, {"config.json": {"model_type": "bert"}})
    assert named_tokens(files)["mask_token"] == "[MASK]"
    model = SimpleNamespace(files=files, tokenizer=tokenizer_of(files, "m"), name="m")
    assert mask_of(model) == "<mask>"


SPECIAL_OF = {
    "RobertaTokenizer": "roberta", "BertTokenizer": "bert", "GPT2Tokenizer": "gpt2",
    "Qwen2Tokenizer": "qwen2", "GPTNeoXTokenizer": "gpt_neox", "MPNetTokenizer": "mpnet",
    "GemmaTokenizer": "gemma", "CLIPTokenizer": "clip", "LlamaTokenizer": None,
    "XLMRobertaTokenizer": "xlm-roberta", "T5Tokenizer": "t5", "DebertaV2Tokenizer": "deberta-v2",
}  # fmt: skip


@pytest.mark.parametrize("made", SPECIAL_OF)
def test_special_tokens_that_no_file_names_are_those_of_the_class(tmp_path, made):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    kind = SPECIAL_OF[made]
    config = {"model_type": kind} if kind else {"model_type": "llama", "tokenizer_class": made}
    own = inspect.signature(getattr(transformers, made).__init__).parameters
    names = [f"{name}_token" for name in ("bos", "unk", "sep", "pad", "cls", "mask")]
    usual = {name: str(own[name].default) for name in names if name in own and own[name].default}
    beside = {"config.json": config, "tokenizer_config.json": {"eos_token": None}}
    assert named_tokens(saved(Tokenizer(models.BPE()), tmp_path, beside)) == usual


@pytest.mark.parametrize("lowers", [True, False])
@pytest.mark.parametrize("made", ["DebertaV2Tokenizer", "AlbertTokenizer", "T5Tokenizer"])
def test_texts_of_pieces_are_lowered_as_the_file_beside_the_tokenizer_says(tmp_path, made, lowers):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    words = ["<pad>", "<unk>", "[CLS]", "[SEP]", "\u2581", "\u2581House", "\u2581house", "House"]
    vocabulary = [(word, -float(number)) for number, word in enumerate(words)]
    own = getattr(transformers, made)(vocabulary, do_lower_case=not lowers, unk_token="<unk>")
    own.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    beside = {"tokenizer_config.json": {**settings, "do_lower_case": lowers}}
    ours = tokenizer_of(saved(own.backend_tokenizer, tmp_path, beside), "m")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "a House"
    assert ours.encode(text, special=False) == theirs(text, add_special_tokens=False)["input_ids"]


PIECES = [*"abntmsver.?!,'", *["▁", "▁'", "▁n", "▁do", "n't", "▁.", "▁ve"]]


@pytest.mark.parametrize("model", ["Unigram", "BPE"])
def test_decoded_texts_lose_spaces_as_in_transformers_also_piece_by_piece(tmp_path, model):
    transformers = pytest.importorskip("transformers", reason="parity needs transformers")
    words = [(piece, 0.0) for piece in ["<unk>", *PIECES]]
    numbers = {piece: number for number, (piece, _) in enumerate(words)}
    is_unigram = model == "Unigram"
    made = Tokenizer(models.Unigram(words, unk_id=0) if is_unigram else models.BPE(numbers, []))
    made.decoder = decoders.Metaspace()
    beside = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    ours = tokenizer_of(saved(made, tmp_path, {"tokenizer_config.json": beside}), "m")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    source = random.Random(0)
    changed = 0
    for _ in range(300):
        tokens = [source.randrange(1, len(PIECES)) for _ in range(12)]
        wanted = theirs.decode(tokens)
        stream = IncrementalDecoder(ours.decode, ours.open_ends)
        assert ours.decode(tokens) == wanted
        assert "".join(map(stream.push, tokens)) + stream.finish() == wanted
        changed += wanted != made.decode(tokens)
    assert (changed > 100) == is_unigram


def test_a_lowered_text_is_that_of_a_normalizer_and_keeps_special_tokens(tmp_path):
    files = save(tmp_path / "m", {"tokenizer_config.json": {"mask_token": "<MASK>"}})
    ours = tokenizer_of(files, "m")
    theirs = Tokenizer.from_str(ours.as_json())
    theirs.normalizer = normalizers.Lowercase()
    for text in ("The <MASK> House <end>", "ΟΔΟΣ İ É", "<mask>"):
        wanted = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(ours.lowered(text), special=False) == wanted


def test_a_template_has_the_tokens_of_the_map_and_named_ones(tmp_path):
    config = {"chat_template": CHAT, "extra_special_tokens": {"image_token": "<img>"}}
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    files = save(
        tmp_path / "m", {"tokenizer_config.json": config, "special_tokens_map.json": tokens}
    )
    template = chat_template_of(files, "m")
    assert template.render([{"role": "user", "content": "hi"}]) == "<s>hi</s><img>"


REFUSALS: list[tuple[dict[str, Any], str]] = [
    (
        {"tokenizer_config.json": {"added_tokens_decoder": {"300": {"content": "<new>"}}}},
        "'<new>'` is number 300 of the model, but with `tokenizer.json` it would be 257",
    ),
    (
        {"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "<new>"}}}},
        "`added_tokens_decoder` in .* must name tokens by their numbers, found `x`",
    ),
    (
        {"tokenizer_config.json": {"added_tokens_decoder": [1]}},
        "`tokenizer_config.json`: `added_tokens_decoder` must be an object, found",
    ),
    (
        {"tokenizer_config.json": {"added_tokens_decoder": {"1": {"content": 3}}}},
        "`tokenizer_config.json`: `added_tokens_decoder.1.content` must be a string, found `3`",
    ),
    ({"added_tokens.json": {"a": 1, "<new>": "1"}}, "`<new>` must be an integer, found `'1'`"),
]


@pytest.mark.parametrize(("beside", "message"), REFUSALS)
def test_what_does_not_fit_is_refused(tmp_path, beside, message):
    files = save(tmp_path / "m", beside)
    with pytest.raises(ModelError, match=message):
        tokenizer_of(files, "m")
