"""Mixtures of experts of 2-byte weights: no wider copies of them, in memory or in a step."""

from __future__ import annotations

from functools import partial

import pytest

import gptrs
from gptrs_models.llama_experts import Mixture
from models.llama_support import assert_close, save_llama, some_tokens
from models.models_support import assert_greedy, torch_logits

pytest.importorskip("transformers", reason="parity needs transformers")
pytest.importorskip("torch", reason="parity needs torch")
GREEDY = gptrs.Sampling(temperature=0)

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen2_moe": (
        "Qwen2Moe",
        {
            **{"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 20},
            **{"shared_expert_intermediate_size": 28, "norm_topk_prob": True},
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_experts_keep_their_stored_type(tmp_path, backend_name, name, dtype):
    if backend_name != "ref" and (name, dtype) not in (
        ("qwen2_moe", "bfloat16"),
        ("mixtral", "float16"),
    ):
        pytest.skip("a few cases are enough where each one compiles")
    kind, settings = CASES[name]
    folder = save_llama(tmp_path / "m", kind, **settings, saved_dtype=dtype)
    model = gptrs.load_model(folder, backend=backend_name)
    tokens = some_tokens(2, 20)
    assert_close(model.forward(tokens), torch_logits(folder, tokens))
    prompt = tokens[0, :9].tolist()
    ours = gptrs.generate(model, prompt, max_tokens=16, sampling=GREEDY, ignore_eos=True)
    assert_greedy(partial(torch_logits, folder), prompt, ours.token_ids, 16)


def test_joined_experts_have_the_stored_type(tmp_path, backend_name):
    kind, settings = CASES["qwen3_moe"]
    wide = {**settings, "moe_intermediate_size": 512, "hidden_size": 512}
    folder = save_llama(tmp_path / "m", kind, **wide, saved_dtype="bfloat16")
    model = gptrs.load_model(folder, backend=backend_name)
    mixtures = [each for each in model.named_modules().values() if isinstance(each, Mixture)]
    assert len(mixtures) == 2
    for each in mixtures:
        joined = [each.gate_proj.weight, each.up_proj.weight, each.down_proj.weight]
        assert {str(tensor.dtype) for tensor in joined if tensor is not None} == {"bf16"}
