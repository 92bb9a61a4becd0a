"""Writes a model as a GGUF file, with or without quantized matrices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import Backend
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.formats.gguf_writer import GgufOutgoing, write_gguf
from gptrs.checkpoint.params import WeightUse
from gptrs.errors import ModelError, UsageError
from gptrs.ir import dtypes
from gptrs.progress import StepProgress
from gptrs.quoting import listed, quoted
from gptrs_runtime.chat.template import chat_template_of
from gptrs_runtime.converting.convert import watched
from gptrs_runtime.gguf_export.tensors import (
    GgufNames,
    extra_tensors,
    plain_tensors,
    read_rotary,
    stacked,
)
from gptrs_runtime.quantizing.gguf_blocks import GGUF_WEIGHT_TYPES, quantized_outgoing
from gptrs_runtime.quantizing.plan import WeightType, planned
from gptrs_runtime.quantizing.tensor_rounding import RoundedTensor, Rounding
from gptrs_runtime.results import TensorError
from gptrs_runtime.sources.gguf_metadata import GgufSettingsOf, Metadata, settings_of
from gptrs_runtime.sources.gguf_tokenizer import (
    BYTE_BPE,
    CUT_OTHERWISE,
    NO_TOKENIZER,
    PRE_TOKENIZERS,
    SENTENCEPIECE,
    WHOLE,
    GgufTokenizer,
)
from gptrs_runtime.sources.model_source import CONFIG, GENERATION_CONFIG, TOKENIZER, ModelSource
from gptrs_runtime.tokenization.special_tokens import named_tokens
from gptrs_runtime.tokenization.tokenizer import TextTokenizer, tokenizer_of

# The tokenizer of a model as the metadata of a GGUF file, compared with the original.
#
# The format says how a text is cut by a name (`tokenizer.ggml.pre`) only. The name is found by
# trying each that `gguf_tokenizer` reads on a text with a bit of everything. If none gives the same
# tokens, the file also contains the whole `tokenizer.json`, with a note.


PROBE = (
    "Hello World, it's 12345 o'clock!  We'LL see\tthem\n\n\n  return x_1 + 3.14; // HTTPServer\r\n"
    " \u00e4\u00f6\u00fc \u00dcber \u00c9T\u00c9 na\u00efve cafe\u0301 \u0434\u043e\u043c\u0430"
    " \u6771\u4eac \u0e44\u0e17\u0e22 \u0928\u092e\u0938\u094d\u0924\u0947 \U0001f600\U0001f680"
    " --(a)[b]{c} $$ 100%\ndef f(a):\n    if a >= 10 and b!='':\n        pass   \n"
    " ?!?! we're you've I'd 0xFF 1,000.00"
)
"""Letters of both cases and several scripts, digits, spaces, line ends, signs and contractions."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_UNKNOWN_SCORE = -1e6


class Vocabulary(Struct, frozen=True):
    """Metadata of a tokenizer; a `note` says what other readers will do differently."""

    metadata: Metadata
    note: str | None = None


def vocabulary_of(source: ModelSource, size: int) -> Vocabulary:
    """Return the metadata of the tokenizer and the chat template of a model of `size` tokens.

    A model without a tokenizer gives a file without one. ModelError for a malformed one, or one
    with tokens that the model does not have.
    """
    if not source.has_file(TOKENIZER):
        return Vocabulary({"tokenizer.ggml.model": NO_TOKENIZER}, "there is no tokenizer to write")
    tokenizer = tokenizer_of(source, source.name)
    whole = cast("dict[str, Any]", json.loads(tokenizer.as_json()))
    unknown = whole["model"].get("unk_token")
    beside: Metadata = {**_special(source, tokenizer, unknown), **_template(source)}
    for candidate in _candidates(whole, size):
        metadata = {**candidate, **beside, **_around(tokenizer, beside)}
        if _same(tokenizer, metadata):
            return Vocabulary(metadata)
    kept: Metadata = {
        **next(_candidates(whole, size), {"tokenizer.ggml.model": NO_TOKENIZER}),
        **beside,
    }
    return Vocabulary(
        {**kept, **_around(tokenizer, beside), WHOLE: tokenizer.as_json()},
        CUT_OTHERWISE,
    )


def _candidates(whole: Mapping[str, Any], size: int) -> Iterator[Metadata]:
    """Yield candidate metadata for each way to read the tokens, the simplest first."""
    model = whole["model"]
    if model.get("type") != "BPE":
        return
    tokens, types = _tokens(whole, size)
    found: Metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    merges = [_joined(merge) for merge in model["merges"]]
    if model.get("byte_fallback"):
        scores = _scores(tokens, merges)
        for prefixed in (True, False):
            yield {
                **found,
                "tokenizer.ggml.model": SENTENCEPIECE,
                "tokenizer.ggml.pre": "default",
                "tokenizer.ggml.scores": scores,
                "tokenizer.ggml.add_space_prefix": prefixed,
            }
        return
    first: dict[str, str] = {}
    for name, cut in PRE_TOKENIZERS.items():
        first.setdefault(json.dumps([cut.steps, cut.nfc, cut.begins]), name)
    written: Metadata = {"tokenizer.ggml.model": BYTE_BPE, "tokenizer.ggml.merges": merges}
    for name in first.values():
        yield {**found, **written, "tokenizer.ggml.pre": name}


def _tokens(whole: Mapping[str, Any], size: int) -> tuple[list[str], np.ndarray]:
    """Return `size` tokens and their types; numbers without a token become unused tokens."""
    numbers: dict[int, str] = {number: text for text, number in whole["model"]["vocab"].items()}
    added = {each["id"]: each for each in whole["added_tokens"]}
    numbers |= {number: each["content"] for number, each in added.items()}
    if numbers and max(numbers) >= size:
        raise ModelError(
            f"the tokenizer has token {max(numbers)}, the model has {size}",
            hint="the tokenizer and the weights are not of one model",
        )
    unknown = whole["model"].get("unk_token")
    is_bytes = bool(whole["model"].get("byte_fallback"))

    def kind(number: int) -> int:
        text = numbers.get(number)
        if text is None:
            return _UNUSED
        if text == unknown:
            return _UNKNOWN
        if number in added:
            return _CONTROL if added[number]["special"] else _USER_DEFINED
        return _BYTE if is_bytes and len(text) == 6 and text.startswith("<0x") else _NORMAL

    tokens = [numbers.get(number, f"[PAD{number}]") for number in range(size)]
    return tokens, np.array([kind(number) for number in range(size)], np.int32)


def _joined(merge: str | Sequence[str]) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)


def _scores(tokens: Sequence[str], merges: Sequence[str]) -> np.ndarray:
    """Return token scores that reproduce the order of `merges`."""
    rank: dict[str, int] = {}
    for number, merge in enumerate(merges):
        rank.setdefault(merge.replace(" ", ""), number)
    scores = [-float(rank[token]) if token in rank else _UNKNOWN_SCORE for token in tokens]
    return np.array(scores, np.float32)


def _special(source: ModelSource, tokenizer: TextTokenizer, unknown: object) -> Metadata:
    """Return the numbers of special tokens; end tokens are eos, eot and eom."""
    named = named_tokens(source)
    if isinstance(unknown, str):
        named.setdefault("unk_token", unknown)
    # The class of a tokenizer may name tokens that its vocabulary lacks.
    numbers = {
        which: number
        for which in ("bos", "eos", "unk", "pad")
        if (text := named.get(f"{which}_token")) is not None
        and (number := tokenizer.number(text)) is not None
    }
    stated = source.generation_config.get("eos_token_id", source.config.get("eos_token_id"))
    several = cast("list[object]", stated) if isinstance(stated, list) else [stated]
    ends = [each for each in several if _is_token(each)]
    first = numbers.get("eos")
    ordered = [first, *ends] if first is not None and first in ends else ends or [first]
    found: dict[str, object] = dict(
        zip(("eos", "eot", "eom"), dict.fromkeys(ordered), strict=False)
    )
    begin = numbers.get("bos", source.config.get("bos_token_id"))
    found |= {"bos": begin, "unknown": numbers.get("unk"), "padding": numbers.get("pad")}
    return {
        f"tokenizer.ggml.{which}_token_id": number
        for which, number in found.items()
        if _is_token(number)
    }


def _is_token(value: object) -> TypeGuard[int]:
    """Return whether a setting is the number of a token."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _template(source: ModelSource) -> Metadata:
    try:
        usual, with_tools = (
            chat_template_of(source, source.name, with_tools=tools).source
            for tools in (False, True)
        )
    except ModelError:  # there is none
        return {}
    found: Metadata = {"tokenizer.chat_template": usual}
    return (
        found if with_tools == usual else {**found, "tokenizer.chat_template.tool_use": with_tools}
    )


def _around(tokenizer: TextTokenizer, beside: Metadata) -> Metadata:
    """Return whether the tokenizer puts special tokens around a text."""
    tokens = tokenizer.encode("a")
    plain = tokenizer.encode("a", special=False)
    first, last = (beside.get(f"tokenizer.ggml.{which}_token_id") for which in ("bos", "eos"))
    more = len(tokens) > len(plain)
    return {
        "tokenizer.ggml.add_bos_token": more and tokens[0] == first,
        "tokenizer.ggml.add_eos_token": more and tokens[-1] == last,
    }


def _same(tokenizer: TextTokenizer, metadata: Metadata) -> bool:
    """Return whether the tokenizer that the metadata describe gives the same tokens."""
    try:
        made = GgufTokenizer(metadata, "in the file to be written").tokenizer_json()
        read = TextTokenizer(made, TOKENIZER)
        return read.encode(PROBE) == tokenizer.encode(PROBE)
    except ModelError:
        return False


PLAIN_TYPES = {"f32": dtypes.f32, "f16": dtypes.f16, "bf16": dtypes.bf16}
"""The types of unquantized files."""
SUFFIX = ".gguf"
_FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q4": 2, "q4_asym": 3, "q8": 7}
"""`general.file_type` by the type of most matrices."""
_READ = (CONFIG, GENERATION_CONFIG, TOKENIZER, "tokenizer_config.json", "chat_template.jinja",
         "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt")  # fmt: skip
"""Files whose content is in the metadata."""


class WrittenGguf(Struct, frozen=True):
    """A report: errors of rounded tensors, names of the others, bytes, and omitted files."""

    quantized: tuple[TensorError, ...]
    kept: tuple[str, ...]
    nbytes: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def require_gguf(destination: Path, type: str, group: int | None) -> None:
    """UsageError for a name that no reader knows, or a type that such files do not have."""
    if destination.suffix.lower() != SUFFIX:
        raise UsageError(
            f"{quoted(str(destination), 200)} is not called like a GGUF file",
            hint=f"choose a name that ends in `{SUFFIX}`",
        )
    known = (*GGUF_WEIGHT_TYPES, *PLAIN_TYPES)
    if type not in known:
        raise UsageError(
            f"a GGUF file has no weights of the type {quoted(type)}",
            hint=f"choose from {listed(known, 99)}",
        )
    if group not in (None, 32):
        raise UsageError(f"a GGUF file has groups of 32 weights, not of {group}")


def write_model(
    source: ModelSource,
    destination: Path,
    type: str,
    uses: Mapping[str, WeightUse],
    unused: Sequence[str],
    backend: Backend,
    *,
    keep: Sequence[str],
    rounding: Rounding,
    progress: StepProgress | None,
) -> WrittenGguf:
    """Write the file atomically; peak memory is that of the largest tensor.

    Heads and tables of tokens get 8 bits. `unused` tensors, which the model does not read, are
    omitted. `backend` computes the errors of products. ModelError for what the format has no word
    for, CheckpointError for weights that cannot be read or rounded.
    """
    settings = settings_of(source.config, source.model_type, read_rotary)
    stored, names = source.weights, GgufNames(settings)
    weights = [name for name in stored.names() if name not in unused]
    table = next(name for name in weights if names.name_of(name) == "token_embd.weight")
    vocab_size = stored.type_of(table).shape[0]
    plan: Mapping[str, WeightType] = {}
    if wanted := GGUF_WEIGHT_TYPES.get(type):
        plan = planned(stored, uses, wanted, keep, heads="q8", vocab_size=vocab_size, experts=True)
    rounded = {
        name: _rounded(source, names, name, uses[name], plan[name].name, rounding, backend)
        for name in weights
        if name in plan and not names.is_router(names.name_of(name))
    }
    kept = [name for name in weights if name not in rounded]
    tensors = stacked(
        [
            *(quantized_outgoing(each, names.name_of(name)) for name, each in rounded.items()),
            *plain_tensors(stored, kept, uses, names, PLAIN_TYPES.get(type)),
            *extra_tensors(settings),
        ]
    )
    vocabulary = vocabulary_of(source, vocab_size)
    metadata = {**_general(source, settings, type), **vocabulary.metadata}
    with atomic_file(destination) as file:
        write_gguf(file, metadata, _watched(tensors, progress))
    return WrittenGguf(
        tuple(each.error() for each in rounded.values()),
        tuple(kept),
        sum(tensor.data.type.size for tensor in tensors),
        tuple(name for name in source.file_names() if name not in _READ),
        () if vocabulary.note is None else (vocabulary.note,),
    )


def _general(source: ModelSource, settings: GgufSettingsOf, type: str) -> Metadata:
    return {
        "general.architecture": settings.architecture,
        "general.name": source.name,
        "general.file_type": _FILE_TYPES[type],
        "general.quantization_version": 2,
        **settings.metadata,
    }


def _rounded(
    source: ModelSource,
    names: GgufNames,
    name: str,
    use: WeightUse,
    type: str,
    rounding: Rounding,
    backend: Backend,
) -> RoundedTensor:
    rows, columns = source.weights.type_of(name).shape
    turned = use == "turned"
    shape = (columns, rows) if turned else (rows, columns)
    load = names.ordered(names.name_of(name), lambda: source.weights.load(name))
    kind = GGUF_WEIGHT_TYPES[type]
    rounded = RoundedTensor(name, load, shape, kind, rounding, turned=turned)
    return rounded.computed_on(backend)


def _watched(
    tensors: Sequence[GgufOutgoing], progress: StepProgress | None
) -> Sequence[GgufOutgoing]:
    data = watched([tensor.data for tensor in tensors], progress)
    return [replace(tensor, data=each) for tensor, each in zip(tensors, data, strict=True)]
