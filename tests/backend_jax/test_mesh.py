"""Models over eight devices of a CPU: what one device computes, by parts of weights and batches."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import gptrs
from gptrs.api.backends import ProcessGroup
from gptrs.backend.contract import Backend
from gptrs.errors import UsageError

HERE = Path(__file__).parent
WIDTH, INNER, WORDS, EXPERTS = 96, 160, 72, 4
COMMON: dict[str, Any] = {"vocab_size": WORDS, "initializer_range": 0.3}
LLAMA: dict[str, Any] = {
    **COMMON,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 128,
}
ONE_LAYER: dict[str, Any] = {**LLAMA, "num_hidden_layers": 1}
"""XLA compiles it in half of the time."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 4}),
    # Two heads of keys, which four devices cannot share: each has both.
    "Qwen3": ("Qwen3ForCausalLM", {**ONE_LAYER, "num_key_value_heads": 2, "head_dim": 12}),
    "GPT2": (
        "GPT2LMHeadModel",
        {**COMMON, "n_embd": WIDTH, "n_layer": 1, "n_head": 8, "n_inner": INNER},
    ),
    "Bert": ("BertModel", {**ONE_LAYER, "hidden_act": "gelu"}),
    "ResNet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
    ),
    "T5": (
        "T5ForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": WIDTH,
            "d_kv": 12,
            "d_ff": INNER,
            "num_layers": 1,
            "num_heads": 8,
        },
    ),
    "Bart": (
        "BartForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "init_std": 0.1,
            "d_model": WIDTH,
            "max_position_embeddings": 64,
            **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
            **{f"{part}_attention_heads": 8 for part in ("encoder", "decoder")},
            **{f"{part}_ffn_dim": INNER for part in ("encoder", "decoder")},
        },
    ),
    "ViT": (
        "ViTForImageClassification",
        {**ONE_LAYER, "image_size": 64, "patch_size": 16, "initializer_range": 0.1},
    ),
    "Mixtral": (
        "MixtralForCausalLM",
        {**ONE_LAYER, "num_key_value_heads": 4, "num_local_experts": EXPERTS},
    ),
    "Qwen2Moe": (
        "Qwen2MoeForCausalLM",
        {
            **ONE_LAYER,
            "num_key_value_heads": 4,
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": INNER,
            "shared_expert_intermediate_size": INNER,
        },
    ),
}
SPLIT = {
    (WIDTH, WIDTH),
    (INNER, WIDTH),
    (WIDTH, INNER),
    (WORDS, WIDTH),
    (WIDTH, 3 * WIDTH),
    (EXPERTS, INNER, WIDTH),
    (EXPERTS, WIDTH, INNER),
}
"""Shapes of weights that are split; no activation has one of them."""


def _own_environment() -> dict[str, str]:
    """Return the environment with XLA's own settings: other tests leave out its optimizations."""
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}


def _saved(folder: Path, kind: str) -> None:
    torch = pytest.importorskip("torch", reason="random weights need torch")
    transformers = pytest.importorskip("transformers", reason="random weights need transformers")
    made, settings = MODELS[kind]
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**settings)
    getattr(transformers, made)(config).save_pretrained(folder / kind)


def _run(folder: Path, mesh: str) -> str:
    environment = {**_own_environment(), "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(HERE / "mesh_models.py"), str(folder), mesh]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _require_split(text: str) -> None:
    """Require sums over devices, and that no weight comes together on one of them."""
    assert re.search(r"= \S+ (all-reduce|reduce-scatter)", text), "no sums over devices"
    gathered = re.findall(r"= \w+\[([\d,]+)\]\S* all-gather", text)
    shapes = {tuple(map(int, found.split(","))) for found in gathered}
    assert not shapes & (SPLIT | {shape[::-1] for shape in SPLIT}), "a whole weight is gathered"


@pytest.mark.long
def test_llama_on_eight_devices(tmp_path: Path) -> None:
    _saved(tmp_path, "Llama")
    assert _run(tmp_path, "data=2,tensor=4") == "Llama: same logits, same text\n"
    _require_split((tmp_path / "Llama" / "programs.txt").read_text(encoding="utf-8"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", [0, 1])
def test_models_on_eight_devices(part: int, tmp_path: Path) -> None:
    kinds = sorted(MODELS.keys() - {"Llama"})[part::2]  # in one process, which imports JAX once
    for kind in kinds:
        _saved(tmp_path, kind)
    same = [line for line in _run(tmp_path, "data=2,tensor=4").splitlines() if ": same " in line]
    assert [line.partition(":")[0] for line in same] == kinds
    _require_all_split(tmp_path, kinds)


def _require_all_split(folder: Path, kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind != "ResNet":  # no weight of it is split
            _require_split((folder / kind / "programs.txt").read_text(encoding="utf-8"))


PROMISED = ("Llama", "GPT2", "Qwen3", "Bert", "ResNet")


@pytest.mark.exhaustive
@pytest.mark.parametrize("launcher", ["none", "slurm"])
def test_two_processes_of_four_devices(launcher: str, tmp_path: Path) -> None:
    # A launcher is there for how processes meet, which is the same for all models.
    kinds = PROMISED if launcher == "none" else PROMISED[:1]
    for kind in kinds:
        _saved(tmp_path, kind)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    slurm = launcher == "slurm"
    environment = {**_own_environment(), "JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(HERE / "mesh_models.py"), str(tmp_path), "data=2,tensor=4"]
    both = [
        subprocess.Popen(
            [*command, *(["auto"] if slurm else [f"127.0.0.1:{port}", "2", str(number)])],
            env=environment | (_step_of_slurm(number, port) if slurm else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        for process in both:
            out, error = process.communicate(timeout=600)
            assert process.returncode == 0, error[-2000:]
            same = [line for line in out.splitlines() if ": same " in line]  # Gloo prints, too
            assert [line.partition(":")[0] for line in same] == sorted(kinds)
    finally:
        for process in both:
            process.kill()
    _require_all_split(tmp_path, kinds)


def _step_of_slurm(number: int, port: int) -> dict[str, str]:
    """The variables that `srun` sets for a process of two on this host."""
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(number),
        "JAX_COORDINATOR_PORT": str(port),
    }


def test_processes_need_a_mesh(jax_backend: Backend) -> None:
    group = ProcessGroup("localhost:1", 2, 0)
    with pytest.raises(UsageError, match="2 processes at localhost:1 run one model"):
        gptrs.get_backend("jax", processes=group)
    with pytest.raises(UsageError, match="there is no process 2 of 2"):
        ProcessGroup("localhost:1", 2, 2)
    with pytest.raises(UsageError, match="HOST:PORT"):
        ProcessGroup("localhost", 2, 0)
    with pytest.raises(UsageError, match="`ref` takes no processes"):
        gptrs.get_backend("ref", processes=group)


def test_too_few_devices(jax_backend: Backend) -> None:
    with pytest.raises(UsageError, match="has 4096 devices") as caught:
        gptrs.get_backend("jax", device="cpu", mesh="tensor=4096")
    assert "JAX_NUM_CPU_DEVICES" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="the devices of a platform"):
        gptrs.get_backend("jax", device="cpu:0", mesh="tensor=1")


def test_a_mesh_of_one_device(jax_backend: Backend) -> None:
    backend = gptrs.get_backend("jax", device="cpu", mesh="tensor=1")
    with gptrs.use_backend(backend):
        step = gptrs.jit(lambda total, x: total + x, donate=[0])
        total = gptrs.tensor([0.0])
        for value in (1.0, 2.0):
            total = step(total, gptrs.tensor([value]))
        assert total.item() == 3.0
