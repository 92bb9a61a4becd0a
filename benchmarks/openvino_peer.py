"""OpenVINO: what `openvino_checkpoint.py` exported beside a GGUF file, weights of as many bits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino
import openvino.opset13 as ops
from peer_cases import PeerDecode, PeerPrefill
from peers import openvino_folder

from gptrs_observe.measure.bench_cases import BenchCase, DecodeCase, random_prompts


class OpenVinoModel:
    """A model with its keys and values as state, in u8; activations rounded in groups of 32."""

    precision = "f32"

    def __init__(self, path: Path, threads: int) -> None:
        started = time.perf_counter()
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": self.precision,
            "KV_CACHE_PRECISION": "u8",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        core = openvino.Core()
        model = core.read_model(openvino_folder(path) / "openvino_model.xml")
        _keep_last_token(model)
        model = core.compile_model(model, "CPU", settings)
        self.load_seconds = time.perf_counter() - started
        self._vocab_size = model.outputs[0].get_partial_shape()[2].get_length()
        self._names = {name for port in model.inputs for name in port.get_names()}
        self._request = model.create_infer_request()
        self._length = 0

    def prefill(self, prompts: Iterator[list[int]]) -> BenchCase:
        """The prompt in one step; only the logits of the last token are computed."""
        return PeerPrefill(self, prompts)

    def decode(self, context: int, count: int, texts: int = 1) -> DecodeCase:
        """One token after another, each the likeliest, of all texts in one step."""
        return PeerDecode(self, random_prompts([context], self._vocab_size), count, texts)

    def begin(self, prompts: list[list[int]]) -> np.ndarray:
        """See `SteppedTexts`."""
        self._request.reset_state()
        self._length = 0
        return self.step(np.array(prompts, np.int64))

    def step(self, state: np.ndarray) -> np.ndarray:
        """See `SteppedTexts`; `state` are the next tokens si64 [B, T]."""
        texts, count = state.shape
        start, self._length = self._length, self._length + count
        places = np.tile(np.arange(start, self._length, dtype=np.int64), (texts, 1))
        inputs = {
            "input_ids": state,
            "attention_mask": np.ones((texts, self._length), np.int64),
            "position_ids": places,
            "beam_idx": np.arange(texts, dtype=np.int32),
        }
        self._request.infer({name: inputs[name] for name in self._names}, share_inputs=True)
        logits = self._request.get_output_tensor(0).data  # [B, 1, V]
        return logits[:, -1].argmax(-1)[:, None].astype(np.int64)


class RoundedOpenVinoModel(OpenVinoModel):
    """The same in bf16, OpenVINO's own choice for processors that multiply it."""

    precision = "bf16"


def _keep_last_token(model: openvino.Model) -> None:
    """Take the last row before the product with the unembedding, as OpenVINO GenAI does."""
    product = model.outputs[0].get_node()
    while product.get_type_name() != "MatMul":
        product = product.input_value(0).get_node()
    begin, end, step, axis = (np.array([number], np.int64) for number in (-1, 2**31 - 1, 1, 1))
    last = ops.slice(product.input_value(0), begin, end, step, axis)
    product.input(0).replace_source_output(last.output(0))
