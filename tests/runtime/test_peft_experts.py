"""Adapters of experts and routers compute what PEFT computes with them, in each of their forms."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gptrs.errors import CheckpointError, ModelError
from gptrs_runtime.load import load_model
from gptrs_runtime.serving.answers import families
from runtime.test_peft_adapters import TOKENS, changed, computed, qwen3_moe, saved

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*did not match any targeted module:RuntimeWarning"),
]
SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 24, "moe_intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "initializer_range": 0.3, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "pad_token_id": 0,
    "bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 64,
}  # fmt: skip
KINDS = {
    "Mixtral": {},
    "Olmoe": {},
    "Phimoe": {"attention_bias": True, "lm_head_bias": True},
    "GptOss": {"layer_types": ["full_attention", "sliding_attention"]},
    "GraniteMoe": {},
    "Lfm2Moe": {"num_dense_layers": 0, "layer_types": ["conv", "full_attention"]},
    "Glm4Moe": {"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1},
    "DeepseekV3": {
        "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "kv_lora_rank": 8,
        "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "num_key_value_heads": 4,
    },
    "HunYuanMoEV1": {},
    "Ernie4_5_Moe": {"moe_layer_start_index": 0, "moe_layer_interval": 1},
}  # fmt: skip
FUSED = ["experts.gate_up_proj", "experts.down_proj"]


def made(kind, **settings):
    torch.manual_seed(4)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **KINDS[kind], **settings})
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def router(model):
    """The name of the parameter that chooses among experts, as transformers has it."""
    ends = ("gate.weight", "router.weight", "gate.wg.weight")
    names = [n for n, p in model.named_parameters() if n.endswith(ends) and p.shape[0] == 4]
    return ".".join(names[0].split(".")[3:])


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in ("Mixtral", "GptOss") else pytest.mark.long)
        for kind in KINDS
    ],
)
def test_experts_of_each_kind(kind, tmp_path):
    theirs = made(kind)
    parameters = [*FUSED, router(theirs)]
    expected = saved(theirs, tmp_path, target_modules=[], target_parameters=parameters)
    np.testing.assert_allclose(changed(tmp_path), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.sample(2)
@pytest.mark.parametrize("parameters", [FUSED[:1], FUSED[1:], FUSED])
@pytest.mark.parametrize("patterns", [{}, {"rank_pattern": {"gate_up_proj": 2, "down_proj": 3}}])
def test_ranks_and_single_matrices(parameters, patterns, tmp_path):
    torch.manual_seed(3)
    more = {"target_modules": ["q_proj"], "target_parameters": parameters, **patterns}
    if patterns:
        more["alpha_pattern"] = {"gate_up_proj": 5, "down_proj": 2}
    expected = saved(qwen3_moe(), tmp_path, **more)
    np.testing.assert_allclose(changed(tmp_path), expected, rtol=1e-5, atol=5e-5)


def test_quantized_experts_get_the_same_products(tmp_path):
    expected = saved(
        made("Mixtral", intermediate_size=64), tmp_path, target_modules=[], target_parameters=FUSED
    )
    found = computed(tmp_path, weights="q8")
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_compiled_kernels_compute_the_same(tmp_path):
    expected = saved(made("Mixtral"), tmp_path, target_modules=[], target_parameters=FUSED)
    base = load_model(tmp_path / "base", "numba")
    found = base.with_adapter(tmp_path / "adapter").forward(TOKENS)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_an_adapter_of_experts_takes_steps_of_its_own(tmp_path):
    saved(made("Mixtral"), tmp_path, target_modules=[], target_parameters=FUSED)
    base = load_model(tmp_path / "base", "ref")
    models = {"base": base, "own": base.with_adapter(tmp_path / "adapter", "own")}
    assert {tuple(each.names) for each in families(models)} == {("base",), ("own",)}


@pytest.mark.parametrize("inner", [24, 32])
def test_experts_as_peft_before_0_19_wrote_them(inner, tmp_path):
    """Their factors went from the rows of a stored matrix to its columns, also if it is square."""
    theirs = made("Mixtral", intermediate_size=inner)
    theirs.save_pretrained(tmp_path / "base")
    rng, tensors = np.random.default_rng(2), {}
    for number, layer in enumerate(theirs.model.layers):
        for inside, name in ((".base_layer", "gate_up_proj"), ("", "down_proj")):
            weight = getattr(layer.mlp.experts, name)
            count, rows, columns = weight.shape
            a = rng.normal(size=(count * 3, rows)).astype(np.float32) / 5
            b = rng.normal(size=(columns, 3 * count)).astype(np.float32) / 5
            stem = f"base_model.model.model.layers.{number}.mlp.experts{inside}.lora_"
            tensors |= {f"{stem}A.weight": a, f"{stem}B.weight": b}
            parts = a.reshape(count, 3, rows), b.reshape(columns, 3, count)
            with torch.no_grad():
                weight.add_(torch.tensor(np.einsum("ore,eri->eio", *parts[::-1]) * 2))
    config = {"target_parameters": FUSED, "r": 3, "lora_alpha": 6, "peft_version": "0.18.1"}
    save_adapter_files(tmp_path / "adapter", tensors, config)
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS)).logits.numpy()
    np.testing.assert_allclose(changed(tmp_path), expected, rtol=1e-4, atol=2e-4)


def save_adapter_files(folder, tensors, config):
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "target_modules": [], **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")


def each_expert(theirs, names, rng):
    """Add a product to layers of the experts, and return the factors by their old names."""
    tensors = {}
    for number, layer in enumerate(theirs.model.layers):
        experts = layer.mlp.experts
        inner = experts.down_proj.shape[2]
        own = {
            names["gate"]: experts.gate_up_proj[:, :inner],
            names["up"]: experts.gate_up_proj[:, inner:],
            names["down"]: experts.down_proj,
        }
        for name, weight in own.items():
            for expert in range(3):  # the last one has none
                outputs, inputs = weight.shape[1:]
                rank = 2 + expert
                a = rng.normal(size=(rank, inputs)).astype(np.float32) / 5
                b = rng.normal(size=(outputs, rank)).astype(np.float32) / 5
                stem = f"{names['scope']}.{expert}.{name}"
                stem = f"base_model.model.model.layers.{number}.{stem}.lora_"
                tensors |= {f"{stem}A.weight": a, f"{stem}B.weight": b}
                with torch.no_grad():
                    weight[expert] += torch.tensor(b @ a) * (6 / rank)
    return tensors


OLD = {
    "Mixtral": {"scope": "block_sparse_moe.experts", "gate": "w1", "up": "w3", "down": "w2"},
    "Olmoe": {"scope": "mlp.experts", "gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("kind", OLD)
def test_experts_as_layers_of_their_own(kind, joined, tmp_path):
    """Experts were linear layers before transformers 5, each with factors of its own rank."""
    theirs = made(kind)
    theirs.save_pretrained(tmp_path / "base")
    if joined:
        join_experts(theirs, tmp_path / "base/model.safetensors")
    tensors = each_expert(theirs, OLD[kind], np.random.default_rng(3))
    names = [name for part, name in OLD[kind].items() if part != "scope"]
    config = {"target_modules": names, "r": 4, "lora_alpha": 6}
    save_adapter_files(tmp_path / "adapter", tensors, config)
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS)).logits.numpy()
    np.testing.assert_allclose(changed(tmp_path), expected, rtol=1e-4, atol=2e-4)


def join_experts(theirs, file):
    """Store the matrices of all experts together, as the model has them."""
    tensors = {name: each for name, each in load_file(file).items() if ".experts." not in name}
    scope = "block_sparse_moe" if any("block_sparse" in name for name in tensors) else "mlp"
    for number, layer in enumerate(theirs.model.layers):
        for name, weight in layer.mlp.experts.named_parameters():
            whole = f"model.layers.{number}.{scope}.experts.{name}"
            tensors[whole] = weight.detach().numpy()
    save_file(tensors, file)


def test_experts_of_other_sizes_are_refused(tmp_path):
    saved(made("Mixtral"), tmp_path, target_modules=[], target_parameters=FUSED)
    made("Mixtral", num_local_experts=3, num_experts=3).save_pretrained(tmp_path / "base")
    with pytest.raises(ModelError, match=r"changes `model\.layers\.0\.mlp\.experts"):
        load_model(tmp_path / "base", "ref", adapter=tmp_path / "adapter")
    theirs = made("Mixtral")
    tensors = each_expert(theirs, OLD["Mixtral"], np.random.default_rng(3))
    settings = {"r": 4, "lora_alpha": 6, "target_modules": ["w1", "w2", "w3"]}
    save_adapter_files(tmp_path / "other", tensors, settings)
    made("Mixtral", intermediate_size=16).save_pretrained(tmp_path / "base")
    with pytest.raises(CheckpointError, match="the experts of the model have 32 and 16"):
        load_model(tmp_path / "base", "ref", adapter=tmp_path / "other")
