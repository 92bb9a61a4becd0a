"""Tiny models and runs for the tests of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fuzzing.tiny_models import save_tiny_model
from gptrs.plugins.manager import backend_of
from gptrs_runtime.sources.find_model import find_model
from gptrs_train.batches import Windows
from gptrs_train.data import Source
from gptrs_train.learner import Learner
from gptrs_train.saved_run import SavedRun
from gptrs_train.trainer import Settings, Trainer
from support.tiny_models import tiny

CONFIGS = {
    "gpt2": {
        "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 65,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "bos_token_id": 0, "eos_token_id": 1,
    },
    "llama": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 65,
        "max_position_embeddings": 64, "tie_word_embeddings": False,
    },
}  # fmt: skip
CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}


def save_lm(folder: Path, kind: str, **settings: object) -> None:
    """Save a tiny language model, without torch."""
    rng = np.random.default_rng(3)

    def weight(shape):
        values = rng.normal(0, 0.05, shape) if len(shape) > 1 else np.ones(shape)
        return values.astype(np.float32)

    save_tiny_model(folder, kind, backend_of("ref", None), {**CONFIGS[kind], **settings}, weight)


def torch_lm(folder: Path, kind: str):
    """Save a tiny language model; return it as transformers has it."""
    return tiny(folder, CLASSES[kind], CONFIGS[kind], seed=3)


def stream(count: int = 3000, seed: int = 0) -> np.ndarray:
    """Return tokens with something to learn in them."""
    steps = np.random.default_rng(seed).integers(1, 4, count)
    return (np.cumsum(steps) % 65).astype(np.uint16)


def settings(**given) -> Settings:
    usual = {
        "steps": 50, "batch": 3, "length": 16, "rate": 3e-3, "warmup": 5, "clip": 1.0,
        "weight_decay": 0.1, "betas": (0.9, 0.95), "least_rate": 3e-4,
    }  # fmt: skip
    return Settings(**{**usual, **given})


def run(
    folder: Path,
    out: Path,
    what,
    backend: str,
    chosen: Settings,
    precision=None,
    tell=lambda status: None,
    **given,
):
    """Run a trainer on a stream; return it, what it learnt, and its losses."""
    made = backend_of(backend, None).with_precision(precision)
    learner = Learner(find_model(folder), made, what)
    windows = Windows(Source(out, stream=stream()), chosen.length, chosen.batch, chosen.seed)
    saved = SavedRun.beside(out, {"steps": chosen.steps})
    trainer = Trainer(learner, chosen, windows, None, saved, made, tell)
    _, trained = trainer.run(**given)
    return trainer, trained, [row["loss"] for row in saved.metrics if "loss" in row]
