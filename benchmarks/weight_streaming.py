"""Measure a model of 1.1 billion parameters in bf16 that runs in less memory than it takes.

    python benchmarks/weight_streaming.py [--folder DIR] [--tokens N] [--budgets off,600MB,25%]

The model has the shape of TinyLlama and random weights, 2.2 GB, written to DIR (default: a folder
that is deleted in the end). Each budget runs in a process of its own, twice, since the first one
compiles kernels; tokens must be the same in all of them. "memory" is the most that the process held
at one time (VmHWM), without what the same process takes for the same work of a model of 4 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

import gptrs
from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor
from gptrs.checkpoint.formats.safetensors_writer import write_safetensors
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.nn.paged_texts import PagedTexts

SIZES = {
    "1.1B": {
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 8000,
        "max_position_embeddings": 2048,
    },
}
_NOISE = 1 << 22
_PROMPT = 32


def save_llama(folder: Path, size: str) -> Path:
    """Write the model of a size in `SIZES`, a tensor at a time; returns its folder."""
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "tie_word_embeddings": False, **SIZES[size]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    noise = np.random.default_rng(0).standard_normal(_NOISE, np.float32) * np.float32(0.03)
    weights = noise.astype(ml_dtypes.bfloat16)
    tensors = [_tensor(name, shape, weights) for name, shape in _shapes(SIZES[size]).items()]
    with (folder / "model.safetensors").open("wb") as file:
        write_safetensors(file, tensors)
    return folder


def _shapes(config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    narrow = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width)
    }
    for layer in range(config["num_hidden_layers"]):
        block = {
            "input_layernorm": (width,),
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (narrow, width),
            "self_attn.v_proj": (narrow, width),
            "self_attn.o_proj": (width, width),
            "post_attention_layernorm": (width,),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes | {"model.norm.weight": (width,), "lm_head.weight": (config["vocab_size"], width)}


def _tensor(name: str, shape: tuple[int, ...], noise: np.ndarray) -> OutgoingTensor:
    """Norms are 1, all else is noise that begins elsewhere for each name."""
    size = int(np.prod(shape))

    def parts() -> Iterator[np.ndarray]:
        if len(shape) == 1:
            yield np.ones(size, noise.dtype)
            return
        start = sum(name.encode()) * 7919 % noise.size // 2 * 2
        left = size
        while left:
            part = noise[start : start + left]
            yield part
            left, start = left - part.size, 0

    return OutgoingTensor(name, TensorType(dtypes.bf16, shape), parts)


def measure(folder: Path, budget: str, count: int) -> dict[str, object]:
    """Load, read a prompt, make `count` tokens: what that takes, in this process."""
    started = time.perf_counter()
    model = gptrs.load_model(folder, "numba", weight_budget=budget)
    loaded = time.perf_counter() - started
    lm = model.causal_lm()
    text = PagedTexts(lm, 1, _PROMPT + count)
    tokens = np.arange(_PROMPT, dtype=np.int64)[None] * 7 % lm.vocab_size
    started = time.perf_counter()
    logits = text.append(tokens)
    first = time.perf_counter() - started
    made, seconds = [int(logits[0].argmax())], list[float]()
    while len(made) < count:
        started = time.perf_counter()
        logits = text.append([[made[-1]]])
        seconds.append(time.perf_counter() - started)
        made.append(int(logits[0].argmax()))
    return {
        "tokens": made,
        "load_s": loaded,
        "prompt_s": first,
        "token_s": float(np.median(seconds[1:])),
        "peak_mb": _peak_mb(),
        "held_mb": model.streamer.most_held / 1e6 if model.streamer else None,
        "read_mb": model.streamer.bytes_read / count / 1e6 if model.streamer else None,
    }


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def _in_process(folder: Path, budget: str, count: int) -> dict[str, object]:
    command = [sys.executable, __file__, "--one", budget, "--folder", str(folder)]
    done = subprocess.run([*command, "--tokens", str(count)], capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return json.loads(done.stdout)


def _compare(folder: Path, budgets: list[str], count: int) -> None:
    with tempfile.TemporaryDirectory() as small:
        tiny = save_llama(Path(small) / "tiny", "tiny")
        base = [_in_process(tiny, "off", count) for _ in range(2)][-1]["peak_mb"]
    assert isinstance(base, float)
    print(f"memory of a tiny model: {base:.0f} MB")
    expected: object = None
    for budget in budgets:
        found = [_in_process(folder, budget, count) for _ in range(2)][-1]
        expected = expected or found["tokens"]
        same = "same" if found["tokens"] == expected else "OTHER"
        token, peak = found["token_s"], found["peak_mb"]
        assert isinstance(token, float)
        assert isinstance(peak, float)
        print(
            f"budget {budget}: loaded in {found['load_s']:.2f} s, prompt {found['prompt_s']:.2f} s,"
            f" {1 / token:.2f} tokens/s, memory {peak - base:.0f} MB (held {found['held_mb']},"
            f" read {found['read_mb']} a step), {same} tokens",
            flush=True,
        )


def main() -> None:
    """See the docstring of the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the model is, or is written to")
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--budgets", default="off,600MB,25%")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.folder, given.one, given.tokens)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary) / "llama"
        if not (folder / "config.json").exists():
            save_llama(folder, "1.1B")
        _compare(folder, given.budgets.split(","), given.tokens)


if __name__ == "__main__":
    main()
