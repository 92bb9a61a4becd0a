"""Small tokenizer.json files that between them use every part that those of models use."""

from __future__ import annotations

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

_WORDS = ("[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "the", "cat", "##at", "he", "l", "o")
_VOCABULARY = {word: number for number, word in enumerate(_WORDS)}
_GPT2 = r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def tokenizer_files() -> list[bytes]:
    """Byte-level and byte-fallback BPE, WordPiece, Unigram, and WordLevel."""
    made = (_byte_level(), _byte_fallback(), _word_piece(), _unigram(), _word_level())
    return [tokenizer.to_str().encode() for tokenizer in made]


def _byte_level() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    vocabulary |= {"th": 256, "the": 257, "Ġthe": 258, "<s>": 259}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_GPT2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, lstrip=True)])
    return tokenizer


def _byte_fallback() -> Tokenizer:
    vocabulary = {"<unk>": 0, "<s>": 1, **{f"<0x{n:02X}>": n + 2 for n in range(256)}}
    vocabulary |= {"▁": 258, "t": 259, "h": 260, "th": 261}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, [("t", "h")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return tokenizer


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(_VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding()
    tokenizer.add_tokens(["[MASK]"])
    return tokenizer


def _unigram() -> Tokenizer:
    pieces = [(word, -float(number)) for number, word in enumerate(_WORDS)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(_VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits()]
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 5), ("<s>", 4))
    tokenizer.decoder = decoders.CTC()
    return tokenizer
