"""What the packs of kernels are for: small models of all kinds, and the work that they do.

A need is a model of a kind with settings, in a stored type of its weights, quantized or not, and a
precision. Kernels are the same for all sizes, apart from choices by size: widths here are those of
small real models, so that these choices are theirs, and layers and vocabularies are few.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from PIL import Image

import gptrs
import gptrs_conformance.cases  # noqa: F401 - registers the cases
from fuzzing.tiny_gguf import llama
from fuzzing.tiny_models import save_tiny_model
from gptrs.backend.contract import InputRole
from gptrs.checkpoint.formats.gguf_types import GGUF_TYPES
from gptrs.errors import UnsupportedError
from gptrs.ir import dtypes
from gptrs.ir.op import Op
from gptrs_backend_numba import parts
from gptrs_backend_numba.backend import PRECISIONS
from gptrs_backend_numba.codegen import compiled
from gptrs_backend_numba.kernels.amx.integer import all_amx_integer_kernels
from gptrs_backend_numba.kernels.code_table import code_table
from gptrs_backend_numba.kernels.convolution import depthwise, direct
from gptrs_backend_numba.kernels.matmul.gemm_ir import ROWS as TALLEST
from gptrs_backend_numba.kernels.matmul.integer import all_integer_kernels
from gptrs_backend_numba.kernels.matmul.integer_depthwise import all_depthwise_kernels
from gptrs_backend_numba.kernels.matmul.integer_finish import all_finishing_kernels
from gptrs_backend_numba.lowering.convolution import KNOWN_COLUMNS
from gptrs_backend_numba.passes.elementwise_groups import ELEMENTWISE
from gptrs_conformance.op_case import ROWS, OpCase, cases, legal_dtypes
from gptrs_conformance.op_runner import program_of
from gptrs_models.kinds import IMAGES, KINDS, MIXTURES, PARTS, SOURCES, TEXTS, WORDS
from gptrs_runtime.embedding.embed import embed_images, match
from gptrs_runtime.generation.batch import generate_batch
from gptrs_runtime.load_options import LOADED_TYPES
from gptrs_runtime.loaded_model import LoadedModel

Settings = Mapping[str, object]
BLOCK_TYPES: Final = tuple(each.name for each in GGUF_TYPES.values() if each.format is not None)
"""Types of quantized tensors in GGUF files."""
_WORDS: Final = 20_000
"""Tokens of vocabularies: from 16,384 on the last product reads its table where it lies."""
_LENGTHS: Final = (1, 7, 40, 200)
"""Tokens of prompts: one, a few, and so many that products of many rows pay, on AMX from 32 on."""
_COMMON: Final = frozenset({
    dtypes.i1, dtypes.si8, dtypes.ui8, dtypes.si32, dtypes.si64,
    dtypes.bf16, dtypes.f16, dtypes.f32, dtypes.f64,
})  # fmt: skip
"""Element types with kernels for each op: all types would be twice as many."""
_SHARES: Final = 16
"""Of kernels that are listed, for as many processes."""
_TEXTS: Final = (["a"], ["a b c d e f g"], [" ".join("abcdefgh" * 9), "a b", "c d e"])


@dataclass(frozen=True)
class Need:
    """A model of a kind with weights of a stored type, and how it is loaded."""

    kind: str
    settings: Settings
    stored: str = "f32"
    loaded: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the kind and how the model is loaded."""
        how = [self.stored, *(f"{name}={value}" for name, value in self.loaded.items())]
        return f"{self.kind} ({', '.join(how)})"

    def run(self, folder: Path) -> None:
        """Make the model in `folder`, and do with it all that it can do."""
        shutil.rmtree(folder, ignore_errors=True)
        model = gptrs.load_model(self.made(folder), "numba", **self.loaded)
        for able, work in _WORK.items():
            if able in model.capabilities:
                work(model)

    def made(self, folder: Path) -> Path:
        """Write the files of the model; its weights are zeros."""
        dtype = dtypes.by_name(self.stored).numpy
        backend = gptrs.get_backend("numba")
        save_tiny_model(
            folder, self.kind, backend, self.settings, lambda shape: np.zeros(shape, dtype)
        )
        (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
        (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
        (folder / "vocab.json").write_text(json.dumps(_LETTERS))
        return folder


@dataclass(frozen=True)
class GgufNeed(Need):
    """A `llama` in a GGUF file, whose matrices have the types in `stored`."""

    def made(self, folder: Path) -> Path:
        """Write the file."""
        folder.mkdir(parents=True)
        path = folder / "model.gguf"
        path.write_bytes(llama(self.stored.split("+"), width=512))
        return path


@dataclass(frozen=True)
class OpNeed:
    """The kernels of an op on the element types that files have; chains are left to parts.

    They are what a program has at once, whatever file it is from.
    """

    op: type[Op]

    @property
    def name(self) -> str:
        """Return the name of the op."""
        return f"op {self.op.name}"

    def run(self, folder: Path) -> None:
        """Compile the cases of the conformance kit."""
        backend = gptrs.get_backend("numba")
        with patch.dict(os.environ, {parts.VARIABLE: "only"}):
            for program in map(program_of, self._cases()):
                with suppress(UnsupportedError):
                    params = program.main.body.params
                    backend.compile(program, [InputRole.ARGUMENT] * len(params))

    def _cases(self) -> Iterator[OpCase]:
        for dtype in legal_dtypes(self.op):
            for case in cases(self.op, dtype):
                if {dtypes.from_numpy(each.dtype) for each in case.inputs} <= _COMMON:
                    yield case


@dataclass(frozen=True)
class KernelsNeed:
    """Kernels that are listed: those that sizes choose among, a share at a time."""

    name: str
    kernels: Callable[[], Iterable[compiled.WantedKernel]]
    share: int = 0
    shares: int = 1

    def run(self, folder: Path) -> None:
        """Ask for each."""
        for each in list(self.kernels())[self.share :: self.shares]:
            compiled.known(each)


def _convolutions() -> Iterator[compiled.WantedKernel]:
    """Yield the kernels for tiles of all heights, and for all windows of depthwise convolutions."""
    tiles = itertools.product(range(1, TALLEST + 1), (1, 2), (False, True))
    found = [direct.tiles_of(rows, vectors, prefetches=far) for rows, vectors, far in tiles]
    found += [depthwise.any_window(), *map(depthwise.window_3x3, (1, 2))]
    found += [depthwise.any_window(*each) for each in itertools.product((1, 2), KNOWN_COLUMNS)]
    yield from map(compiled.WantedKernel, found)


def _integers() -> Iterator[compiled.WantedKernel]:
    """Yield the kernels for codes of 8 bits, which imported networks have."""
    found = itertools.chain(
        all_integer_kernels(),
        all_depthwise_kernels(),
        all_finishing_kernels(),
        all_amx_integer_kernels(),
        [code_table()],
    )
    yield from map(compiled.WantedKernel, found)


def _tokenizer() -> dict[str, object]:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    special = [
        {"id": at, "content": words[at], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True} for at in range(5)
    ]  # fmt: skip
    vocabulary = {word: at for at, word in enumerate(words)}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip


def _generate(model: LoadedModel) -> None:
    context = model.causal_lm().context_length
    greedy = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
    # The batch at the end takes several steps in one run, which elsewhere longer texts do.
    with patch.object(type(model.backend), "single_steps_first", 0):
        for length in (each for each in _LENGTHS if each + 3 <= context):
            gptrs.generate(model, [5] * length, steps_at_once=1, **greedy)
    for sampling in _SAMPLINGS:
        gptrs.generate(model, [5] * 9, max_tokens=3, ignore_eos=True, **sampling)
    prompts = [[5] * 9, [6] * 3, [7] * 40]
    list(generate_batch(model, prompts, **greedy))
    model.forward(np.full((1, 9), 5))


def _write_about(model: LoadedModel) -> None:
    for length in _LENGTHS[1:3]:
        gptrs.generate(model, [5] * length, max_tokens=3, temperature=0, ignore_eos=True)


def _read(model: LoadedModel) -> None:
    for length in _LENGTHS:
        model.forward(np.full((1, length), 5))
    model.forward(np.full((3, 40), 5))


def _embed(model: LoadedModel) -> None:
    for texts in _TEXTS:
        gptrs.embed(model, texts)


def _see(model: LoadedModel) -> None:
    for count in (1, 2):
        model.forward(np.zeros((count, 3, 224, 224), np.float32))


def _embed_images(model: LoadedModel) -> None:
    embed_images(model, [_picture()])
    embed_images(model, [_picture()] * 2)


def _match(model: LoadedModel) -> None:
    match(model, [_picture()], ["a b", "c"])


@cache
def _picture() -> str:
    path = Path(tempfile.mkdtemp(prefix="gptrs-pack-"), "picture.png")
    Image.new("RGB", (224, 224)).save(path)
    return str(path)


def _hear(model: LoadedModel) -> None:
    gptrs.transcribe(model, np.zeros(16000 * 2, np.float32), rate=16000)


_SAMPLINGS: Final[Sequence[Mapping[str, Any]]] = (
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 1},
)
_LETTERS: Final = {letter: at for at, letter in enumerate(("<pad>", "|", *"abcdef"))}
_WORK: Final[Mapping[str, Callable[[LoadedModel], None]]] = {
    "causal_lm": _generate,
    "text_embedder": _embed,
    "text_classifier": _read,
    "token_classifier": _read,
    "masked_lm": _read,
    "seq2seq": _write_about,
    "image_classifier": _see,
    "image_embedder": _embed_images,
    "image_text": _match,
    "transcriber": _hear,
    "sound_transcriber": _hear,
    "ctc": _hear,
}
"""The work for each capability that needs kernels of its own."""


# Settings with the widths of small real models, and those that kinds need beside.


_LABELS: Final = {str(at): f"class {at}" for at in range(1000)}
_TEXT: Final[Settings] = {
    "vocab_size": _WORDS, "hidden_size": 576, "num_hidden_layers": 2, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1536, "max_position_embeddings": 512,
}  # fmt: skip
_ENCODER: Final[Settings] = {
    **_TEXT, "hidden_size": 384, "num_attention_heads": 12, "num_key_value_heads": 12,
    "type_vocab_size": 2, "pad_token_id": 0,
}  # fmt: skip
_IMAGE: Final[Settings] = {
    "hidden_size": 384, "num_hidden_layers": 1, "num_attention_heads": 6, "intermediate_size": 1536,
    "image_size": 224, "patch_size": 16, "num_channels": 3, "id2label": _LABELS,
}  # fmt: skip
_EXPERTS: Final[Settings] = {
    **_TEXT, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 512, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
}  # fmt: skip
_BASES: Final[Mapping[str, Settings]] = {
    TEXTS: _ENCODER, WORDS: _TEXT, MIXTURES: _EXPERTS, IMAGES: _IMAGE, SOURCES: {},
    PARTS: {"text_config": _TEXT, **_TEXT},
}  # fmt: skip
_LABELED: Final[Settings] = {"id2label": _LABELS}
_SPEECH: Final[Settings] = {
    "d_model": 384, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536,
    "vocab_size": _WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3,
}  # fmt: skip
_T5: Final[Settings] = {
    "vocab_size": _WORDS, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 2, "num_heads": 6,
    "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
_CTC: Final[Settings] = {
    "vocab_size": 8, "hidden_size": 768, "num_hidden_layers": 1, "num_attention_heads": 12,
    "intermediate_size": 3072, "pad_token_id": 0,
}  # fmt: skip
_OLDER: Final[Settings] = {
    "vocab_size": _WORDS, "n_layer": 2, "n_embd": 576, "hidden_size": 576, "n_head": 9,
}  # fmt: skip
_SEEING: Final[Settings] = {
    "text_config": {**_TEXT, "model_type": "llama"}, "image_token_id": 3, "scale_factor": 2,
    "vision_config": _IMAGE,
}  # fmt: skip
_MATCHING: Final[Settings] = {
    "text_config": {**_ENCODER, "eos_token_id": 2, "projection_size": 384}, "projection_dim": 384,
    "vision_config": _IMAGE,
}  # fmt: skip
_OWN: Final[Mapping[str, Settings]] = {
    "gpt2": {"n_layer": 2, "vocab_size": _WORDS},
    "gpt_neo": {**_OLDER, "num_layers": 2, "num_heads": 9,
                "attention_types": [[["global", "local"], 1]]},
    "gptj": {**_OLDER, "rotary_dim": 32},
    "codegen": {**_OLDER, "n_embd": 512, "n_head": 8, "rotary_dim": 32},
    "bloom": _OLDER,
    "mpt": {**_OLDER, "d_model": 576, "n_heads": 9, "n_layers": 2},
    "RefinedWeb": _OLDER,
    "RefinedWebModel": {**_OLDER, "multi_query": True},
    "xglm": {"vocab_size": _WORDS, "d_model": 576, "attention_heads": 9, "num_layers": 2,
             "ffn_dim": 1536},
    "mamba2": {"vocab_size": _WORDS, "hidden_size": 768, "num_heads": 24, "head_dim": 64,
               "n_groups": 1, "num_hidden_layers": 2},
    "ernie4_5_moe": {**_EXPERTS, "moe_k": 2, "moe_num_experts": 4},
    "new": {**_ENCODER, "rope_theta": 1e4},
    "whisper": {**_SPEECH, "num_mel_bins": 80},
    "moonshine": {**_TEXT, "hidden_size": 288, "decoder_start_token_id": 3, "bos_token_id": 1,
                  "eos_token_id": 2, "pad_token_id": 0},
    "idefics3": _SEEING,
    "smolvlm": _SEEING,
    **dict.fromkeys(("bart", "marian", "plbart", "mbart", "pegasus", "m2m_100", "blenderbot"),
                    _SPEECH),
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
    **dict.fromkeys(("wav2vec2", "hubert", "unispeech", "unispeech-sat"), _CTC),
    **dict.fromkeys(("resnet", "mobilenet_v1", "mobilenet_v2", "convnext", "convnextv2",
                     "efficientnet", "regnet", "bit", "swin"), _LABELED),
    "clip": _MATCHING,
    "siglip": _MATCHING,
    "siglip2": _MATCHING,
}  # fmt: skip
"""Settings that replace those of the heading."""
_WIDELY_USED: Final = ("gpt2", "llama", "qwen3_moe", "bert", "vit", "whisper")
"""Kinds that are tried with all stored types and precisions: each has other kinds of products."""
_STORED: Final = ("f32", "bf16", "f16")
_QUANTIZED: Final = ("gpt2", "llama", "qwen3_moe", "bert")
"""Those whose weights are rounded to groups of codes, too."""
LEFT_OUT: Final = {"mobilenet_v3": "its weights decide what it is, so that none can be asked for"}


def _needs() -> Iterator[Need | OpNeed | KernelsNeed]:
    for share in range(_SHARES):
        yield KernelsNeed(f"parts {share}", parts.all_parts, share, _SHARES)
        yield KernelsNeed(f"convolutions {share}", _convolutions, share, _SHARES)
        yield KernelsNeed(f"integers {share}", _integers, share, _SHARES)
    yield from [OpNeed(op) for op in ROWS if not issubclass(op, ELEMENTWISE)]
    settings: dict[str, Settings] = {}
    for family in KINDS:
        for kind in family.kinds:
            if kind not in LEFT_OUT:
                settings[kind] = _OWN.get(kind, _BASES[family.heading])
                yield Need(kind, settings[kind])
    for kind, stored, precision in itertools.product(_WIDELY_USED, _STORED, PRECISIONS):
        if (stored, precision) != ("f32", "f32"):
            yield Need(kind, settings[kind], stored, {"precision": precision})
    for kind, how, precision in itertools.product(_QUANTIZED, LOADED_TYPES, PRECISIONS):
        few = {**settings[kind], "vocab_size": 2_000}  # to round large tables takes long
        yield Need(kind, few, "bf16", {"weights": how, "precision": precision})
    for types in (*BLOCK_TYPES, "Q4_K+Q6_K", "Q5_K+Q6_K", "F16", "BF16"):
        for precision in PRECISIONS:
            yield GgufNeed("llama", {}, types, {"precision": precision})


NEEDS: Final = tuple(_needs())
