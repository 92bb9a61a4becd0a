"""llama.cpp by `llama-cpp-python`: GPT-2 as GGUF in the types of the checkpoint, on the CPU."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Iterator
from pathlib import Path

import gguf
import llama_cpp as lib
import ml_dtypes
import numpy as np
from peer_cases import PeerDecode, PeerPrefill
from safetensors.numpy import load_file

from gptrs.runtime.measure.bench_cases import BenchCase, DecodeCase, random_prompts

_NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


class LlamaModel:
    """A GPT-2 checkpoint in llama.cpp, with its own cache in f16, which is its default."""

    def __init__(self, folder: Path, threads: int) -> None:
        lib.llama_log_set(_SILENT, ctypes.c_void_p())
        path = folder / "model.gguf"
        if not path.exists():
            write_gguf(folder, path)
        self._threads = threads
        started = time.perf_counter()
        self._model = lib.llama_model_load_from_file(
            str(path).encode(), lib.llama_model_default_params()
        )
        self._one = self._texts(1, 1024)
        self.load_seconds = time.perf_counter() - started

    @property
    def _vocab_size(self) -> int:
        return lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))

    def prefill(self, prompts: Iterator[list[int]]) -> BenchCase:
        """The prompt in one batch; the logits of the last token."""
        return PeerPrefill(self._one, prompts)

    def decode(self, context: int, count: int, texts: int = 1) -> DecodeCase:
        """One token after another, each the likeliest, of all texts in one batch."""
        prompts = random_prompts([context], self._vocab_size)
        together = self._one if texts == 1 else self._texts(texts, context + count)
        return PeerDecode(together, prompts, count, texts)

    def _texts(self, count: int, positions: int) -> LlamaTexts:
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_seq_max = count * positions, 1024, count
        settings.n_threads = settings.n_threads_batch = self._threads
        context = lib.llama_init_from_model(self._model, settings)
        if context is None:
            raise RuntimeError(f"llama.cpp has no context for {count} texts of {positions} tokens")
        return LlamaTexts(context, self._vocab_size)


class LlamaTexts:
    """Texts of llama.cpp in one context, each a sequence; their state are the next tokens."""

    def __init__(self, context: object, vocab_size: int) -> None:
        self._context, self._vocab_size = context, vocab_size
        self._batch = lib.llama_batch_init(1024, 0, 1)
        self._length = 0

    def begin(self, prompts: list[list[int]]) -> list[int]:
        """See `SteppedTexts`; one batch a prompt."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        self._length = len(prompts[0])
        return [
            self._decode([(token, place, text) for place, token in enumerate(prompt)])[-1]
            for text, prompt in enumerate(prompts)
        ]

    def step(self, state: list[int]) -> list[int]:
        """See `SteppedTexts`."""
        rows = [(token, self._length, text) for text, token in enumerate(state)]
        self._length += 1
        return self._decode(rows)

    def _decode(self, rows: list[tuple[int, int, int]]) -> list[int]:
        """Run (token, position, text) of each row; the likeliest token after each last one."""
        batch, asked = self._batch, []
        batch.n_tokens = len(rows)
        for row, (token, place, text) in enumerate(rows):
            last = row + 1 == len(rows) or rows[row + 1][2] != text
            batch.token[row], batch.pos[row], batch.logits[row] = token, place, last
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, text
            if last:
                asked.append(row)
        failed = lib.llama_decode(self._context, batch)
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")
        return [self._likeliest(row) for row in asked]

    def _likeliest(self, row: int) -> int:
        logits = lib.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())


def write_gguf(folder: Path, path: Path) -> None:
    """Write the GPT-2 checkpoint in `folder` as GGUF without a vocabulary."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(1e-5)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, weight in load_file(folder / "model.safetensors").items():
        _add(writer, *_converted(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _converted(name: str, weight: np.ndarray) -> tuple[str, np.ndarray]:
    stem, _, kind = name.rpartition(".")
    block = ""
    if stem.startswith("h."):
        _, layer, stem = stem.split(".", 2)
        block = f"blk.{layer}."
    transposed = ".c_" in f".{stem}" and weight.ndim == 2
    return f"{block}{_NAMES[stem]}.{kind}", weight.T if transposed else weight


def _add(writer: gguf.GGUFWriter, name: str, weight: np.ndarray) -> None:
    if weight.dtype == ml_dtypes.bfloat16 and weight.ndim == 2 and "position" not in name:
        bits = np.ascontiguousarray(weight).view(np.uint8)
        writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, np.ascontiguousarray(weight, np.float32))


@lib.llama_log_callback
def _SILENT(level: int, text: bytes, data: ctypes.c_void_p) -> None:  # noqa: N802
    """Print nothing: llama.cpp tells of each tensor."""
