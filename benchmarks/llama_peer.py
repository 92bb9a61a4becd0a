"""llama.cpp by `llama-cpp-python`: GGUF files and checkpoints as GGUF, on the CPU."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path

import llama_cpp as lib
import numpy as np
from gguf_checkpoint import write_gguf
from peer_cases import PeerDecode, PeerPrefill

from gptrs_observe.measure.bench_cases import BenchCase, DecodeCase, random_prompts


class LlamaModel:
    """A GGUF file, or a checkpoint in its own types, with a cache in f16, which is the default."""

    def __init__(self, path: Path, threads: int) -> None:
        lib.llama_log_set(_SILENT, ctypes.c_void_p())
        if path.is_dir():
            folder, path = path, path / "model.gguf"
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


@lib.llama_log_callback
def _SILENT(level: int, text: bytes, data: ctypes.c_void_p) -> None:  # noqa: N802
    """Print nothing: llama.cpp tells of each tensor."""
