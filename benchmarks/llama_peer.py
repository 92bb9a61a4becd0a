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
        started = time.perf_counter()
        self._model = lib.llama_model_load_from_file(
            str(path).encode(), lib.llama_model_default_params()
        )
        settings = lib.llama_context_default_params()
        settings.n_ctx, settings.n_batch = 1024, 1024
        settings.n_threads = settings.n_threads_batch = threads
        self._context = lib.llama_init_from_model(self._model, settings)
        self.load_seconds = time.perf_counter() - started
        self._vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))

    def prefill(self, prompts: Iterator[list[int]]) -> BenchCase:
        """The prompt in one batch; the logits of the last token."""
        return _LlamaPrefill(self, prompts)

    def decode(self, context: int, count: int) -> DecodeCase:
        """One token after another, each the likeliest."""
        return _LlamaDecode(self, context, count)

    def forward(self, inputs: np.ndarray) -> BenchCase:
        """Refuse: llama.cpp gives the logits of chosen tokens only."""
        raise NotImplementedError("llama.cpp has no forward pass of all logits")

    def prompts(self, length: int) -> Iterator[list[int]]:
        """The prompts that our side reads."""
        return random_prompts([length], self._vocab_size)

    def forget(self) -> None:
        """Empty the cache."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)

    def step(self, tokens: list[int]) -> int:
        """Append tokens; return the likeliest next one."""
        array = (lib.llama_token * len(tokens))(*tokens)
        failed = lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(tokens)))
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")
        logits = lib.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())


class _LlamaPrefill:
    def __init__(self, model: LlamaModel, prompts: Iterator[list[int]]) -> None:
        self._model, self._prompts = model, prompts

    def prepare(self) -> None:
        self._tokens = next(self._prompts)
        self._model.forget()

    def run(self) -> None:
        self.token = self._model.step(self._tokens)


class _LlamaDecode:
    def __init__(self, model: LlamaModel, context: int, count: int) -> None:
        self._model, self._count = model, count
        self._prefill = _LlamaPrefill(model, model.prompts(context))
        self.gaps: list[float] = []

    def prepare(self) -> None:
        self._prefill.prepare()
        self._prefill.run()

    def run(self) -> None:
        self.gaps = []
        token = self._prefill.token
        for _ in range(self._count):
            started = time.perf_counter()
            token = self._model.step([token])
            self.gaps.append(time.perf_counter() - started)


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
